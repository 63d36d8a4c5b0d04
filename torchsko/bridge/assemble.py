r"""The bridge: a mechanism at a state becomes an SKO model.

In body frames, with R taking child to parent coordinates and r the child origin in the parent,

.. math::
    A(p,k) = \begin{bmatrix} R & \tilde r R \\ 0 & R \end{bmatrix}, \quad
    a(k) = \dot H^* \dot q + V(k) \times_m H^* \dot q, \quad b(k) = V(k) \times_f M V(k) - f_{ext}(k).

Gravity enters as the acceleration -g of the inertial frame: A*(0,k) [0; -g] is added to a(k) of the base
bodies.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, section 2.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchsko.algebra.operators.hinge import apply_blocks
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.transforms.embedding import embedded
from torchsko.bridge.body_momenta import body_inertias, compensated_inertias
from torchsko.bridge.body_motion import body_velocities, edge_weights, gravity_accel, joint_maps
from torchsko.mechanism.coordinates import tree_q, tree_rates, uncoupled
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.spatial.motion import cross_force
from torchsko.utils.shapes import gather_entries


@verb
def assemble(
    mech: Mechanism, q: Tensor, qd: Tensor | None = None, f_ext: Tensor | None = None
) -> SKOModel:
    """The SKO model of a mechanism at a state.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]`; at rest when left out.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body's frame at its origin,
            [moment; force] [N m, N].

    Returns:
        The model (tree, H, A, M, a, b), with the armature; passive joint forces (damping, friction,
        springs) are no part of it: see `torchsko.passive_force`.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: Jain 2011, Part II, section 2 (SKO models).
    """
    check_state(mech, q=q, f_ext=f_ext, **({} if qd is None else {"qd": qd}))
    return model_at(mech, q, qd, f_ext)


def model_at(
    mech: Mechanism, q: Tensor, qd: Tensor | None = None, f_ext: Tensor | None = None
) -> SKOModel:
    """`assemble` at a state that is known to fit."""
    q, tree = tree_q(mech, q), uncoupled(mech)
    rates = None if qd is None else tree_rates(mech, q, qd)
    return coupled(mech, _tree_model(tree, q, rates, f_ext), q, rates)


def lifted_model(mech: Mechanism, q: Tensor) -> SKOModel:
    """The model of the masses whose weights are compensated, each in a point."""
    return replace(model_at(mech, q), inertia=compensated_inertias(mech))


def coupled(mech: Mechanism, model: SKOModel, q: Tensor, qd: Tensor | None) -> SKOModel:
    """The model of a mechanism from that of its tree, at a state of the tree."""
    if (closing := mech.closing) is not None:
        tree = uncoupled(mech)
        X = closing.tree_matrix(mech, tree, q)
        blocks = [X.index_select(-2, rows).index_select(-1, own) for rows, own in closing.blocks]
        if qd is None:
            return embedded(model, closing.plan, blocks)
        xi = closing.tree_bias(mech, tree, q, qd)
        return embedded(
            model, closing.plan, blocks, [gather_entries(xi, rows) for rows, _ in closing.blocks]
        )
    if mech.coupling is None:
        return model
    return embedded(model, mech.coupling.plan, mech.coupling.matrices(mech.coupling_ratio))


def _tree_model(mech: Mechanism, q: Tensor, qd: Tensor | None, f_ext: Tensor | None) -> SKOModel:
    layout = mech.layout
    edge_weight = edge_weights(mech, q)
    H = joint_maps(mech, q)
    M = body_inertias(mech)
    base = gravity_accel(mech, edge_weight)
    if qd is None:
        coriolis, gyro = torch.zeros_like(M[..., :1]), torch.zeros_like(M[..., :1])
    else:
        V, coriolis = body_velocities(mech, edge_weight, H, q, qd)
        gyro = cross_force(V, apply_blocks(M, V))
    if f_ext is not None:
        gyro = gyro - layout.breadth_first(f_ext, -2)[..., None]
    armature = layout.dofs.pack(mech.armature[..., None]) if mech.has_armature else None
    return SKOModel(
        layout,
        edge_weight,
        H,
        M,
        coriolis + base,
        gyro,
        armature=armature,
        straight=straight_rows(mech, H),
        aligned=aligned_joints(mech),
    )


def straight_rows(mech: Mechanism, joint_map: Tensor) -> Tensor:
    """H of the joints where its rows are orthonormal, zero at others, `[*batch, n, d, 6]`."""
    if mech.joints.orthonormal:
        return joint_map
    parts = [
        mech.axis.new_full((group.bodies.shape[0], 1, 1), float(group.kind.orthonormal))
        for group in mech.joints.groups
    ]
    return joint_map * mech.joints.nodes(parts, -3)


def aligned_joints(mech: Mechanism) -> tuple[bool, ...]:
    """For each joint, whether the rows that `straight_rows` gives are unit vectors, or zero."""
    return tuple(
        not kind.orthonormal or (kind.unit_rows and (mech.aligned or not kind.has_axis))
        for kind in mech.joints.kinds
    )
