r"""How the motion of a tree answers to tangent steps of its joints, and to their rates.

Let joint k step along eta = H* e. With V' and alpha' the motion of its parent, carried over, the body and all
outboard of it, seen from themselves, change by

.. math::
    \Psi e = V' \times_m \eta + (\partial_e H^*) \dot q, \qquad
    \beta e = \alpha' \times_m \eta + V' \times_m \Psi e
        + (\partial_e H^*) \ddot q + \partial_e (\dot H^* \dot q) + V \times_m (\partial_e H^*) \dot q,

where beta is the change of the acceleration less that change of V crossed with V. So it travels outboard
unchanged, and the force on a body changes by M beta + 2 B Psi with B of `coriolis_inertia`. Ancestors also
feel that the force through the joint turns along, by eta x_f f. Per rate of the joint the velocity
changes by eta, the acceleration (less the same product) by

.. math:: \beta' e = (V + V') \times_m \eta + \partial_{\dot q} (\dot H^* \dot q)\, e.

References: J. Carpentier, N. Mansard, *Analytical derivatives of rigid body dynamics algorithms*, Robotics:
Science and Systems 2018; S. Singh, R. Russell, P. Wensing, *Efficient analytical derivatives of rigid-body
dynamics using spatial vector algebra*, IEEE Robotics and Automation Letters 7(2), 2022.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.algebra.operators.hinge import apply_blocks, spread_all
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.operators.sweeps import gather, scatter_tilde
from torchsko.algorithms.motion_products import Motion
from torchsko.bridge.kinematics import gravity_accel, joint_bias_accels
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import coriolis_inertia
from torchsko.spatial.motion import (
    cross_force,
    cross_motion,
    motion_matrix,
    swapped_force_matrix,
)


class Bend(NamedTuple):
    """What joints do whose H depends on q; per tangent step e and per node, breadth first, zero-padded.

    Attributes:
        map_change: the rows of H change by these, `[*batch, n, e, d, 6]`.
        bias_change: Hdot* qd changes by these, `[*batch, n, e, 6]`.
        bias_per_rate: the same per rate, `[*batch, n, e, 6]`.
    """

    map_change: Tensor
    bias_change: Tensor
    bias_per_rate: Tensor


class Tangents(NamedTuple):
    """What `mass_and_motion_matrices` needs for the derivatives of inverse dynamics.

    Attributes:
        inertia_rate: 2 B.
        to_q: motions per tangent step.
        to_qd: motions per rate.
    """

    inertia_rate: Tensor
    to_q: Motion
    to_qd: Motion


def tangents(
    mech: Mechanism,
    model: SKOModel,
    q: Tensor,
    qd: Tensor,
    qdd: Tensor,
    f_ext: Tensor | None,
    bend: Bend | None,
) -> Tangents:
    """Those of a tree at a state.

    Args:
        mech: without couplings.
        model: its model at q; a and b are not read.
        q: `[*batch, num_q]`.
        qd: `[*batch, num_dof]`.
        qdd: `[*batch, num_dof]`.
        f_ext: as in `torchsko.inverse_dynamics`.
        bend: of the joints, None where every H is constant.

    Reference: Singh, Russell, Wensing 2022.
    """
    layout, A, H, M = model.layout, model.edge_weight, model.joint_map, model.inertia
    rates, accels = (layout.dofs.pack(x[..., None]) for x in (qd, qdd))
    rate = spread_all(layout, H, rates)
    V_plus = scatter_tilde(layout, A, rate)
    V = V_plus + rate
    hinge = spread_all(layout, H, accels) + cross_motion(*torch.broadcast_tensors(V, rate))
    bias = joint_bias_accels(mech, q, qd)
    hinge = hinge if bias is None else hinge + bias[..., None]
    base = gravity_accel(mech, A)
    alpha_plus = scatter_tilde(layout, A, hinge + base) + base
    f = apply_blocks(M, alpha_plus + hinge) + cross_force(V, apply_blocks(M, V))
    if f_ext is not None:
        f = f - layout.breadth_first(f_ext, -2)[..., None]
    f = gather(layout, A, f)
    across = motion_matrix(V_plus)
    Psi, faster = across @ H.mT, motion_matrix(V + V_plus) @ H.mT
    bent = None if bend is None else _bent(bend, rates, accels, V, f)
    Psi = Psi if bent is None else Psi + bent[0]
    beta = motion_matrix(alpha_plus) @ H.mT + across @ Psi
    if bend is not None and bent is not None:
        beta, faster = beta + bent[1], faster + bend.bias_per_rate.mT
    own = None if bent is None else bent[2]
    return Tangents(
        2 * coriolis_inertia(M, V),
        Motion(beta.mT, Psi.mT, swapped_force_matrix(f) @ H.mT, own),
        Motion(faster.mT),
    )


def _bent(
    bend: Bend, qd: Tensor, qdd: Tensor, V: Tensor, f: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What a changing H adds to Psi and to beta, `[*batch, n, 6, e]`, and E, `[*batch, n, d, e]`."""
    turned = bend.map_change.mT  # columns of H*, `[*batch, n, e, 6, d]`
    moved, pushed = ((turned @ x[..., None, :, :])[..., 0].mT for x in (qd, qdd))
    own = (bend.map_change @ f[..., None, :, :])[..., 0].mT
    return moved, pushed + bend.bias_change.mT + motion_matrix(V) @ moved, own
