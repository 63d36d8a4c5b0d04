r"""Derivatives of the motion of a tree with respect to tangent steps of its joints and to their rates.

Let joint k step along eta = H* e, and let V' and alpha' be the motion of its parent, shifted to the body. In
body coordinates the motion of the body, and of all bodies outboard of it, changes by

.. math::
    \Psi e = V' \times_m \eta + (\partial_e H^*) \dot q, \qquad
    \beta e = \alpha' \times_m \eta + V' \times_m \Psi e
        + (\partial_e H^*) \ddot q + \partial_e (\dot H^* \dot q) + V \times_m (\partial_e H^*) \dot q,

where beta is the change of the acceleration less that change of V crossed with V. So it propagates outboard
unchanged, and the force on a body changes by M beta + 2 B Psi with B of `coriolis_inertia`. For ancestors the
force f through the joint also rotates with the step, by eta x_f f. Per rate of the joint the velocity
changes by eta, and the acceleration (less the same product) by

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
from torchsko.algebra.operators.sweeps import gather, scatter, scatter_tilde
from torchsko.algebra.recursions.lyapunov import forward_diag
from torchsko.algebra.topology.gathering import join
from torchsko.algorithms.motion_products import Motion
from torchsko.bridge.body_momenta import gyroscopic_force
from torchsko.bridge.joint_motion import gravity_accel, joint_bias_accels
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.joints.free import Free
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import coriolis_inertia
from torchsko.spatial.motion import (
    cross_force,
    cross_motion,
    motion_matrix,
    swapped_force_matrix,
)


class Bend(NamedTuple):
    """Derivatives of joint maps that depend on q, per tangent step e and node, breadth first, zero-padded.

    Attributes:
        map_change: change of the rows of H, `[*batch, n, e, d, 6]`.
        bias_change: change of Hdot* qd, `[*batch, n, e, 6]`.
        bias_per_rate: change of Hdot* qd per rate, `[*batch, n, e, 6]`.
    """

    map_change: Tensor
    bias_change: Tensor
    bias_per_rate: Tensor


class Moved(NamedTuple):
    """The motion of a tree and its derivatives per joint, breadth first; see the head of this module.

    Attributes:
        V: velocity, `[*batch, n, 6, 1]`.
        alpha: acceleration, `[*batch, n, 6, 1]`.
        Psi: change of velocity per tangent step, `[*batch, n, 6, d]`.
        beta: change of acceleration per tangent step, `[*batch, n, 6, d]`.
        faster: beta', change of acceleration per rate, `[*batch, n, 6, d]`.
    """

    V: Tensor
    alpha: Tensor
    Psi: Tensor
    beta: Tensor
    faster: Tensor


class Tangents(NamedTuple):
    """Arguments of `mass_and_motion_matrices` for the derivatives of inverse dynamics.

    Attributes:
        inertia_rate: 2 B.
        to_q: motions per tangent step.
        to_qd: motions per rate.
        base_accels: accelerations of floating bases, per tangent step and per rate of the base, that leave
            all forces unchanged, each `[*batch, num_dof, num_dof]`; the corresponding columns of the
            motions are then zero. None if not requested.
    """

    inertia_rate: Tensor
    to_q: Motion
    to_qd: Motion
    base_accels: tuple[Tensor, Tensor] | None = None


def tangents(
    state: Kinematics,
    inertia: Tensor,
    tree_qdd: Tensor,
    f_ext: Tensor | None,
    bend: Bend | None,
    *,
    base_accels_apart: bool = False,
) -> Tangents:
    """Those of the tree of a mechanism.

    Args:
        state: the mechanism at a configuration and velocity.
        inertia: M of every body, `[*batch, n, 6, 6]`, breadth first.
        tree_qdd: accelerations of all joints of the tree, `[*batch, num_tree_dof]`.
        f_ext: as in `torchsko.inverse_dynamics`.
        bend: of the joints, None where every H is constant.
        base_accels_apart: whether floating bases answer their own steps by accelerations: see `Tangents`.

    Reference: Singh, Russell, Wensing 2022.
    """
    layout, A, H, M = state.tree.layout, state.edge_weight, state.joint_map, inertia
    moved = joint_motions(state, tree_qdd, bend, gravity=True)
    f = apply_blocks(M, moved.alpha) + gyroscopic_force(M, moved.V)
    if f_ext is not None:
        f = f - layout.breadth_first(f_ext, -2)[..., None]
    f = gather(layout, A, f)
    own = None if bend is None else (bend.map_change @ f[..., None, :, :])[..., 0].mT
    to_q = Motion(moved.beta.mT, moved.Psi.mT, swapped_force_matrix(f) @ H.mT, own)
    found = Tangents(2 * coriolis_inertia(M, moved.V), to_q, Motion(moved.faster.mT))
    return _with_base_accels(state.tree, H, moved, found) if base_accels_apart else found


def _with_base_accels(mech: Mechanism, H: Tensor, moved: Moved, motions: Tangents) -> Tangents:
    r"""Replace the motions of floating bases with respect to their own dofs by equivalent accelerations.

    A step of a free base rotates the tree as a whole: for all outboard bodies only the direction of gravity
    changes, and an acceleration :math:`-\beta` of the base compensates it. A constant velocity changes
    no force (Galilean invariance); it rotates in the frame of the body.
    """
    width, bases = H.shape[-2], mech.layout.level_sizes[0]
    free = [isinstance(mech.joints.kinds[k], Free) for k in mech.layout.tree.levels[0]]
    steps = [[float(is_free)] * width for is_free in free]
    rates = [[float(is_free and dof >= 3) for dof in range(width)] for is_free in free]
    rest = (0, 0, 0, H.shape[-3] - bases)
    own_q, own_qd = (torch.nn.functional.pad(H.new_tensor(x), rest) for x in (steps, rates))
    keep_q, keep_qd = ((1 - own)[..., None] for own in (own_q, own_qd))
    to_q, to_qd, dofs = motions.to_q, motions.to_qd, mech.layout.dofs
    base_accels = (-H @ moved.beta * own_q[..., None, :], -H @ moved.faster * own_qd[..., None, :])
    identity = dofs.pack(torch.eye(dofs.total, dtype=H.dtype, device=H.device))
    of_q, of_qd = (dofs.collect(own @ identity) for own in base_accels)
    return Tangents(
        motions.inertia_rate,
        to_q._replace(X=to_q.X * keep_q),  # Psi of a base is zero: its parent is at rest
        to_qd._replace(X=to_qd.X * keep_qd, Z=H * keep_qd),
        (of_q, of_qd),
    )


def joint_motions(
    state: Kinematics, tree_qdd: Tensor, bend: Bend | None, *, gravity: bool
) -> Moved:
    """`Moved` of the tree at a state, with the inertial frame's -g in alpha or without."""
    layout, A, H = state.tree.layout, state.edge_weight, state.joint_map
    rates, accels = (layout.dofs.pack(x[..., None]) for x in (state.tree_qd, tree_qdd))
    rate = state.joint_rate
    V_plus = scatter_tilde(layout, A, rate)
    V = V_plus + rate
    hinge = spread_all(layout, H, accels) + cross_motion(*torch.broadcast_tensors(V, rate))
    bias = joint_bias_accels(state.tree, state.tree_q, state.tree_qd)
    hinge = hinge if bias is None else hinge + bias[..., None]
    if gravity:
        base = gravity_accel(state.tree, A)
        alpha_plus = scatter_tilde(layout, A, hinge + base) + base
    else:
        alpha_plus = scatter_tilde(layout, A, hinge)
    across = motion_matrix(V_plus)
    Psi, faster = across @ H.mT, motion_matrix(V + V_plus) @ H.mT
    if bend is None:
        beta = motion_matrix(alpha_plus) @ H.mT + across @ Psi
    else:
        turned = bend.map_change.mT  # columns of H*, `[*batch, n, e, 6, d]`
        moved, pushed = ((turned @ x[..., None, :, :])[..., 0].mT for x in (rates, accels))
        Psi, faster = Psi + moved, faster + bend.bias_per_rate.mT
        beta = motion_matrix(alpha_plus) @ H.mT + across @ Psi
        beta = beta + pushed + bend.bias_change.mT + motion_matrix(V) @ moved
    return Moved(V, alpha_plus + hinge, Psi, beta, faster)


class BodyTangents(NamedTuple):
    """Motion of all bodies and its derivatives, in each body's frame, `[*batch, n, 6, r]`, breadth first.

    Attributes:
        V: velocity, a column.
        alpha: acceleration, a column, without gravity's -g.
        V_q: of V to tangent steps.
        alpha_q: of alpha to tangent steps.
        alpha_qd: of alpha to rates.
        J: of V to rates, and of alpha to qdd.
    """

    V: Tensor
    alpha: Tensor
    V_q: Tensor
    alpha_q: Tensor
    alpha_qd: Tensor
    J: Tensor


def body_tangents(
    state: Kinematics, tree_qdd: Tensor, bend: Bend | None, columns: Tensor
) -> BodyTangents:
    """`BodyTangents` of the tree at a state, derivatives times columns `[num_tree_dof, r]`.

    Reference: Singh, Russell, Wensing 2022.
    """
    layout, A, H = state.tree.layout, state.edge_weight, state.joint_map
    moved = joint_motions(state, tree_qdd, bend, gravity=False)
    packed = layout.dofs.pack(columns)
    V_q, beta, faster, J = (
        scatter(layout, A, spread_all(layout, own, packed))
        for own in (moved.Psi.mT, moved.beta.mT, moved.faster.mT, H)
    )
    across = motion_matrix(moved.V)
    return BodyTangents(moved.V, moved.alpha, V_q, beta - across @ V_q, faster - across @ J, J)


class MomentumTangents(NamedTuple):
    """Columns of every body's own dofs, in its frame at its origin, `[*batch, n, 6, d]`, breadth first.

    Attributes:
        momentum_q: of the momentum of all outboard bodies to steps of the joint.
        rate_q: of the rate of that momentum to steps of the joint.
        rate_qd: of the rate of that momentum to rates of the joint.
        momentum_qd: of that momentum to rates of the joint.
    """

    momentum_q: Tensor
    rate_q: Tensor
    rate_qd: Tensor
    momentum_qd: Tensor


def momentum_tangents(state: Kinematics, tree_qdd: Tensor, bend: Bend | None) -> MomentumTangents:
    """`MomentumTangents` of the tree at a state, O(N); gravity is no part of them.

    Reference: Singh, Russell, Wensing 2022 (R and Y); Orin, Goswami, Lee 2013.
    """
    layout, A, H, M = state.tree.layout, state.edge_weight, state.joint_map, state.inertia
    moved = joint_motions(state, tree_qdd, bend, gravity=False)
    p = apply_blocks(M, moved.V)
    f = apply_blocks(M, moved.alpha) + cross_force(moved.V, p)
    R = join(list(forward_diag(layout, A, M)))
    Y = join(list(forward_diag(layout, A, 2 * coriolis_inertia(M, moved.V), A)))
    turned_p, turned_f = (swapped_force_matrix(gather(layout, A, x)) @ H.mT for x in (p, f))
    return MomentumTangents(
        R @ moved.Psi + turned_p,
        R @ moved.beta + Y @ moved.Psi + turned_f,
        R @ moved.faster + Y @ H.mT,
        R @ H.mT,
    )
