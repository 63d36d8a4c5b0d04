"""Momenta of the bodies of a mechanism at a state, and the forces between them, breadth first."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.algebra.operators.hinge import apply_blocks
from torchsko.algebra.operators.sweeps import gather, scatter
from torchsko.algebra.recursions.lyapunov import forward_diag
from torchsko.algebra.topology.gathering import join
from torchsko.bridge.body_inertia import compensated_inertias
from torchsko.bridge.body_motion import body_accels, body_rates
from torchsko.bridge.joint_motion import gravity_accel
from torchsko.bridge.kinematics import Kinematics
from torchsko.spatial.rotation import cross


def body_momenta(state: Kinematics) -> tuple[Tensor, Tensor]:
    """V and M V of every body in its frame, `[*batch, n, 6, 1]`."""
    V = body_rates(state)
    return V, apply_blocks(state.inertia, V)


def composite_inertias_of(state: Kinematics) -> Tensor:
    """R of every body: its inertia with all outboard of it frozen, `[*batch, n, 6, 6]`.

    Reference: Jain 2011, Part II, Algorithm 4.1.
    """
    return join(list(forward_diag(state.tree.layout, state.edge_weight, state.inertia)))


def composite_momenta(state: Kinematics) -> Tensor:
    """R H* of every body: momentum per rate of its joint, all outboard of it frozen.

    Of the tree, in each body's frame at its origin: `[*batch, n, 6, d]`, zero-padded.

    Reference: Jain 2011, Part II, Algorithm 4.1 (R).
    """
    return composite_inertias_of(state) @ state.joint_map.mT


def gyroscopic_force(M: Tensor, V: Tensor) -> Tensor:
    """V x_f M V, `[*, n, 6, 1]`; of the momentum p, v x p is that of its part due to rotation."""
    w, v = V.split(3, -2)
    by_rotation = apply_blocks(M[..., :3], w)[..., 0]
    p = by_rotation + apply_blocks(M[..., 3:], v)[..., 0]
    moment, force = cross(w.mT, p.unflatten(-1, (2, 3))).unbind(-2)
    return torch.cat([moment + cross(v[..., 0], by_rotation[..., 3:]), force], -1)[..., None]


def joint_forces(state: Kinematics, qdd: Tensor, f_ext: Tensor | None) -> Tensor:
    """Force through every joint, A (M alpha + b), `[*batch, n, 6, 1]`.

    Reference: Jain 2011, Part II, Algorithm 3.1.
    """
    layout, M = state.tree.layout, state.inertia
    V, alpha = body_accels(state, qdd)
    f = apply_blocks(M, alpha) + gyroscopic_force(M, V)
    if f_ext is not None:
        f = f - layout.breadth_first(f_ext, -2)[..., None]
    return gather(layout, state.edge_weight, f)


def compensating_forces(state: Kinematics) -> Tensor:
    """Joint forces by which weights are compensated (`Mechanism.gravcomp`), `[*batch, num_tree_dof]`."""
    layout, A = state.tree.layout, state.edge_weight
    still = scatter(layout, A, gravity_accel(state.tree, A))
    return tree_forces_of(state, apply_blocks(compensated_inertias(state.mech), still))


def tree_forces_of(state: Kinematics, f: Tensor) -> Tensor:
    """J* f: forces on all joints of the tree, `[*batch, num_tree_dof]`.

    Args:
        state: the mechanism at a state.
        f: forces on all bodies, `[*batch, n, 6, 1]`.
    """
    layout = state.tree.layout
    through = gather(layout, state.edge_weight, f)
    return layout.dofs.collect(state.joint_map @ through)[..., 0]
