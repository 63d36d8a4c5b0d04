"""Blocks collected from several packed tensors, as few of them copied as can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.shapes import broadcast_shapes


@dataclass(frozen=True, eq=False)
class Gather:
    """Where each block of a run stands: in which of several packed tensors, and at what place.

    Attributes:
        pieces: sources in the order of their first block here, each with the places taken, int64, or None
            where all are, in order.
        shuffle: the order that turns the joined pieces into the run, None where it is that.
    """

    pieces: tuple[tuple[int, Tensor | None], ...]
    shuffle: Tensor | None

    @staticmethod
    def of(wanted: Sequence[tuple[int, int]], sizes: Sequence[int]) -> Gather:
        """The gathering of blocks (source, place) from sources of these sizes."""
        taken: dict[int, list[int]] = {}
        for source, place in wanted:
            taken.setdefault(source, []).append(place)
        joined = [(source, place) for source, places in taken.items() for place in places]
        order = [joined.index(block) for block in wanted]
        pieces = tuple(
            (source, None if places == list(range(sizes[source])) else _index(places))
            for source, places in taken.items()
        )
        return Gather(pieces, None if order == list(range(len(order))) else _index(order))

    def take(self, sources: Sequence[Tensor], rows: int | None = None) -> Tensor:
        """The run `[*batch, n, rows, c]`; blocks are padded with zero rows, or cut, to `rows`."""
        found = []
        for source, places in self.pieces:
            x = sources[source]
            x = x if places is None else x.index_select(-3, places)
            found.append(x if rows is None else with_rows(x, rows))
        x = join(found)
        return x if self.shuffle is None else x.index_select(-3, self.shuffle)

    def to(self, device: torch.device | str) -> Gather:
        """The same with its index tensors on a device."""
        pieces = tuple((source, None if x is None else x.to(device)) for source, x in self.pieces)
        return Gather(pieces, None if self.shuffle is None else self.shuffle.to(device))


def join(levels: list[Tensor]) -> Tensor:
    """Levels `[*, n_l, r, c]` to one packed tensor `[*batch, n, r, c]`, batch dimensions broadcast."""
    if len(levels) == 1:
        return levels[0]
    batch = broadcast_shapes(*(level.shape[:-3] for level in levels))
    return torch.cat([level.expand(*batch, *level.shape[-3:]) for level in levels], dim=-3)


def with_rows(x: Tensor, rows: int) -> Tensor:
    """Blocks `[*, n, r, c]` with zero rows added, or the last ones left out: `[*, n, rows, c]`."""
    missing = rows - x.shape[-2]
    if missing > 0:
        return torch.nn.functional.pad(x, (0, 0, 0, missing))
    return x if missing == 0 else x.narrow(-2, 0, rows)


def _index(x: Sequence[int]) -> Tensor:
    return torch.tensor(x, dtype=torch.int64)
