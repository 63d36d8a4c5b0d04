"""Contact parameters of the pairs of shapes of a mechanism that may touch: by priority, or mixed.

Reference: MuJoCo documentation, "Computation", Contact parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchsko.mechanism.file_data.touching_pairs import INERTIAL, TouchingPairs
from torchsko.mechanism.geometry import Geometry, Surface
from torchsko.mechanism.mechanism import Mechanism

MIN_FRICTION = 1e-5
"""Smallest friction coefficient (mjMINMU)."""

MIN_WEIGHT = 1e-15
"""Mixing weight below which a shape has no influence (mjMINVAL)."""


@dataclass(frozen=True)
class ShapePair:
    """Two shapes that may touch, in the order of their kinds.

    Attributes:
        first: index in the geometry of the mechanism.
        second: index of the other shape.
        condim: dimension of the contact force: 1, 3, 4 or 6.
        friction: two sliding, one torsional and two rolling coefficients.
        solref: reference parameters.
        solref_friction: reference parameters of friction; zeros for ``solref``.
        solimp: impedance parameters.
        margin: distance below which a contact exerts force [m].
    """

    first: int
    second: int
    condim: int
    friction: tuple[float, ...]
    solref: tuple[float, ...]
    solref_friction: tuple[float, ...]
    solimp: tuple[float, ...]
    margin: float


def body_of(mech: Mechanism, frame: str | None) -> int:
    """Index of the body of a frame, or `INERTIAL`."""
    return INERTIAL if frame is None else mech.frame_body[mech.frame_index(frame)]


def shape_pairs(mech: Mechanism) -> tuple[tuple[ShapePair, ...], tuple[str, ...]]:
    """The pairs that may touch, and descriptions of pairs of unsupported kinds."""
    geometry = mech.geometry
    bodies = [body_of(mech, shape.frame) for shape in geometry.shapes]
    filtered = "filterparent" not in mech.file_metadata.solver.disabled
    touching = TouchingPairs(geometry, bodies, mech.parents, filtered)
    pairs = tuple(
        _pair(pair.first, pair.second, geometry, pair.surface)
        for pair in touching.pairs(colliding=True)
    )
    return pairs, touching.unsupported()


def _pair(i: int, j: int, geometry: Geometry, explicit: Surface | None) -> ShapePair:
    if explicit is not None:
        sliding, torsional, rolling = explicit.friction
        return ShapePair(
            i, j, explicit.condim,
            explicit.friction_pair or (sliding, sliding, torsional, rolling, rolling),
            explicit.solref, explicit.solref_friction, explicit.solimp, explicit.margin,
        )  # fmt: skip
    a, b = (geometry.shapes[k].surface or Surface() for k in (i, j))
    if a.priority != b.priority:
        main = a if a.priority > b.priority else b
        condim, solref, solimp, friction = main.condim, main.solref, main.solimp, main.friction
    else:
        weight = _mixing_weight(a.solmix, b.solmix)
        condim = max(a.condim, b.condim)
        friction = tuple(map(max, a.friction, b.friction))
        mixed = a.solref[0] > 0 and b.solref[0] > 0
        solref = _mix(a.solref, b.solref, weight) if mixed else tuple(map(min, a.solref, b.solref))
        solimp = _mix(a.solimp, b.solimp, weight)
    sliding, torsional, rolling = (max(MIN_FRICTION, x) for x in friction)
    coefficients = (sliding, sliding, torsional, rolling, rolling)
    return ShapePair(i, j, condim, coefficients, solref, (0.0, 0.0), solimp, a.margin + b.margin)


def _mixing_weight(first: float, second: float) -> float:
    """Weight of the first of two shapes."""
    if first >= MIN_WEIGHT and second >= MIN_WEIGHT:
        return first / (first + second)
    if first < MIN_WEIGHT and second < MIN_WEIGHT:
        return 0.5
    return 0.0 if first < MIN_WEIGHT else 1.0


def _mix(first: Sequence[float], second: Sequence[float], weight: float) -> tuple[float, ...]:
    return tuple(weight * x + (1 - weight) * y for x, y in zip(first, second, strict=True))
