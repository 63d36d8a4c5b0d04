"""Passive joint forces: losses, springs, weight compensation, fluid and the armature of free joints."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.body_momenta import compensating_forces
from torchsko.bridge.fluid_forces import fluid_force
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.joints.configuration import stretch, transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state


class PassiveForces(NamedTuple):
    """The parts of `passive_force`, each `[*batch, num_dof]` [N m or N].

    Attributes:
        damping: damping * qd, and the terms of `higher_damping`.
        friction: friction * sign(qd), smooth where `friction_speed` is not zero, and `force_offset`.
        springs: stiffness times deflection, and the terms of `higher_stiffness`.
        compensation: gravity compensation (`Mechanism.gravcomp`), negative where it lifts.
        fluid: forces of the fluid (`Mechanism.medium`), subtracted.
        armature: inertial force of the armature of free joints besides armature * qdd; without power.
    """

    damping: Tensor
    friction: Tensor
    springs: Tensor
    compensation: Tensor
    fluid: Tensor
    armature: Tensor


@verb
def passive_force(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Passive joint forces: damping, dry friction and springs, less gravity compensation and fluid forces.

    damping * qd + friction * sign(qd) + stiffness * x, with the deflection x of a spring:
    difference(spring_reference, q), of free joints the rotation vector and the translation. Where a robot has
    them, there are also the terms of `higher_damping`, `higher_stiffness` and `force_offset`. The joint
    forces of compensated weights (`Mechanism.gravcomp`) and of the fluid (`Mechanism.medium`) are subtracted.
    Dry friction is zero at rest, and its derivative is zero everywhere. Where `friction_speed` is not zero,
    tanh(qd / friction_speed) replaces sign(qd).

    The armature of a free joint is a mass at its origin, whose velocity has axes that turn. Its inertial
    force apart from armature * qdd is included as well.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]`.

    Returns:
        `[*batch, num_dof]` [N m or N]; part of `bias_force`.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: Siciliano et al. 2009, Robotics (viscous and Coulomb friction); MuJoCo documentation,
    "Computation", Passive forces (springs, compensation of weights).
    """
    check_state(mech, q=q, qd=qd)
    return passive_forces(Kinematics.of(mech, q, qd))


@verb
def passive_force_parts(mech: Mechanism, q: Tensor, qd: Tensor) -> PassiveForces:
    """The parts of `passive_force`, which is their sum.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].

    Returns:
        `PassiveForces`, each `[*batch, num_dof]` [N m or N].

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: Siciliano et al. 2009, Robotics (viscous and Coulomb friction); MuJoCo documentation,
    "Computation", Passive forces (springs, compensation of weights).
    """
    check_state(mech, q=q, qd=qd)
    state = Kinematics.of(mech, q, qd)
    found = tree_passive_forces(state)
    zero = torch.zeros_like(found["springs"])
    parts = (state.independent_forces(found.get(x, zero)) for x in PassiveForces._fields)
    return PassiveForces(*torch.broadcast_tensors(*parts))


def passive_forces(state: Kinematics) -> Tensor:
    """`passive_force` without checks of the state."""
    return state.independent_forces(reduce(add, tree_passive_forces(state).values()))


def tree_passive_forces(state: Kinematics) -> dict[str, Tensor]:
    """The parts of the passive forces on all joints of the tree; see `PassiveForces`."""
    mech, tree, q, qd = state.mech, state.tree, state.tree_q, state.tree_qd
    parts = {"damping": damping_force(mech, qd), "friction": friction_force(mech, qd)}
    parts["springs"] = spring_force(tree, q)
    if mech.has_gravcomp:
        parts["compensation"] = -compensating_forces(state)
    if mech.has_fluid:
        parts["fluid"] = -fluid_force(state)
    if mech.has_armature and (turning := transport_rate(tree, qd, qd)) is not None:
        parts["armature"] = mech.armature * turning
    return parts


def spring_force(tree: Mechanism, q: Tensor) -> Tensor:
    """Forces of springs of a mechanism without couplings, `[*batch, num_tree_dof]`."""
    deflection, x = stretch(tree, q)
    if not tree.has_higher_stiffness:
        return tree.stiffness * deflection
    squared, cubed = tree.higher_stiffness.unbind(-1)
    return (tree.stiffness + squared * x + cubed * x * x) * deflection


def spring_slope(tree: Mechanism, q: Tensor) -> Tensor:
    """Derivative of `spring_force` with respect to the deflections, `[*batch, num_tree_dof]`."""
    if not tree.has_higher_stiffness:
        return tree.stiffness
    x = stretch(tree, q)[1]
    squared, cubed = tree.higher_stiffness.unbind(-1)
    return tree.stiffness + 2 * squared * x + 3 * cubed * x * x


def friction_force(mech: Mechanism, qd: Tensor) -> Tensor:
    """Coulomb friction and constant offsets of all joints of the tree, `[*batch, num_tree_dof]`."""
    force = mech.friction * friction_direction(mech, qd)
    return force + mech.force_offset if mech.has_force_offset else force


def friction_direction(mech: Mechanism, qd: Tensor) -> Tensor:
    """Coulomb friction over its coefficient: the sign of the rate, or its tanh with `friction_speed`."""
    if not mech.has_smooth_friction:
        return torch.sign(qd)
    smooth, speed = smooth_speeds(mech)
    return torch.where(smooth, torch.tanh(qd / speed), torch.sign(qd))


def smooth_speeds(mech: Mechanism) -> tuple[Tensor, Tensor]:
    """Mask of the joints with smooth friction, and its speed, 1 for all others, `[*batch, num_tree_dof]`."""
    smooth = mech.friction_speed > 0
    return smooth, torch.where(smooth, mech.friction_speed, torch.ones_like(mech.friction_speed))


def damping_force(mech: Mechanism, qd: Tensor) -> Tensor:
    """Damping forces of all joints of the tree, `[*batch, num_tree_dof]`."""
    linear = mech.damping * qd
    if not mech.has_higher_damping:
        return linear
    squared, cubed = mech.higher_damping.unbind(-1)
    return linear + (squared * qd.abs() + cubed * qd * qd) * qd


def damping_slope(mech: Mechanism, qd: Tensor) -> Tensor:
    """Derivative of `damping_force` with respect to the rates, `[*batch, num_tree_dof]`."""
    if not mech.has_higher_damping:
        return mech.damping
    squared, cubed = mech.higher_damping.unbind(-1)
    return mech.damping + 2 * squared * qd.abs() + 3 * cubed * qd * qd
