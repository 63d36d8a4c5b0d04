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

from torchsko.mechanism.geometry import Geometry, Surface
from torchsko.shapes.registry import FIXED_KINDS, KINDS, collides

INERTIAL = -1
"""Index of the inertial frame among bodies."""


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
    kind: str
    members: list[int] = field(default_factory=list, compare=False)


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
                key = _ShapeClass(
                    body, shape.frame, surface.contype, surface.conaffinity, shape.form.contact_kind
                )
                classes.setdefault(key, key).members.append(k)

        def touch(a: _ShapeClass, b: _ShapeClass) -> bool:
            if not (a.contype & b.conaffinity or b.contype & a.conaffinity) or a.body == b.body:
                return False
            if INERTIAL not in (a.body, b.body) and filter_parents:
                if parents[a.body] == b.body or parents[b.body] == a.body:
                    return False
            return not excluded or frozenset((a.frame, b.frame)) not in excluded

        self._classes = [(a, b) for a, b in combinations(classes, 2) if touch(a, b)]

    def shapes(self) -> list[int]:
        """Indices of the shapes in any pair."""
        found = {k for pair in self._classes for a in pair for k in a.members}
        return sorted(found.union(*((p.first, p.second) for p in self.geometry.pairs)))

    def pairs(self, colliding: bool) -> Iterator[TouchingPair]:
        """Explicit pairs, then all others in the order of the shapes.

        Args:
            colliding: True for pairs with a collision function; False for others, except for those of fixed
                kinds.
        """
        found = [(pair.first, pair.second) for pair in self.geometry.pairs]
        surfaces = dict(zip(found, (pair.surface for pair in self.geometry.pairs), strict=True))
        explicit = {frozenset(pair) for pair in found}
        implied = {
            (min(i, j), max(i, j))
            for a, b in self._classes
            if collides(a.kind, b.kind) == colliding
            for i, j in product(a.members, b.members)
        }
        found += sorted(pair for pair in implied if frozenset(pair) not in explicit)
        for i, j in found:
            first, second = sorted((i, j), key=lambda k: (_order(self.kind(k)), (i, j).index(k)))
            kinds = self.kind(first), self.kind(second)
            if collides(*kinds) == colliding and kinds[1] not in FIXED_KINDS:
                yield TouchingPair(first, second, surfaces.get((i, j)))

    def kind(self, k: int) -> str:
        """Kind of a shape."""
        return self.geometry.shapes[k].form.contact_kind

    def unsupported(self) -> tuple[str, ...]:
        """Descriptions of the pairs whose kinds have no collision function."""
        return tuple(
            f"{self._label(pair.first)} ({self.kind(pair.first)}) and "
            f"{self._label(pair.second)} ({self.kind(pair.second)})"
            for pair in self.pairs(colliding=False)
        )

    def _label(self, k: int) -> str:
        shape = self.geometry.shapes[k]
        where = shape.frame or "the inertial frame"
        return repr(shape.name) if shape.name else f"shape {k} of {where}"


def _order(kind: str) -> int:
    return KINDS.index(kind) if kind in KINDS else len(KINDS)
