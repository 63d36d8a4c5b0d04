"""Momenta of the bodies of a mechanism, and the forces between them; see `torchsko.bridge.body_motion`."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.algebra.operators.hinge import apply_blocks
from torchsko.algebra.operators.sweeps import gather, scatter
from torchsko.algebra.recursions.lyapunov import forward_diag
from torchsko.algebra.topology.gathering import join
from torchsko.bridge.body_motion import (
    body_rates,
    edge_weights,
    gravity_accel,
    joint_maps,
    tree_accels,
)
from torchsko.mechanism.coordinates import independent_forces, tree_q, tree_state, uncoupled
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import compensated_mass, inertia_of_vector, spatial_inertia
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
    q, mech = tree_q(mech, q), uncoupled(mech)
    return join(list(forward_diag(mech.layout, edge_weights(mech, q), body_inertias(mech))))


def composite_momenta(mech: Mechanism, q: Tensor) -> Tensor:
    """R H* of every body: momentum per rate of its joint, all outboard of it frozen.

    Of the tree, in each body's frame at its origin: `[*batch, n, 6, d]`, breadth first, zero-padded.

    Reference: Jain 2011, Part II, Algorithm 4.1 (R).
    """
    maps = joint_maps(uncoupled(mech), tree_q(mech, q))
    return composite_inertias_of(mech, q) @ maps.mT


def joint_forces(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, f_ext: Tensor | None
) -> Tensor:
    """Force through every joint, A (M alpha + b), `[*batch, n, 6, 1]`, breadth first.

    Reference: Jain 2011, Part II, Algorithm 3.1.
    """
    q, qd, qdd = tree_state(mech, q, qd, qdd)
    mech = uncoupled(mech)
    A, M = edge_weights(mech, q), body_inertias(mech)
    V, alpha = tree_accels(mech, A, q, qd, qdd)
    f = apply_blocks(M, alpha) + cross_force(V, apply_blocks(M, V))
    if f_ext is not None:
        f = f - mech.layout.breadth_first(f_ext, -2)[..., None]
    return gather(mech.layout, A, f)


def compensating_forces(mech: Mechanism, q: Tensor) -> Tensor:
    """Joint forces by which weights are compensated (`Mechanism.gravcomp`), `[*batch, num_dof]`."""
    q, tree = tree_q(mech, q), uncoupled(mech)
    layout, A = tree.layout, edge_weights(tree, q)
    still = scatter(layout, A, gravity_accel(tree, A))
    through = gather(layout, A, apply_blocks(compensated_inertias(tree), still))
    return independent_forces(mech, q, layout.dofs.unpack(joint_maps(tree, q) @ through)[..., 0])


def compensated_inertias(mech: Mechanism) -> Tensor:
    """Spatial inertia of the masses whose weight is compensated, each in a point; as `body_inertias`.

    Without moments of inertia: gravity, which accelerates all alike, has no use for them.
    """
    lifted, first = compensated_mass(mech.mass, mech.com, mech.gravcomp)
    both = torch.cat([lifted.expand(*first.shape[:-1], 1), first], -1)
    both = mech.layout.breadth_first(both, -2)
    return inertia_of_vector(torch.nn.functional.pad(both, (0, 6)))


def joint_forces_of(mech: Mechanism, q: Tensor, f: Tensor) -> Tensor:
    """J* f: joint forces `[*batch, num_dof]` of forces on all bodies, `[*batch, n, 6, 1]`, breadth first."""
    q, tree = tree_q(mech, q), uncoupled(mech)
    through = gather(tree.layout, edge_weights(tree, q), f)
    along = joint_maps(tree, q) @ through
    return independent_forces(mech, q, tree.layout.dofs.unpack(along)[..., 0])
