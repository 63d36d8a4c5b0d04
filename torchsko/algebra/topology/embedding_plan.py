"""What an embedding needs to know of the topology, made once; see `embedding` for the mathematics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from torchsko.algebra.topology.gathering import Gather
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.subgraph import aggregation_obstacle, contract, node_numbers
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import ShapeError, TreeError

LARGEST = 2**22
"""Most pairs of a member and a dof of one node: its joint maps are dense in them."""


@dataclass(frozen=True, eq=False)
class Stage:
    """Members at one depth inside their nodes, of all nodes together.

    Attributes:
        members: places of the members among the nodes of the old layout, breadth first, int64.
        weights: where the weights of their edges stand among those of the old levels.
        parents: places of their parents among the members of the stage before; empty at the tops.
    """

    members: Tensor
    weights: Gather
    parents: Tensor


@dataclass(frozen=True, eq=False)
class EmbeddingPlan:
    """What an embedding needs to know of the topology; made once by `embedding_plan`.

    Attributes:
        layout: of the model that results. Its nodes are those of the old one, by the same numbers and
            names; members hang on the parent of their node.
        groups: the members of each new node.
        num_dofs: for each new node, how many dofs its members have, and how many it has itself.
        stages: members by their depth inside the nodes, tops first.
        members: all of them in that order, int64.
        ratio_rows: for each dof of each member its row among those of all X, int64 `[members * width]`;
            one past the end for padding.
        width: largest number of dofs of a member.
        same_tree: whether members hang where they did.
        order: for each node of the new layout its place in the old one, breadth first, int64.
        source: the same in a list of all old nodes and then all members, int64.
        maps: for each level where its joint maps stand among those of the old levels, then the stages.
        weights: for each level where its weights stand among those of the old levels, then the stages
            below the tops, whose weights are what they were.
        paths: for each node of the new layout, breadth first, the old places of the edges it stands for.
    """

    layout: Layout
    groups: tuple[tuple[int, ...], ...]
    num_dofs: tuple[tuple[int, int], ...]
    stages: tuple[Stage, ...]
    members: Tensor
    ratio_rows: Tensor
    width: int
    same_tree: bool
    order: Tensor
    source: Tensor
    maps: tuple[Gather, ...]
    weights: tuple[Gather, ...]
    paths: tuple[tuple[int, ...], ...]

    def to(self, device: torch.device | str) -> EmbeddingPlan:
        """The same plan with its index tensors on a device."""
        names = ("layout", "members", "ratio_rows", "order", "source")
        moved = {name: getattr(self, name).to(device) for name in names}
        stages = tuple(
            Stage(s.members.to(device), s.weights, s.parents.to(device)) for s in self.stages
        )
        return replace(self, stages=stages, **moved)


def embedding_plan(
    layout: Layout,
    groups: Sequence[Iterable[int | str]],
    num_dofs: Sequence[int] | None = None,
    dofs: Sequence[Sequence[int]] | None = None,
) -> EmbeddingPlan:
    """The plan of an embedding: a pure function of the topology, to be kept by the caller.

    Args:
        layout: of the models that are to be embedded.
        groups: members of each new node, by number or name: disjoint sets, each of which meets the
            aggregation condition (`aggregation_subgraph` gives the smallest that does).
        num_dofs: how many dofs each new node has, the columns of its X; as many as its members have
            together when left out.
        dofs: for each new node, the dofs of the old model whose places its own take, one for each column
            of its X: dof vectors keep the order of those that stay, and close up. The first ones of the
            members when left out.

    Raises:
        TreeError: when groups overlap, cut a node made before, or one does not meet the aggregation
            condition; the message says why and gives the set that does.
        ShapeError: when a node is given more dofs than its members have, or dofs of other nodes, or
            has more pairs of a member and a dof than `LARGEST`.
    """
    tree, places = layout.tree, layout.dofs.places
    sets = [node_numbers(tree, group) for group in groups]
    _refuse_groups(tree, sets, layout.hinges)
    own = [list(dict.fromkeys(i for k in S for i in places[k])) for S in sets]
    counts = [len(row) for row in own] if num_dofs is None else list(num_dofs)
    taken = [row[:d] for row, d in zip(own, counts, strict=True)] if dofs is None else dofs
    _refuse_dofs(tree, sets, own, counts, taken)
    _refuse_large(tree, sets, counts)
    group_of = {k: g for g, S in enumerate(sets) for k in S}
    inner = _depths(tree, sets)
    parents = [_parent_outside(tree, group_of, k) for k in range(tree.num_nodes)]
    new_tree = Tree.from_parents(parents, tree.names)
    dropped = {i for row in own for i in row}.difference(i for row in taken for i in row)
    left = [i for i in range(layout.dofs.total) if i not in dropped]
    rank = {place: i for i, place in enumerate(left)}
    new_places = [
        [rank[i] for i in (taken[group_of[k]] if k in group_of else places[k])]
        for k in range(tree.num_nodes)
    ]
    new = Layout.of(new_tree, layout.nodes.sizes, [len(row) for row in new_places], new_places)
    return _indexed(layout, new, sets, inner, own, counts).to(layout.order.device)


def _refuse_large(tree: Tree, sets: Sequence[tuple[int, ...]], counts: Sequence[int]) -> None:
    for S, d in zip(sets, counts, strict=True):
        if len(S) * d > LARGEST:
            raise ShapeError(
                f"the node of {tree.names[S[0]]!r}, ..., {tree.names[S[-1]]!r} would have {len(S)} members "
                f"that share {d} dofs.\n"
                "Each member has a joint map dense in all of them, and the node a hinge inertia: "
                f"{8 * d * (6 * len(S) + d) / 1e9:.1f} GB for each sample, rigid bodies in float64.\n"
                f"Aggregate {int(LARGEST**0.5)} nodes of one dof at most, or sweep over the tree as it is."
            )


def _indexed(
    layout: Layout,
    new: Layout,
    sets: Sequence[tuple[int, ...]],
    inner: dict[int, int],
    own: Sequence[Sequence[int]],
    counts: Sequence[int],
) -> EmbeddingPlan:
    """The index tensors of a plan."""
    tree, places = layout.tree, layout.dofs.places
    old = {k: i for i, k in enumerate(tree.order)}
    stages: list[list[int]] = [
        [k for S in sets for k in S if inner[k] == depth]
        for depth in range(max(inner.values()) + 1)
    ]
    members = [k for stage in stages for k in stage]
    at = {k: i for i, k in enumerate(members)}
    width = max(1, *(len(places[k]) for k in members))
    start = list(accumulate((len(row) for row in own), initial=0))
    row_of = {
        (k, i): start[g] + own[g].index(i) for g, S in enumerate(sets) for k in S for i in places[k]
    }
    rows = [
        [row_of[k, i] for i in places[k]] + [start[-1]] * (width - len(places[k])) for k in members
    ]

    def index(x: Sequence[int]) -> Tensor:
        return torch.tensor(x, dtype=torch.int64)

    def stage(depth: int) -> Stage:
        above = {k: i for i, k in enumerate(stages[depth - 1])} if depth else {}
        parents = [above[tree.parent[k]] for k in stages[depth]] if depth else []
        weights = Gather.of([place[k] for k in stages[depth]], layout.level_sizes)
        return Stage(index([old[k] for k in stages[depth]]), weights, index(parents))

    place = {k: (depth, i) for depth, level in enumerate(tree.levels) for i, k in enumerate(level)}
    below = {
        k: (tree.num_levels + d, i) for d, stage in enumerate(stages) for i, k in enumerate(stage)
    }
    sizes = [*layout.level_sizes, *map(len, stages)]

    def gathers(inner_first: int) -> tuple[Gather, ...]:
        """Members from this depth on stand in their stages, other nodes in their old levels."""
        found = []
        for level in new.tree.levels:
            wanted = [below[k] if inner.get(k, -1) >= inner_first else place[k] for k in level]
            found.append(Gather.of(wanted, sizes))
        return tuple(found)

    order, n = new.tree.order, tree.num_nodes
    return EmbeddingPlan(
        layout=new,
        groups=tuple(sets),
        num_dofs=tuple((len(row), d) for row, d in zip(own, counts, strict=True)),
        stages=tuple(stage(depth) for depth in range(len(stages))),
        members=index([old[k] for k in members]),
        ratio_rows=index([i for row in rows for i in row]),
        width=width,
        same_tree=new.tree.parent == tree.parent,
        order=index([old[k] for k in order]),
        source=index([n + at[k] if k in at else old[k] for k in order]),
        maps=gathers(0),
        weights=gathers(1),
        paths=tuple(
            tuple(old[j] for j in (k, *tree.ancestors(k))[: inner.get(k, 0) + 1]) for k in order
        ),
    )


def _depths(tree: Tree, sets: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """For each member its number of fellow members above it."""
    return {k: sum(i in S for i in tree.ancestors(k)) for S in sets for k in S}


def _parent_outside(tree: Tree, group_of: dict[int, int], k: int) -> int:
    """The closest node above k that is no fellow member of it, -1 without one."""
    p = tree.parent[k]
    while k in group_of and p >= 0 and group_of.get(p) == group_of[k]:
        p = tree.parent[p]
    return p


def _refuse_groups(
    tree: Tree, sets: Sequence[tuple[int, ...]], hinges: Sequence[tuple[int, ...]]
) -> None:
    seen: set[int] = set()
    for S in sets:
        for hinge in hinges:
            if 0 < len(set(hinge).intersection(S)) < len(hinge):
                raise TreeError(
                    f"the nodes {', '.join(repr(tree.names[k]) for k in hinge)} share a hinge, and only "
                    "some are members.\n"
                    "They are one node already.\n"
                    "Pass all of them, or none."
                )
        if aggregation_obstacle(tree, S):
            contract(tree, S)  # says why, and what to do
        if twice := seen.intersection(S):
            names = ", ".join(repr(tree.names[k]) for k in sorted(twice))
            raise TreeError(
                f"{names} would be members of two nodes.\n"
                "A node of the tree belongs to one node of the coarser tree.\n"
                "Join the two sets into one; its aggregation_subgraph is the set to pass."
            )
        seen.update(S)


def _refuse_dofs(
    tree: Tree,
    sets: Sequence[tuple[int, ...]],
    own: Sequence[Sequence[int]],
    counts: Sequence[int],
    taken: Sequence[Sequence[int]],
) -> None:
    for S, row, count, some in zip(sets, own, counts, taken, strict=True):
        if len(some) != count or len(set(some)) != count or not set(some).issubset(row):
            raise ShapeError(
                f"the node of {', '.join(repr(tree.names[k]) for k in S)} is given {count} dofs in place "
                f"of {list(some)}.\n"
                f"Its members have the dofs {list(row)}; it takes over some of their places, one for each "
                "column of X.\n"
                "Pass as many distinct ones of these as X has columns."
            )
