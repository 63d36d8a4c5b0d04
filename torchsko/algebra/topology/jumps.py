"""Index tensors of recursions without levels: jumps of 2^i nodes, and the order in which chains peel off.

A jump leads from every node of a list to one 2^i places along its path. The nodes that have such a
target stand last in the list, so that they are a slice of it. `ancestor_jumps` makes those of pointer
doubling, from each node towards its base. `peel` orders a tree for recursions that do not
distribute over branches. Every round removes all unbranched runs that end in a tip of the remaining tree,
which at least halves the number of tips. Each round has its jumps along those runs, towards the tips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.algebra.topology.sharing import Share
from torchsko.algebra.topology.tree import Tree


@dataclass(frozen=True, eq=False)
class Jump:
    """From the last nodes of a list to one target each, in the same list.

    Attributes:
        first: place of the first node that has a target.
        count: number of nodes that have one.
        slides: whether the targets are the first `count` nodes, in order.
        target: place of each target, int64 `[count]`.
    """

    first: int
    count: int
    slides: bool
    target: Tensor

    def jumping(self, x: Tensor) -> Tensor:
        """Blocks of the nodes that have a target, `[*, n, r, c]` to `[*, count, r, c]`."""
        return x.narrow(-3, self.first, self.count)

    def targets(self, x: Tensor) -> Tensor:
        """Blocks of their targets, `[*, n, r, c]` to `[*, count, r, c]`."""
        return x.narrow(-3, 0, self.count) if self.slides else x.index_select(-3, self.target)

    def exchange(self, x: Tensor, y: Tensor) -> Tensor:
        """X with the blocks of the nodes that have a target replaced by y."""
        kept = x.narrow(-3, 0, self.first)
        return torch.cat([kept.expand(*y.shape[:-3], *kept.shape[-3:]), y], -3)

    def at_jumping(self, y: Tensor) -> Tensor:
        """One block y per node that has a target, zero for the others: `[*, n, r, c]`."""
        return torch.nn.functional.pad(y, (0, 0, 0, 0, self.first, 0))

    def sum_at_targets(self, y: Tensor) -> Tensor:
        """The sum over the nodes that share a target, at the target: `[*, n, r, c]`."""
        if self.slides:
            return torch.nn.functional.pad(y, (0, 0, 0, 0, 0, self.first))
        nothing = y.new_zeros(*y.shape[:-3], self.first + self.count, *y.shape[-2:])
        return nothing.index_add(-3, self.target, y)

    def table(self) -> Tensor:
        """Place of the target of every node of the list, its length where there is none, int64."""
        return torch.nn.functional.pad(self.target, (self.first, 0), value=self.first + self.count)


@dataclass(frozen=True, eq=False)
class Round:
    """Unbranched runs that peel off a tree together.

    Attributes:
        nodes: their nodes, places in breadth-first order, int64: first all tips, then all nodes next to
            a tip, and so on.
        jumps: 2^i nodes along the runs, towards their tips.
        tops: places among `nodes` of the innermost node of each run that hangs on another node.
        below: the nodes they hang on, places in breadth-first order.
        share: which of the nodes share a hinge; those are runs by themselves, all in one round.
        top_share: the same for the innermost nodes.
    """

    nodes: Tensor
    jumps: tuple[Jump, ...]
    tops: Tensor
    below: Tensor
    share: Share | None
    top_share: Share | None


def ancestor_jumps(tree: Tree) -> tuple[Jump, ...]:
    """Jumps of 1, 2, 4, ... nodes towards the base, for the nodes of a tree breadth first."""
    rank = {k: place for place, k in enumerate(tree.order)}
    return _doubled([rank[p] if p >= 0 else -1 for p in (tree.parent[k] for k in tree.order)])


def at_or_below(jumps: tuple[Jump, ...], count: int) -> Tensor:
    """Mask of pairs (i, j) in which node j is i or a descendant of it, breadth first; bool `[n, n]`."""
    above = torch.eye(count, dtype=torch.bool)
    for jump in jumps:
        table = jump.table()
        reached = torch.nn.functional.pad(above, (0, 0, 0, 1)).index_select(0, table)
        above = above | reached
    return above.mT.contiguous()


def peel(tree: Tree, hinges: Sequence[int] | None = None) -> tuple[Round, ...]:
    """The rounds in which a tree comes apart, tips first.

    Args:
        tree: any tree.
        hinges: for each node the first node of its hinge; each its own when left out.

    Returns:
        At most 1 + log2 of its number of tips, and two more for every shared hinge on a path.
    """
    hinges = range(tree.num_nodes) if hinges is None else hinges
    rank = {k: place for place, k in enumerate(tree.order)}
    branches = [len(children) for children in tree.children]
    nodes: dict[int, list[int]] = {}
    for k, h in enumerate(hinges):
        nodes.setdefault(h, []).append(k)
    shared = [len(nodes[h]) > 1 for h in hinges]
    rounds, tips = [], list(tree.tips)
    while tips:
        # The nodes of a hinge are crossed together, when nothing is left on any of them.
        waiting = set(tips)
        ready = [k for k in tips if waiting.issuperset(nodes[hinges[k]])]
        runs = [_run(tree, branches, shared, tip) for tip in ready]
        below = [tree.parent[run[-1]] for run in runs]
        rounds.append(_round(runs, below, rank, hinges))
        for p in below:
            if p >= 0:
                branches[p] -= 1
        found = {p for p in below if p >= 0 and branches[p] == 0}
        tips = sorted(found.union(tips).difference(ready), key=rank.__getitem__)
    return tuple(rounds)


def _run(tree: Tree, branches: list[int], shared: list[bool], tip: int) -> list[int]:
    """From a tip inward, as long as nothing else is left on the next node and no hinge is shared."""
    run = [tip]
    while not shared[run[-1]] and (p := tree.parent[run[-1]]) >= 0 and branches[p] == 1:
        if shared[p]:
            break
        run.append(p)
    return run


def _round(
    runs: list[list[int]], below: list[int], rank: dict[int, int], hinges: Sequence[int]
) -> Round:
    length = max(map(len, runs))
    listed = [(r, i) for i in range(length) for r, run in enumerate(runs) if i < len(run)]
    place = {node: at for at, node in enumerate(listed)}
    held = [r for r, p in enumerate(below) if p >= 0]
    tops = [hinges[runs[r][-1]] for r in held]
    return Round(
        torch.tensor([rank[runs[r][i]] for r, i in listed], dtype=torch.int64),
        _doubled([place[r, i - 1] if i else -1 for r, i in listed]),
        torch.tensor([place[r, len(runs[r]) - 1] for r in held], dtype=torch.int64),
        torch.tensor([rank[below[r]] for r in held], dtype=torch.int64),
        Share.of([hinges[runs[r][i]] for r, i in listed]),
        Share.of(tops) if tops else None,
    )


def _doubled(target: list[int]) -> tuple[Jump, ...]:
    """Jumps of 1, 2, 4, ... steps along a list of targets, -1 where a path ends; those come first."""
    jumps = []
    while max(target) >= 0:
        first = sum(t < 0 for t in target)
        reached = target[first:]
        slides = reached == list(range(len(reached)))
        jumps.append(Jump(first, len(reached), slides, torch.tensor(reached, dtype=torch.int64)))
        target = [target[t] if t >= 0 else -1 for t in target]
    return tuple(jumps)
