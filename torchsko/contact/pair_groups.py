"""Groups of pairs of shapes that one collision function computes together, and their numbers of contacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.contact.shape_pairs import ShapePair
from torchsko.errors import MechanismError, unknown_name
from torchsko.shapes.candidate_points import ConvexHull, Hull, Placed
from torchsko.shapes.registry import COLLISIONS, KINDS

NO_DATA = -1
"""Number of the mesh or height field of a pair without one."""


@dataclass(frozen=True)
class PairGroup:
    """Pairs of the same kinds of shapes, of one mesh or height field at most.

    Attributes:
        kinds: of the two shapes.
        max_contacts: largest number of contacts of each pair.
        hull: index of the mesh among ``ContactModel.hulls``, or `NO_DATA`.
        field: index of the height field among ``ContactModel.heights``, or `NO_DATA`.
        pairs: indices of the pairs.
        first: indices of their first shapes.
        second: indices of their second shapes.
    """

    kinds: tuple[str, str]
    max_contacts: int
    hull: int
    field: int
    pairs: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]

    def num_points(self, hulls: Sequence[ConvexHull], heights: Tensor) -> int:
        """Number of contact points of each pair, by one evaluation of the function of its kinds."""
        one = two = Placed(torch.eye(3)[None], torch.zeros(1, 3), torch.ones(1, 3))
        if self.field != NO_DATA:
            one = one._replace(heights=torch.zeros(heights.shape[-2:]))
        if self.hull != NO_DATA:
            hull = hulls[self.hull]
            vertices = torch.zeros(hull.vertices[-1] + 1 - hull.vertices[0], 3)
            two = two._replace(hull=Hull(vertices, hull))
        found = COLLISIONS[self.kinds].points(one, two)
        return min(self.max_contacts, found.distance.shape[-1])


def max_contacts_of(
    pairs: Sequence[tuple[int, int]], names: Sequence[str], kinds: Sequence[str],
    asked: int | Mapping[tuple[str, str], int] | None,
) -> list[int]:  # fmt: skip
    """Largest number of contacts of each pair."""
    found = [COLLISIONS[kinds[i], kinds[j]].max_contacts for i, j in pairs]
    if asked is None:
        return found
    by_names = {frozenset((names[i], names[j])): k for k, (i, j) in enumerate(pairs)}
    if not isinstance(asked, Mapping):
        asked = {(names[i], names[j]): asked for i, j in pairs}
    for pair, most in asked.items():
        if frozenset(pair) not in by_names:
            known = [" and ".join(sorted(x)) for x in by_names]
            raise MechanismError(
                *unknown_name("pair of shapes that may touch", " and ".join(sorted(pair)), known)
            )
        if most < 1:
            raise MechanismError(
                f"max_contacts of the pair {pair} is {most}.",
                "A pair has at least one contact.",
                "Pass a positive number; contype, conaffinity or an exclude element select pairs.",
            )
        found[by_names[frozenset(pair)]] = most
    return found


def group_pairs(
    pairs: Sequence[ShapePair], place: dict[int, int], kinds: Sequence[str], most: Sequence[int],
    meshes: dict[int, int], fields: dict[int, int],
) -> tuple[PairGroup, ...]:  # fmt: skip
    """Groups of the pairs, in the order of their kinds.

    Args:
        pairs: two indices of shapes and parameters each.
        place: number of each shape among those in any pair.
        kinds: of the shapes in any pair.
        most: largest number of contacts of each pair.
        meshes: number of the hull of each shape that is a mesh.
        fields: number of the heights of each shape that is a height field.
    """
    found: dict[tuple[int, int, int, int, int], list[int]] = {}
    for k, pair in enumerate(pairs):
        i, j = place[pair.first], place[pair.second]
        order = KINDS.index(kinds[i]), KINDS.index(kinds[j])
        key = (*order, most[k], meshes.get(j, NO_DATA), fields.get(i, NO_DATA))
        found.setdefault(key, []).append(k)
    return tuple(
        PairGroup(
            (KINDS[first], KINDS[second]), number, hull, field, tuple(members),
            tuple(place[pairs[k].first] for k in members),
            tuple(place[pairs[k].second] for k in members),
        )
        for (first, second, number, hull, field), members in sorted(found.items())
    )  # fmt: skip
