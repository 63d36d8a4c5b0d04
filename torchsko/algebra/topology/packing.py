"""Packing: flat vectors, node by node, as blocks of one width, padded; and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.utils.shapes import gather_entries


@dataclass(frozen=True, eq=False)
class Packing:
    """The map between flat vectors and packed node blocks of one kind (velocities, or dofs).

    Attributes:
        sizes: block size of each node, in the tree's order.
        places: where each node's components stand in the flat vector: one node after another, save
            for dofs that keep the order of another model (see `transform`). Nodes that share a hinge
            have the same places.
        width: the largest of the sizes.
        trivial: whether packing is a mere reshape (breadth-first numbering, equal sizes).
        source: for each packed scalar its place in the flat vector; one past its end for padding.
        source_once: the same, one past the end where an earlier node has the scalar as well.
        place: for each flat scalar its place among the packed ones, the first where several share it.
        padding: 1 on padded scalars, else 0; `[n, width]`, of dtype bool.
        total: length of the flat vector.
        most: the largest number of nodes that share a scalar.
        places_of: for each flat scalar all its places, int64 `[total * most]`; free ones one past the end.
    """

    sizes: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]
    width: int
    trivial: bool
    source: Tensor
    source_once: Tensor
    place: Tensor
    padding: Tensor
    total: int
    most: int
    places_of: Tensor

    @staticmethod
    def of(
        sizes: Sequence[int],
        order: Sequence[int],
        places: Sequence[Sequence[int]] | None = None,
    ) -> Packing:
        """Packing of blocks of the given sizes whose nodes are visited in the given order.

        Their components stand at `places`; one node after another when left out.
        """
        width = max(max(sizes), 1)
        if places is None:
            end = list(accumulate(sizes))
            places = [range(e - size, e) for e, size in zip(end, sizes, strict=True)]
        total = len({i for row in places for i in row})
        source = [places[k][i] if i < sizes[k] else total for k in order for i in range(width)]
        of: list[list[int]] = [[] for _ in range(total + 1)]
        for s, i in enumerate(source):
            of[i].append(s)
        once = [i if of[i][0] == s else total for s, i in enumerate(source)]
        most = max([1, *map(len, of[:total])])
        slots = [s for row in of[:total] for s in [*row, *[len(source)] * (most - len(row))]]
        return Packing(
            sizes=tuple(sizes),
            places=tuple(map(tuple, places)),
            width=width,
            trivial=source == list(range(total)),
            source=torch.tensor(source, dtype=torch.int64),
            source_once=torch.tensor(once, dtype=torch.int64),
            place=torch.tensor([row[0] for row in of[:total]], dtype=torch.int64),
            padding=torch.tensor(source, dtype=torch.int64).reshape(len(sizes), width) == total,
            total=total,
            most=most,
            places_of=torch.tensor(slots, dtype=torch.int64),
        )

    @property
    def leaders(self) -> tuple[int, ...]:
        """For each node the first node with the same places: itself if it shares none."""
        first: dict[tuple[int, ...], int] = {}
        return tuple(first.setdefault(row, k) if row else k for k, row in enumerate(self.places))

    @property
    def padded(self) -> bool:
        """True if any block is smaller than the width."""
        return sum(self.sizes) < len(self.sizes) * self.width

    def pack(self, x: Tensor) -> Tensor:
        """Flat columns `[*batch, total, r]` to packed blocks `[*batch, n, width, r]`.

        Raises:
            ShapeError: when x has another length.
        """
        self.refuse(x.shape[-2])
        if not self.trivial:
            x = torch.nn.functional.pad(x, (0, 0, 0, 1)) if self.padded else x
            x = _rows(x, self.source)
        return x.unflatten(-2, (len(self.sizes), self.width))

    def pack_once(self, x: Tensor) -> Tensor:
        """As `pack`, but of nodes that share a scalar only the first has it, the others zero."""
        if self.most == 1:
            return self.pack(x)
        self.refuse(x.shape[-2])
        x = _rows(torch.nn.functional.pad(x, (0, 0, 0, 1)), self.source_once)
        return x.unflatten(-2, (len(self.sizes), self.width))

    def refuse(self, length: int) -> None:
        """Refuse flat vectors of any other length than `total`.

        Raises:
            ShapeError: names both lengths.
        """
        if length != self.total:
            raise ShapeError(
                f"a vector of length {length} was given where the model has {self.total} "
                f"components ({len(self.sizes)} nodes of sizes {_listed(self.sizes)}).",
                "Components go node by node, in the tree's order.",
                f"Pass a tensor whose last dimension is {self.total}.",
            )

    def unpack(self, x: Tensor) -> Tensor:
        """Packed blocks `[*batch, n, width, r]` to flat columns `[*batch, total, r]`.

        What nodes share, all of them hold alike.
        """
        flat = x.flatten(-3, -2)
        return flat if self.trivial else _rows(flat, self.place)

    def collect(self, x: Tensor) -> Tensor:
        """As `unpack`, but what nodes share is the sum of what each of them holds."""
        if self.most == 1:
            return self.unpack(x)
        flat = torch.nn.functional.pad(x.flatten(-3, -2), (0, 0, 0, 1))
        return flat.index_select(-2, self.places_of).unflatten(-2, (self.total, self.most)).sum(-2)


def _listed(sizes: Sequence[int]) -> str:
    return f"{list(sizes[:12])}"[:-1] + (", ...]" if len(sizes) > 12 else "]")


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows `[*, k, r]` of `[*, n, r]`."""
    return (
        gather_entries(x[..., 0], index)[..., None]
        if x.shape[-1] == 1
        else x.index_select(-2, index)
    )
