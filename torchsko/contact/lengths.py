"""Fields of `ContactModel` about lengths (joint coordinates and tendons), their limits, and equalities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from torchsko.actuators.actuators import scalar_dof
from torchsko.actuators.tendons import Tendons
from torchsko.constraints.constraint_kinds import soft_kind
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.file_data.solver_options import SOLIMP, SOLREF
from torchsko.mechanism.file_data.tendon import Tendon
from torchsko.mechanism.loops.placements import INERTIAL, Placements, closure_places
from torchsko.mechanism.mechanism import Mechanism

Number = Callable[..., Tensor]
"""Makes a tensor of the mechanism's dtype from rows and the size of a row."""


@dataclass(frozen=True)
class Lengths:
    """Lengths by index: the coordinates of joints by the dof of the tree, then the tendons.

    Attributes:
        num_dof: number of dofs of the tree.
        tendons: the tendons.
        transmission: rates of the tendons over rates of all joints, `[T, num_dof]`.
    """

    num_dof: int
    tendons: tuple[Tendon, ...]
    transmission: Tensor

    @staticmethod
    def of(mech: Mechanism) -> Lengths:
        """The lengths of a mechanism and the tendons of its file."""
        tendons = mech.file_metadata.tendons
        return Lengths(mech.num_tree_dof, tendons, Tendons.of(mech, tendons).transmission)

    def index(self, mech: Mechanism, kind: str, name: str) -> int:
        """Index of the length of a joint or, for the kind "tendon", of a tendon."""
        if kind == "tendon":
            return self.num_dof + [tendon.name for tendon in self.tendons].index(name)
        return scalar_dof(mech, name, "equality")

    def fields(self, number: Number) -> dict[str, Any]:
        """Fields of `ContactModel` about tendons."""
        return {
            "tendon_names": tuple(tendon.name for tendon in self.tendons),
            "tendon_transmission": self.transmission,
            "tendon_range": number([tendon.limits for tendon in self.tendons], 2),
            "tendon_friction": number([tendon.friction for tendon in self.tendons]),
            "tendon_armature": number([tendon.armature for tendon in self.tendons]),
            "armature_tendons": tuple(t for t, x in enumerate(self.tendons) if x.armature),
        }


class _Limit(NamedTuple):
    """Limits of one length: its coordinate, and its solver parameters."""

    q: int
    length: int
    lower: float
    upper: float
    solref: Sequence[float]
    solimp: Sequence[float]
    margin: float

    @property
    def sides(self) -> tuple[int, ...]:
        """The nearer limit, or both if both can be active."""
        return (-1, 1) if self.upper - self.lower < 2 * self.margin else (0,)


def limit_fields(mech: Mechanism, lengths: Lengths, number: Number) -> dict[str, Any]:
    """Fields of `ContactModel` about limits of joints and tendons."""
    options = mech.file_metadata.solver
    limits, balls, coupled = [], [], []
    if "limit" not in options.disabled:
        coupled = _coupled_limits(mech, len(lengths.tendons))
        own = {limit.length for limit in coupled}
        single = [limit for limit in _joint_limits(mech) if limit.length not in own]
        limits = [*single, *_tendon_limits(mech, lengths)]
        limits += [x for x in coupled if any(map(math.isfinite, (x.lower, x.upper)))]
        balls = _ball_limits(mech)
    rows = [(limit, side) for limit in limits for side in limit.sides]
    every = [limit for limit, _ in rows] + balls
    return {
        "coupled_range": number([(limit.lower, limit.upper) for limit in coupled], 2),
        "ball_q": tuple(limit.q for limit in balls),
        "ball_dof": tuple(limit.length for limit in balls),
        "ball_angle": number([limit.upper for limit in balls]),
        "limit_q": tuple(limit.q for limit, _ in rows),
        "limit_dof": tuple(limit.length for limit, _ in rows),
        "limit_side": tuple(side for _, side in rows),
        "limit_solref": number([limit.solref for limit in every], 2),
        "limit_solimp": number([limit.solimp for limit in every], 5),
        "limit_margin": number([limit.margin for limit in every]),
    }


def loss_fields(mech: Mechanism, lengths: Lengths, number: Number) -> dict[str, Any]:
    """Fields of `ContactModel` about dry friction of dofs and tendons."""
    options, found = mech.file_metadata.solver, []
    if "frictionloss" not in options.disabled:
        for dof in _all_samples(mech.friction).any(0).nonzero()[:, 0].tolist():
            solref = _entry(options.friction_solref, dof, SOLREF)
            found.append((dof, solref, _entry(options.friction_solimp, dof, SOLIMP)))
        for t, tendon in enumerate(lengths.tendons):
            if tendon.friction > 0:
                place = lengths.num_dof + t
                found.append((place, tendon.friction_solref, tendon.friction_solimp))
    return {
        "loss_dof": tuple(length for length, *_ in found),
        "loss_solref": number([solref for _, solref, _ in found], 2),
        "loss_solimp": number([solimp for *_, solimp in found], 5),
    }


def _joint_limits(mech: Mechanism) -> list[_Limit]:
    """Finite limits of coordinates of joints with as many coordinates as dofs."""
    found = []
    lower = _all_samples(mech.lower).amax(0).tolist()
    upper = _all_samples(mech.upper).amin(0).tolist()
    for k in mech.independent_joints:
        kind, name = mech.joints.kinds[k], mech.tree_joint_names[k]
        if kind.vector:
            first = mech.q_slice(name).start, mech.tree_dof_slice(name).start
            place = mech.tree_q_slice(name).start
            for i in range(kind.num_q):
                ends = lower[first[0] + i], upper[first[0] + i]
                if any(map(math.isfinite, ends)):
                    parameters = _limit_parameters(mech, place + i)
                    found.append(_Limit(first[0] + i, first[1] + i, *ends, *parameters))
    return found


def _coupled_limits(mech: Mechanism, num_tendons: int) -> list[_Limit]:
    """Limits of the file of joints that follow others and of those that they follow, unless replaced."""
    ranges, found = mech.file_metadata.solver.limit_range, []
    coupling = mech.coupling
    if coupling is None or not ranges or {"lower", "upper"} & {*mech.replaced}:
        return []
    for k in sorted({*coupling.dependent, *(j for row in coupling.followed for j in row)}):
        name = mech.tree_joint_names[k]
        place, dof = mech.tree_q_slice(name).start, mech.tree_dof_slice(name).start
        index = mech.num_q + num_tendons + len(found)
        lower, upper = ranges[place]
        found.append(_Limit(index, dof, lower, upper, *_limit_parameters(mech, place)))
    return found


def _ball_limits(mech: Mechanism) -> list[_Limit]:
    """Largest rotations of ball joints."""
    angles, found = mech.file_metadata.solver.limit_angle, []
    for k in mech.independent_joints if angles else ():
        name = mech.tree_joint_names[k]
        place = mech.tree_q_slice(name).start
        if math.isfinite(angles[place]):
            dof = mech.tree_dof_slice(name).start
            ends = -math.inf, angles[place]
            found.append(_Limit(place, dof, *ends, *_limit_parameters(mech, place)))
    return found


def _tendon_limits(mech: Mechanism, lengths: Lengths) -> list[_Limit]:
    return [
        _Limit(
            mech.num_q + t, lengths.num_dof + t, *tendon.limits,
            tendon.limit_solref, tendon.limit_solimp, tendon.margin,
        )
        for t, tendon in enumerate(lengths.tendons)
        if any(map(math.isfinite, tendon.limits))
    ]  # fmt: skip


def _limit_parameters(
    mech: Mechanism, coordinate: int
) -> tuple[Sequence[float], Sequence[float], float]:
    """Reference and impedance parameters and the margin of a coordinate of the tree."""
    options = mech.file_metadata.solver
    return (
        _entry(options.limit_solref, coordinate, SOLREF),
        _entry(options.limit_solimp, coordinate, SOLIMP),
        _entry(options.limit_margin, coordinate, 0.0),
    )


def _all_samples(x: Tensor) -> Tensor:
    """Entries of all samples, `[*batch, n]` to `[samples, n]`."""
    return x.reshape(-1, x.shape[-1])


def _entry(values: Sequence[Any], k: int, default: Any) -> Any:
    return values[k] if values else default


def equality_fields(
    mech: Mechanism, lengths: Lengths, number: Number
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Fields of `ContactModel` about equalities, and closures of kinds without rows."""
    closures = [c for c in mech.closures if c.method != "embed" or mech.closing is None]
    if "equality" in mech.file_metadata.solver.disabled:
        closures = []
    kinds = [(c, kind) for c in closures if (kind := soft_kind(c.kind)) is not None]
    known, rows = [c for c, _ in kinds], [kind for _, kind in kinds]
    size = max((len(kind.parameters) for kind in rows), default=0)
    # Equalities between lengths have placements too, which their rows do not read.
    places = [place for c in known for place in closure_places(mech, c)]
    placed = Placements.of(mech, places)
    values: dict[str, Any] = {
        "equality_names": tuple(c.name for c in known),
        "equality_kinds": tuple(kind.name for kind in rows),
        "equality_ends": tuple(_ends(mech, lengths, c) for c in known),
        "equality_rotation": placed.rotation.unflatten(-3, (-1, 2)),
        "equality_position": placed.position.unflatten(-2, (-1, 2)),
        "equality_numbers": number([_padded(c.numbers(kind), size) for c, kind in kinds], size),
        "equality_solref": number([c.solref or SOLREF for c in known], 2),
        "equality_solimp": number([c.solimp or SOLIMP for c in known], 5),
        "equality_active": number([float(c.active) for c in known]),
    }
    unknown = tuple(f"closure {c.name!r} ({c.kind})" for c in closures if c not in known)
    return values, unknown


def _padded(numbers: tuple[float, ...], size: int) -> tuple[float, ...]:
    return (*numbers, *(0.0,) * (size - len(numbers)))


def _ends(mech: Mechanism, lengths: Lengths, closure: Closure) -> tuple[int, int]:
    """Both lengths, or both bodies with num_bodies for the inertial frame."""
    if closure.joints:
        one, two = (lengths.index(mech, closure.kind, name) for name in closure.joints)
        return one, two
    bodies = [place.body(mech) for place in closure_places(mech, closure)]
    one, two = (mech.num_bodies if b == INERTIAL else b for b in bodies)
    return one, two
