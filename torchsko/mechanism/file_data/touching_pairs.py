"""Pairs of shapes that may touch, by MuJoCo's rules of collision filtering.

Shapes touch if one's contype has a common bit with the other's conaffinity, unless they belong to one rigid
body, to a body and its parent, or to an excluded pair of frames. Explicit pairs touch besides.

Reference: MuJoCo documentation, "Computation", Collision detection (selection).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import NamedTuple

from torchsko.mechanism.geometry import Form, Geometry, Mesh, Surface, Triangles

INERTIAL = -1
"""Index of the inertial frame among bodies."""

KINDS = ("plane", "heightfield", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")
"""Kinds of shapes in the order in which MuJoCo sorts the two shapes of a pair."""

COLLIDING_KINDS = {
    "plane": ("sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh"),
    "heightfield": ("sphere", "capsule", "box", "mesh"),
    "sphere": ("sphere", "capsule", "cylinder", "box"),
    "capsule": ("capsule", "box"),
    "box": ("box",),
}
"""Kinds of second shapes with a collision function, by the kind of the first."""

FIXED_KINDS = ("plane", "heightfield")
"""Kinds that do not collide with one another, in MuJoCo also."""


class TouchingPair(NamedTuple):
    """Two shapes that may touch, in the order of `KINDS`.

    Attributes:
        first: index of a shape.
        second: index of the other shape.
        surface: parameters of an explicit pair; None for those of the shapes.
    """

    first: int
    second: int
    surface: Surface | None


@dataclass(frozen=True)
class _ShapeClass:
    """Shapes with the same rules of filtering."""

    body: int
    frame: str | None
    contype: int
    conaffinity: int
    members: list[int] = field(default_factory=list, compare=False)


def kind_of(form: Form) -> str:
    """Kind of a shape; other names than those in `KINDS` for meshes without a convex hull."""
    if isinstance(form, Mesh):
        return "mesh file"
    if isinstance(form, Triangles):
        return "mesh" if form.hull is not None else "mesh without hull"
    return type(form).__name__.lower()


def collides(kinds: tuple[str, str]) -> bool:
    """True if two kinds, in the order of `KINDS`, have a collision function."""
    return kinds[1] in COLLIDING_KINDS.get(kinds[0], ())


class TouchingPairs:
    """The pairs of shapes of a mechanism that may touch."""

    def __init__(
        self, geometry: Geometry, bodies: Sequence[int], parents: Sequence[int],
        filter_parents: bool = True,
    ) -> None:  # fmt: skip
        """Apply the rules to all shapes.

        Args:
            geometry: shapes, explicit and excluded pairs.
            bodies: rigid body of each shape, or `INERTIAL`.
            parents: parent of each body, negative for the inertial frame.
            filter_parents: whether a body and its parent do not touch.
        """
        self.geometry = geometry
        excluded = {frozenset(pair) for pair in geometry.excluded}
        classes: dict[_ShapeClass, _ShapeClass] = {}
        for k, (shape, body) in enumerate(zip(geometry.shapes, bodies, strict=True)):
            surface = shape.surface or Surface()
            if shape.collision and (surface.contype or surface.conaffinity):
                key = _ShapeClass(body, shape.frame, surface.contype, surface.conaffinity)
                classes.setdefault(key, key).members.append(k)

        def touch(a: _ShapeClass, b: _ShapeClass) -> bool:
            if a.body == b.body or frozenset((a.frame, b.frame)) in excluded:
                return False
            related = INERTIAL not in (a.body, b.body) and (
                parents[a.body] == b.body or parents[b.body] == a.body
            )
            bits = a.contype & b.conaffinity or b.contype & a.conaffinity
            return bool(bits) and not (filter_parents and related)

        self._classes = [(a, b) for a, b in combinations(classes, 2) if touch(a, b)]

    def shapes(self) -> list[int]:
        """Indices of the shapes in any pair."""
        found = {k for pair in self._classes for a in pair for k in a.members}
        return sorted(found.union(*((p.first, p.second) for p in self.geometry.pairs)))

    def pairs(self) -> Iterator[TouchingPair]:
        """Explicit pairs, then all others in the order of the shapes, without pairs of fixed kinds."""
        found = [(pair.first, pair.second) for pair in self.geometry.pairs]
        surfaces = dict(zip(found, (pair.surface for pair in self.geometry.pairs), strict=True))
        explicit = {frozenset(pair) for pair in found}
        implied = {
            (min(i, j), max(i, j))
            for a, b in self._classes
            for i, j in product(a.members, b.members)
        }
        found += sorted(pair for pair in implied if frozenset(pair) not in explicit)
        for i, j in found:
            first, second = sorted((i, j), key=lambda k: (self._order(k), (i, j).index(k)))
            if self.kinds(first, second)[1] not in FIXED_KINDS:
                yield TouchingPair(first, second, surfaces.get((i, j)))

    def kinds(self, first: int, second: int) -> tuple[str, str]:
        """Kinds of two shapes."""
        shapes = self.geometry.shapes
        return kind_of(shapes[first].form), kind_of(shapes[second].form)

    def unsupported(self) -> tuple[str, ...]:
        """Descriptions of the pairs whose kinds have no collision function."""
        pairs = [(pair, self.kinds(pair.first, pair.second)) for pair in self.pairs()]
        return tuple(
            f"{self._label(pair.first)} ({kinds[0]}) and {self._label(pair.second)} ({kinds[1]})"
            for pair, kinds in pairs
            if not collides(kinds)
        )

    def _order(self, k: int) -> int:
        kind = kind_of(self.geometry.shapes[k].form)
        return KINDS.index(kind) if kind in KINDS else len(KINDS)

    def _label(self, k: int) -> str:
        shape = self.geometry.shapes[k]
        where = shape.frame or "the inertial frame"
        return repr(shape.name) if shape.name else f"shape {k} of {where}"
