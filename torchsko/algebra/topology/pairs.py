"""Index tensors over pairs of nodes: who is above whom, and where the mass matrix's entries lie.

They grow with the square of the tree, as the mass matrix does. Layouts of up to `KEPT` dofs hold
them; beyond that they are made by whoever asks, so that a long chain loads in linear memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from torchsko.algebra.topology.jumps import Jump, at_or_below
from torchsko.algebra.topology.tree import Tree

KEPT = 512
"""Largest number of dofs, and of nodes, of a layout that holds its pairs: 4 MB of them."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Index tensors over pairs of nodes, and of dofs.

    Attributes:
        ancestor: for each level, the position *in that level* of the ancestor of every node at that
            level or deeper, int64 (deeper nodes in breadth-first order).
        below: whether node j is i or a descendant of it, bool `[n, n]`, breadth first.
        mass_matrix_source: place of each entry of the dense mass matrix among those that
            `algorithms.mass_matrix` computes, int64 `[dofs * dofs]`; entries of unrelated nodes
            point one past the last of them. Where nodes share a hinge, each with its own copy of it.
    """

    ancestor: tuple[Tensor, ...]
    below: Tensor
    mass_matrix_source: Tensor

    @staticmethod
    def of(
        tree: Tree,
        parent: Sequence[Tensor],
        jumps: tuple[Jump, ...],
        level_dofs: Sequence[int],
        dof_places: Sequence[Sequence[int]],
    ) -> Pairs:
        """Those of a tree.

        Args:
            tree: the topology.
            parent: for each level, the position of each node's parent in the level above.
            jumps: `ancestor_jumps` of the tree.
            level_dofs: number of dof columns of each level.
            dof_places: where the dofs of each node stand in dof vectors.
        """
        below = at_or_below(jumps, tree.num_nodes)
        source = _mass_matrix_source(tree, below, level_dofs, dof_places)
        return Pairs(_ancestors(tree, parent), below, source)


def _ancestors(tree: Tree, parent: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tips first: a deeper node's ancestor in a level is its ancestor's parent one level below."""
    rows: list[Tensor] = []
    for depth in reversed(range(tree.num_levels)):
        own = torch.arange(len(tree.levels[depth]), device=parent[depth].device)
        if not rows:
            rows.append(own)
        elif len(own) == 1:
            rows.append(own.expand(1 + len(rows[-1])))  # one ancestor for all takes no memory
        else:
            rows.append(torch.cat([own, parent[depth + 1].index_select(0, rows[-1])]))
    return tuple(rows[::-1])


def _mass_matrix_source(
    tree: Tree, below: Tensor, widths: Sequence[int], dof_places: Sequence[Sequence[int]]
) -> Tensor:
    """See `Pairs`.

    The entries are ordered by levels. First come the blocks (i, i) of the level's nodes, each `[width,
    width]`. The blocks (i, k) of every deeper node k and its ancestor i in the level follow, each `[width,
    width of the widest deeper level]`.
    """
    n, ends = tree.num_nodes, list(accumulate(map(len, tree.levels)))
    deeper = [*list(accumulate(widths[:0:-1], max))[::-1], 0]
    starts, rows = [0], []
    for level, end, width, wide in zip(tree.levels, ends, widths, deeper, strict=True):
        across = starts[-1] + len(level) * width * width
        rows += [
            (across - end * width * wide, width * wide, wide, starts[-1] + i * width * width, width)
            for i in range(len(level))
        ]
        starts.append(across + (n - end) * width * wide)
    rank = {k: place for place, k in enumerate(tree.order)}
    owner = sorted(
        (at, rank[k], i) for k, at_k in enumerate(dof_places) for i, at in enumerate(at_k)
    )
    place, component = torch.tensor(
        [[p, i] for _, p, i in owner], dtype=torch.int64, device=below.device
    ).reshape(-1, 2).unbind(-1)  # fmt: skip
    table = torch.tensor(rows, dtype=torch.int64, device=below.device).index_select(0, place)
    first, step, wide, own, width = table.unbind(-1)
    # Row dof a of the ancestor, column dof b of the descendant.
    across = (first + component * wide)[:, None] + step[:, None] * place + component
    outside = ~below.index_select(0, place).index_select(1, place)
    across = across.masked_fill_(outside, starts[-1])
    upper, lower = (
        torch.minimum(component[:, None], component),
        torch.maximum(component[:, None], component),
    )
    block = own[:, None] + lower * width[:, None] + upper
    same = place[:, None] == place
    return torch.where(same, block, torch.minimum(across, across.mT)).flatten()
