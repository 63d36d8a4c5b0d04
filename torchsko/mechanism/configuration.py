"""Configurations on their manifold: integrate, difference, brackets, limits and random sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.mechanism.coordinates import (
    closed_matrix,
    independent_q,
    independent_rates,
    scatter_dofs,
    tree_q,
    tree_rates,
    tree_state,
)
from torchsko.mechanism.data import MechanismData, uncoupled
from torchsko.mechanism.loops.embedded_loops import add_tree_step
from torchsko.mechanism.retraction import close_dependent


def add_step(mech: MechanismData, q: Tensor, step: Tensor) -> Tensor:
    """`integrate` without checks of shapes."""
    if mech.closing is not None:
        q = tree_q(mech, q)
        moved = add_tree_step(mech.joints, q, tree_rates(mech, closed_matrix(mech, q), step))
        return independent_q(mech, close_dependent(mech, moved, moves=True))
    if mech.coupling is not None:
        q = tree_q(mech, q)
        return independent_q(mech, add_step(uncoupled(mech), q, tree_rates(mech, None, step)))
    return add_tree_step(mech.joints, q, step)


def subtract(mech: MechanismData, start: Tensor, end: Tensor) -> Tensor:
    """`difference` without checks of shapes."""
    if mech.coupling is not None or mech.closing is not None:
        return independent_rates(
            mech, subtract(uncoupled(mech), tree_q(mech, start), tree_q(mech, end))
        )
    parts = [
        group.kind.difference(group.coordinates(start), group.coordinates(end))
        for group in mech.joints.groups
    ]
    return mech.joints.vector(parts, mech.joints.dof_place)


def stretch(mech: MechanismData, q: Tensor) -> tuple[Tensor, Tensor]:
    """Deflections of springs in the rates of all joints and the numbers in which they are polynomials.

    Args:
        mech: without couplings.
        q: configuration of the tree, `[*batch, num_tree_q]`.

    Returns:
        See `JointType.stretch` and `JointType.deflection`, each `[*batch, num_tree_dof]`.
    """
    groups, joints = mech.joints.groups, mech.joints
    parts = [
        group.kind.stretch(group.coordinates(mech.spring_reference), group.coordinates(q))
        for group in groups
    ]
    found = joints.vector(parts, joints.dof_place)
    if all(group.kind.vector for group in groups):
        return found, found
    numbers = [group.kind.deflection(x) for group, x in zip(groups, parts, strict=True)]
    return found, joints.vector(numbers, joints.dof_place)


def bracket(mech: MechanismData, u: Tensor, v: Tensor) -> Tensor:
    """Lie bracket of two tangent vectors `[*batch, num_dof]` for each joint; zero on vector spaces."""
    if mech.coupling is not None or mech.closing is not None:
        u, v = (scatter_dofs(mech, x) for x in (u, v))
        return independent_rates(mech, bracket(uncoupled(mech), u, v))
    parts = [group.kind.bracket(group.rates(u), group.rates(v)) for group in mech.joints.groups]
    return mech.joints.vector(parts, mech.joints.dof_place)


def advance(
    mech: MechanismData, q: Tensor, qd: Tensor, qdd: Tensor, dt: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Semi-implicit Euler step: the next q and qd.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]`.
        qdd: acceleration over the step, `[*batch, num_dof]`.
        dt: time step [s], a number or a tensor that broadcasts with qd.
    """
    if mech.coupling is not None or mech.closing is not None:
        q, qd = advance(uncoupled(mech), *tree_state(mech, q, qd, qdd), dt)
        q = q if mech.closing is None else close_dependent(mech, q, moves=True)
        return independent_q(mech, q), independent_rates(mech, qd)
    if all(group.kind.has_default_advance for group in mech.joints.groups):
        qd = qd + dt * qdd
        plain = all(group.kind.vector for group in mech.joints.groups)
        return q + dt * qd if plain else add_step(mech, q, dt * qd), qd
    dt = dt[..., None] if isinstance(dt, Tensor) else dt
    parts = [
        group.kind.advance(group.coordinates(q), group.rates(qd), group.rates(qdd), dt)
        for group in mech.joints.groups
    ]
    after, rates = zip(*parts, strict=True)
    joints = mech.joints
    return joints.vector(list(after), joints.q_place), joints.vector(list(rates), joints.dof_place)


def transport_rate(mech: MechanismData, qd: Tensor, x: Tensor) -> Tensor | None:
    """Transport term of rates x `[*batch, num_dof]`, see `JointType.transport_rate`; None if zero."""
    if not any(group.kind.has_moving_axes for group in mech.joints.groups):
        return None
    qd, x = scatter_dofs(mech, qd), scatter_dofs(mech, x)
    parts = [
        group.kind.transport_rate(group.rates(qd), group.rates(x)) for group in mech.joints.groups
    ]
    return independent_rates(mech, mech.joints.vector(parts, mech.joints.dof_place))


def transport(mech: MechanismData, step: Tensor, x: Tensor) -> Tensor:
    """Rates x `[*batch, num_dof]`, constant in the joint frames' axes, re-expressed after a tangent step."""
    step, x = scatter_dofs(mech, step), scatter_dofs(mech, x)
    parts = [
        group.kind.transport(group.rates(step), group.rates(x)) for group in mech.joints.groups
    ]
    return independent_rates(mech, mech.joints.vector(parts, mech.joints.dof_place))


def within_limits(mech: MechanismData, q: Tensor) -> Tensor:
    """The nearest configuration between `lower` and `upper`, which bound joints with vector coordinates."""
    kinds = [mech.joints.kinds[k] for k in mech.independent_joints]
    flat = [kind.vector for kind in kinds for _ in range(kind.num_q)]
    inside = torch.minimum(torch.maximum(q, mech.lower), mech.upper)
    return inside if all(flat) else torch.where(torch.tensor(flat, device=q.device), inside, q)


def neutral_configuration(mech: MechanismData) -> Tensor:
    """Neutral coordinates of all independent joints, `[num_q]`."""
    kinds = mech.joints.kinds
    values = [x for k in mech.independent_joints for x in kinds[k].neutral()]
    values = values if mech.closing is None else mech.closing.reference
    return torch.tensor(values, dtype=mech.dtype, device=mech.device)


def initial_configuration(mech: MechanismData) -> Tensor:
    """See `Mechanism.initial`."""
    initial = mech.file_metadata.initial
    # A copy: users may change it in place.
    return neutral_configuration(mech) if initial is None else initial.clone()
