"""Passive joint forces: losses, springs, weight compensation, fluid and the armature of free joints."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.passive.armature import Armature
from torchsko.verbs.passive.compensation import Compensation
from torchsko.verbs.passive.damping import Damping
from torchsko.verbs.passive.fluid import Fluid
from torchsko.verbs.passive.friction import Friction
from torchsko.verbs.passive.springs import Springs
from torchsko.verbs.passive.term import PassiveTerm

TERMS: tuple[PassiveTerm, ...] = (
    Damping(),
    Friction(),
    Springs(),
    Compensation(),
    Fluid(),
    Armature(),
)
"""Passive forces of joints, in the order of `PassiveForces`."""


class PassiveForces(NamedTuple):
    """The parts of `passive_force`, each `[*batch, num_dof]` [N m or N].

    Attributes:
        damping: damping * qd, and the terms of `higher_damping` and `modal_damping`.
        friction: friction * sign(qd), smooth where `friction_speed` is not zero, and `force_offset`.
        springs: stiffness times deflection, and the terms of `higher_stiffness` and `modal_stiffness`.
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

    Returns:
        `[*batch, num_dof]` [N m or N]; part of `bias_force`.

    Reference: Siciliano et al. 2009, Robotics (viscous and Coulomb friction); MuJoCo documentation,
    "Computation", Passive forces (springs, compensation of weights).
    """
    return passive_forces(Kinematics.of(mech, q, qd))


@verb
def passive_force_parts(mech: Mechanism, q: Tensor, qd: Tensor) -> PassiveForces:
    """The parts of `passive_force`, which is their sum.

    Returns:
        `PassiveForces`, each `[*batch, num_dof]` [N m or N].

    Reference: Siciliano et al. 2009, Robotics (viscous and Coulomb friction); MuJoCo documentation,
    "Computation", Passive forces (springs, compensation of weights).
    """
    state = Kinematics.of(mech, q, qd)
    found = _tree_forces(state)
    zero = torch.zeros_like(found["springs"])
    parts = (state.independent_forces(found.get(x, zero)) for x in PassiveForces._fields)
    return PassiveForces(*torch.broadcast_tensors(*parts))


def passive_forces(state: Kinematics, *, dry_friction: bool = True) -> Tensor:
    """`passive_force` without checks of the state, perhaps without dry friction."""
    forces = _tree_forces(state) if dry_friction else _forces_without_dry_friction(state)
    return state.independent_forces(reduce(add, forces.values()))


def acting_terms(mech: Mechanism) -> list[PassiveTerm]:
    """The terms that a mechanism has."""
    return [term for term in TERMS if term.acts(mech)]


def _tree_forces(state: Kinematics) -> dict[str, Tensor]:
    """The parts on all joints of the tree, by their names."""
    return {term.name: term.force(state) for term in acting_terms(state.mech)}


def _forces_without_dry_friction(state: Kinematics) -> dict[str, Tensor]:
    """The parts on all joints of the tree; of friction the constant offsets."""
    terms = [term for term in acting_terms(state.mech) if not isinstance(term, Friction)]
    forces = {term.name: term.force(state) for term in terms}
    if state.mech.has_force_offset:
        forces[Friction.name] = state.mech.force_offset
    return forces
