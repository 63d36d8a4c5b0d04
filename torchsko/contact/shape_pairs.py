"""Pairs of shapes that may touch, and their contact parameters, from the shapes of a mechanism.

The rules are MuJoCo's: bit masks, excluded pairs of bodies, no pairs within a rigid body or between a body
and its parent, explicit pairs besides; parameters by priority, or mixed.

Reference: MuJoCo documentation, "Computation", Collision detection (selection) and "Contact parameters".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from torchsko.contact.collision import COLLISIONS, KINDS
from torchsko.mechanism.geometry import (
    Box,
    Capsule,
    Cylinder,
    Ellipsoid,
    Form,
    Geometry,
    Plane,
    Shape,
    Sphere,
    Surface,
)
from torchsko.mechanism.mechanism import Mechanism

INERTIAL = -1
"""Index of the inertial frame among bodies."""

MIN_FRICTION = 1e-5
"""Smallest friction coefficient (mjMINMU)."""

MIN_WEIGHT = 1e-15
"""Mixing weight below which a shape has no influence (mjMINVAL)."""


@dataclass(frozen=True)
class ShapePair:
    """Two shapes that may touch, in the order of `KINDS`.

    Attributes:
        first: index in the geometry of the mechanism.
        second: index of the other shape.
        condim: dimension of the contact force: 1, 3, 4 or 6.
        friction: two sliding, one torsional and two rolling coefficients.
        solref: reference parameters.
        solref_friction: reference parameters of friction; zeros for ``solref``.
        solimp: impedance parameters.
        margin: distance below which a contact exists [m].
        gap: part of the margin without force [m].
    """

    first: int
    second: int
    condim: int
    friction: tuple[float, ...]
    solref: tuple[float, ...]
    solref_friction: tuple[float, ...]
    solimp: tuple[float, ...]
    margin: float
    gap: float


def size_of(form: Form) -> tuple[str, tuple[float, float, float]] | None:
    """Kind and half sizes of a primitive [m]; None for other forms."""
    if isinstance(form, Plane):
        return "plane", (0.0, 0.0, 0.0)
    if isinstance(form, Sphere):
        return "sphere", (form.radius, 0.0, 0.0)
    if isinstance(form, Capsule | Cylinder):
        return type(form).__name__.lower(), (form.radius, form.length / 2, 0.0)
    if isinstance(form, Ellipsoid):
        return "ellipsoid", form.radii
    if isinstance(form, Box):
        x, y, z = form.size
        return "box", (x / 2, y / 2, z / 2)
    return None


def kind_of(form: Form) -> str:
    """Name of a form in messages."""
    primitive = size_of(form)
    return type(form).__name__.lower() if primitive is None else primitive[0]


def body_of(mech: Mechanism, frame: str | None) -> int:
    """Index of the body of a frame, or `INERTIAL`."""
    return INERTIAL if frame is None else mech.frame_body[mech.frame_index(frame)]


def shape_pairs(mech: Mechanism) -> tuple[tuple[ShapePair, ...], tuple[str, ...]]:
    """The pairs that may touch, and descriptions of pairs of unsupported kinds."""
    geometry, pairs, unsupported = mech.geometry, [], []
    for i, j, surface in _all_pairs(mech):
        first, second = geometry.shapes[i], geometry.shapes[j]
        kinds = kind_of(first.form), kind_of(second.form)
        if tuple(sorted(kinds, key=_order)) != kinds:
            i, j, kinds = j, i, kinds[::-1]
        if kinds in COLLISIONS:
            pairs.append(_pair(i, j, geometry, surface))
        elif kinds != ("plane", "plane"):
            unsupported.append(
                f"{_label(geometry, i)} ({kinds[0]}) and {_label(geometry, j)} ({kinds[1]})"
            )
    return tuple(pairs), tuple(unsupported)


def _order(kind: str) -> int:
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def _label(geometry: Geometry, k: int) -> str:
    shape = geometry.shapes[k]
    return repr(shape.name) if shape.name else f"shape {k} of {shape.frame or 'the inertial frame'}"


def _all_pairs(mech: Mechanism) -> Iterator[tuple[int, int, Surface | None]]:
    """Indices of two shapes, and the parameters of an explicit pair."""
    geometry = mech.geometry
    explicit = {(pair.first, pair.second) for pair in geometry.pairs}
    for pair in geometry.pairs:
        yield pair.first, pair.second, pair.surface
    bodies = [body_of(mech, shape.frame) for shape in geometry.shapes]
    excluded = {frozenset(pair) for pair in geometry.excluded}
    parents = mech.parents
    solid = [
        k
        for k, shape in enumerate(geometry.shapes)
        if shape.collision
        and (shape.surface is None or shape.surface.contype or shape.surface.conaffinity)
    ]
    for i, j in combinations(solid, 2):
        first, second = geometry.shapes[i], geometry.shapes[j]
        if (i, j) in explicit or (j, i) in explicit or bodies[i] == bodies[j]:
            continue
        if frozenset((first.frame, second.frame)) in excluded or not _masks_match(first, second):
            continue
        a, b = bodies[i], bodies[j]
        if INERTIAL not in (a, b) and (parents[a] == b or parents[b] == a):
            continue
        yield i, j, None


def _masks_match(first: Shape, second: Shape) -> bool:
    a, b = first.surface or Surface(), second.surface or Surface()
    return bool(a.contype & b.conaffinity or b.contype & a.conaffinity)


def _pair(i: int, j: int, geometry: Geometry, explicit: Surface | None) -> ShapePair:
    if explicit is not None:
        sliding, torsional, rolling = explicit.friction
        return ShapePair(
            i, j, explicit.condim,
            explicit.friction_pair or (sliding, sliding, torsional, rolling, rolling),
            explicit.solref, explicit.solref_friction, explicit.solimp, explicit.margin, explicit.gap,
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
    margin, gap = a.margin + b.margin, a.gap + b.gap
    coefficients = (sliding, sliding, torsional, rolling, rolling)
    return ShapePair(i, j, condim, coefficients, solref, (0.0, 0.0), solimp, margin, gap)


def _mixing_weight(first: float, second: float) -> float:
    """Weight of the first of two shapes."""
    if first >= MIN_WEIGHT and second >= MIN_WEIGHT:
        return first / (first + second)
    if first < MIN_WEIGHT and second < MIN_WEIGHT:
        return 0.5
    return 0.0 if first < MIN_WEIGHT else 1.0


def _mix(first: Sequence[float], second: Sequence[float], weight: float) -> tuple[float, ...]:
    return tuple(weight * x + (1 - weight) * y for x, y in zip(first, second, strict=True))
