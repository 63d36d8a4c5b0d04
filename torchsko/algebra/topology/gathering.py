"""Gathering of blocks from several packed tensors with few copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from torchsko.utils.shapes import concatenate

SHORT = 16
"""Blocks of a run that are added one by one: up to there this is a third of a gather's time or less."""


@dataclass(frozen=True)
class Gather:
    """Positions of the blocks of a run in several packed tensors.

    Attributes:
        pieces: what to join: source, first place, number of blocks, and whether that is all of the source.
    """

    pieces: tuple[tuple[int, int, int, bool], ...]

    @staticmethod
    def of(wanted: Sequence[tuple[int, int]], sizes: Sequence[int]) -> Gather:
        """The gathering of blocks (source, place) from sources of these sizes."""
        found: list[list[int]] = []
        for source, place in wanted:
            if found and found[-1][0] == source and sum(found[-1][1:]) == place:
                found[-1][2] += 1
            else:
                found.append([source, place, 1])
        return Gather(tuple((source, i, n, n == sizes[source]) for source, i, n in found))

    def take(self, sources: Sequence[Tensor], rows: int | None = None) -> Tensor:
        """The run `[*batch, n, rows, c]`; blocks are padded with zero rows, or cut, to `rows`."""
        found = []
        for source, first, count, whole in self.pieces:
            x = sources[source] if whole else sources[source].narrow(-3, first, count)
            found.append(x if rows is None else with_rows(x, rows))
        return join(found)


@dataclass(frozen=True, eq=False)
class Sums:
    """Groups of blocks of a run that are summed to one block each.

    Attributes:
        rows: for each sum the places of its blocks in the run.
        all: whether each is the sum of all.
        most: the largest number of blocks of a sum.
        slots: for a run that is not short, the same as one index, int64 `[len(rows) * most]`; a free place
            points one past the last block.
    """

    rows: tuple[tuple[int, ...], ...]
    all: bool
    most: int
    slots: Tensor | None

    @staticmethod
    def of(rows: Sequence[Sequence[int]], size: int) -> Sums:
        """The sums of these blocks of a run of this size."""
        most = max([0, *map(len, rows)])  # Dynamo knows no max(..., default=0)
        slots = [k for row in rows for k in [*row, *[size] * (most - len(row))]]
        full = size > 0 and all(list(row) == list(range(size)) for row in rows)
        return Sums(tuple(map(tuple, rows)), full, most, _index(slots) if size > SHORT else None)

    def take(self, x: Tensor) -> Tensor:
        """`[*, n, r, c]` to `[*, sums, r, c]`: the same sums in the same order on any device."""
        if self.all:
            return x.sum(-3, keepdim=True).expand(*x.shape[:-3], len(self.rows), *x.shape[-2:])
        if self.slots is None:
            blocks = x.unbind(-3)
            sums = {
                row: reduce(add, [blocks[k] for k in row]) if row else torch.zeros_like(blocks[0])
                for row in set(self.rows)
            }
            return torch.stack([sums[row] for row in self.rows], -3)
        # A gather with an empty place, not a scatter, whose order is not fixed on every device.
        padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 1)).index_select(-3, self.slots)
        return padded.unflatten(-3, (len(self.rows), self.most)).sum(-3)


def join(levels: list[Tensor]) -> Tensor:
    """Levels `[*, n_l, r, c]` to one packed tensor `[*batch, n, r, c]`, batch dimensions broadcast."""
    return levels[0] if len(levels) == 1 else concatenate(levels, -3)


def with_rows(x: Tensor, rows: int) -> Tensor:
    """Blocks `[*, n, r, c]` with zero rows added, or the last ones left out: `[*, n, rows, c]`."""
    missing = rows - x.shape[-2]
    if missing > 0:
        return torch.nn.functional.pad(x, (0, 0, 0, missing))
    return x if missing == 0 else x.narrow(-2, 0, rows)


def _index(x: Sequence[int]) -> Tensor:
    return torch.tensor(x, dtype=torch.int64)
