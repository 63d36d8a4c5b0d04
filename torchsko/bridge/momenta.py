"""Momenta of the bodies of a mechanism, and the forces between them; see `torchsko.bridge.kinematics`."""

from __future__ import annotations

from torch import Tensor

from torchsko.algebra.operators.hinge import apply_blocks
from torchsko.algebra.operators.sweeps import gather
from torchsko.algebra.recursions.lyapunov import forward_diag
from torchsko.algebra.topology.gathering import join
from torchsko.bridge.kinematics import body_rates, edge_weights, joint_maps, tree_accels
from torchsko.mechanism.coordinates import all_q, all_rates, own_forces, uncoupled
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import spatial_inertia
from torchsko.spatial.motion import cross_force


def body_inertias(mech: Mechanism) -> Tensor:
    """Spatial inertia of every body in its frame, `[*batch, n, 6, 6]`, breadth first."""
    layout = mech.layout
    return spatial_inertia(
        layout.breadth_first(mech.mass, -1),
        layout.breadth_first(mech.com, -2),
        layout.breadth_first(mech.inertia, -3),
    )


def body_momenta(mech: Mechanism, q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor]:
    """V and M V of every body in its frame, `[*batch, n, 6, 1]`, breadth first."""
    V = body_rates(mech, q, qd)
    return V, apply_blocks(body_inertias(mech), V)


def composite_inertias_of(mech: Mechanism, q: Tensor) -> Tensor:
    """R of every body: its inertia with all outboard of it frozen, `[*batch, n, 6, 6]`, breadth first.

    Reference: Jain 2011, Part II, Algorithm 4.1.
    """
    q, mech = all_q(mech, q), uncoupled(mech)
    return join(list(forward_diag(mech.layout, edge_weights(mech, q), body_inertias(mech))))


def composite_momenta(mech: Mechanism, q: Tensor) -> Tensor:
    """R H* of every body: momentum per rate of its joint, all outboard of it frozen.

    Of the tree, in each body's frame at its origin: `[*batch, n, 6, d]`, breadth first, zero-padded.

    Reference: Jain 2011, Part II, Algorithm 4.1 (R).
    """
    maps = joint_maps(uncoupled(mech), all_q(mech, q))
    return composite_inertias_of(mech, q) @ maps.mT


def joint_forces(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, f_ext: Tensor | None
) -> Tensor:
    """Force through every joint, A (M alpha + b), `[*batch, n, 6, 1]`, breadth first.

    Reference: Jain 2011, Part II, Algorithm 3.1.
    """
    q, qd, qdd = all_q(mech, q), all_rates(mech, qd), all_rates(mech, qdd)
    mech = uncoupled(mech)
    A, M = edge_weights(mech, q), body_inertias(mech)
    V, alpha = tree_accels(mech, A, q, qd, qdd)
    f = apply_blocks(M, alpha) + cross_force(V, apply_blocks(M, V))
    if f_ext is not None:
        f = f - mech.layout.breadth_first(f_ext, -2)[..., None]
    return gather(mech.layout, A, f)


def joint_forces_of(mech: Mechanism, q: Tensor, f: Tensor) -> Tensor:
    """J* f: joint forces `[*batch, num_dof]` of forces on all bodies, `[*batch, n, 6, 1]`, breadth first."""
    q, tree = all_q(mech, q), uncoupled(mech)
    through = gather(tree.layout, edge_weights(tree, q), f)
    along = joint_maps(tree, q) @ through
    return own_forces(mech, tree.layout.dofs.unpack(along)[..., 0])
