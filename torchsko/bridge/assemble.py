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

from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.transforms.embedding import embedded
from torchsko.bridge.body_inertia import compensated_inertias
from torchsko.bridge.body_momenta import gyroscopic_force
from torchsko.bridge.joint_motion import gravity_accel
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.utils.shapes import gather_entries


@verb
def assemble(
    mech: Mechanism, q: Tensor, qd: Tensor | None = None, f_ext: Tensor | None = None
) -> SKOModel:
    """The SKO model of a mechanism at a state.

    Args:
        qd: velocity, `[*batch, num_dof]`; at rest when left out.

    Returns:
        The model (tree, H, A, M, a, b), with the armature; passive joint forces (damping, friction,
        springs) are no part of it: see `torchsko.passive_force`.

    Reference: Jain 2011, Part II, section 2 (SKO models).
    """
    check_state(mech, q=q, f_ext=f_ext, **({} if qd is None else {"qd": qd}))
    return model_at(Kinematics.of(mech, q, qd), f_ext)


def model_at(state: Kinematics, f_ext: Tensor | None = None, *, at_rest: bool = False) -> SKOModel:
    """`assemble` at a state that is known to fit; at rest, a and b are those of zero velocity."""
    still = at_rest or state.qd is None
    return coupled(state, tree_model(state, f_ext, at_rest=still), at_rest=still)


def lifted_model(state: Kinematics) -> SKOModel:
    """The model of the masses whose weights are compensated, each in a point."""
    return replace(model_at(state, at_rest=True), inertia=compensated_inertias(state.mech))


def coupled(state: Kinematics, model: SKOModel, *, at_rest: bool = False) -> SKOModel:
    """The model of a mechanism from that of its tree."""
    mech = state.mech
    if (closing := mech.closing) is not None:
        X = state.independent_to_tree
        blocks = [X.index_select(-2, rows).index_select(-1, own) for rows, own in closing.blocks]
        if at_rest:
            return embedded(model, closing.plan, blocks)
        xi = state.tree_accel_bias
        return embedded(
            model, closing.plan, blocks, [gather_entries(xi, rows) for rows, _ in closing.blocks]
        )
    if mech.coupling is None:
        return model
    return embedded(model, mech.coupling.plan, mech.coupling.matrices(mech.coupling_ratio))


def tree_model(
    state: Kinematics, f_ext: Tensor | None = None, *, at_rest: bool = False
) -> SKOModel:
    """The model of the tree, without couplings and loops."""
    tree, H, M = state.tree, state.joint_map, state.inertia
    base = gravity_accel(tree, state.edge_weight)
    if at_rest:
        coriolis, gyro = torch.zeros_like(M[..., :1]), torch.zeros_like(M[..., :1])
    else:
        V, coriolis = state.velocity, state.coriolis_accel
        gyro = gyroscopic_force(M, V)
    if f_ext is not None:
        gyro = gyro - tree.layout.breadth_first(f_ext, -2)[..., None]
    return SKOModel(
        tree.layout,
        state.edge_weight,
        H,
        M,
        coriolis + base,
        gyro,
        armature=tree.layout.dofs.pack_once(tree.armature[..., None])
        if tree.has_armature
        else None,
        straight=straight_rows(tree, H),
        aligned=aligned_joints(tree),
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
