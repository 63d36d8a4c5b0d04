"""The topological part of an embedding, computed once; see `embedding` for the mathematics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor

from torchsko.algebra.topology.gathering import Gather
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.subgraph import aggregation_obstacle, contract, node_numbers
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import ShapeError, TreeError
from torchsko.utils.devices import on_device

LARGEST = 2**22
"""Largest number of (member, dof) pairs of one node: its joint maps are dense in them."""


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
    """Index tensors of an embedding; made once by `embedding_plan`.

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
        num_dofs: number of dofs of each new node, the columns of its X; by default the sum over its
            members.
        dofs: for each new node, the dofs of the old model whose places its dofs take, one for each column
            of its X. The other dofs keep their order. By default the first dofs of the members.

    Raises:
        TreeError: when groups overlap, cut a node made before, or one does not meet the aggregation
            condition; the message gives the reason and the smallest valid set.
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
    inner = _depths(tree, sets)
    new = _layout_after(layout, sets, own, taken)
    return on_device(_indexed(layout, new, sets, inner, own, counts), layout.order.device)


def _layout_after(
    layout: Layout,
    sets: Sequence[tuple[int, ...]],
    own: Sequence[Sequence[int]],
    taken: Sequence[Sequence[int]],
) -> Layout:
    """The layout that results: members hang on the parent of their node, and share the dofs it has taken."""
    tree, places = layout.tree, layout.dofs.places
    group_of = {k: g for g, S in enumerate(sets) for k in S}
    parents = [_parent_outside(tree, group_of, k) for k in range(tree.num_nodes)]
    dropped = set(chain(*own)).difference(chain(*taken))
    left = [i for i in range(layout.dofs.total) if i not in dropped]
    rank = {place: i for i, place in enumerate(left)}
    new_places = [
        [rank[i] for i in (taken[group_of[k]] if k in group_of else places[k])]
        for k in range(tree.num_nodes)
    ]
    sizes = [len(row) for row in new_places]
    return Layout.of(Tree.from_parents(parents, tree.names), layout.nodes.sizes, sizes, new_places)


def _refuse_large(tree: Tree, sets: Sequence[tuple[int, ...]], counts: Sequence[int]) -> None:
    for S, d in zip(sets, counts, strict=True):
        if len(S) * d > LARGEST:
            raise ShapeError(
                f"the node of {tree.names[S[0]]!r}, ..., {tree.names[S[-1]]!r} would have {len(S)} members "
                f"that share {d} dofs.",
                "Each member has a joint map dense in all of them, and the node a hinge inertia: "
                f"{8 * d * (6 * len(S) + d) / 1e9:.1f} GB for each sample, rigid bodies in float64.",
                f"Aggregate {int(LARGEST**0.5)} nodes of one dof at most, or sweep over the tree as it is.",
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
    tree, order = layout.tree, new.tree.order
    old = {k: i for i, k in enumerate(tree.order)}
    stages = _by_depth(sets, inner)
    members = [k for stage in stages for k in stage]
    at = {k: i for i, k in enumerate(members)}
    ratio_rows, width = _ratio_rows(layout, sets, own, members)
    return EmbeddingPlan(
        layout=new,
        groups=tuple(sets),
        num_dofs=tuple((len(row), d) for row, d in zip(own, counts, strict=True)),
        stages=_stages(layout, stages, old),
        members=_index([old[k] for k in members]),
        ratio_rows=_index(ratio_rows),
        width=width,
        same_tree=new.tree.parent == tree.parent,
        order=_index([old[k] for k in order]),
        source=_index([tree.num_nodes + at[k] if k in at else old[k] for k in order]),
        maps=_gathers(layout, new, stages, staged=set(members)),
        weights=_gathers(layout, new, stages, staged={k for k in members if inner[k]}),
        paths=tuple(
            tuple(old[j] for j in (k, *tree.ancestors(k))[: inner.get(k, 0) + 1]) for k in order
        ),
    )


def _by_depth(sets: Sequence[tuple[int, ...]], inner: Mapping[int, int]) -> list[list[int]]:
    """The members at each depth inside their nodes."""
    depths = range(max(inner.values()) + 1)
    return [[k for S in sets for k in S if inner[k] == depth] for depth in depths]


def _ratio_rows(
    layout: Layout,
    sets: Sequence[tuple[int, ...]],
    own: Sequence[Sequence[int]],
    members: Sequence[int],
) -> tuple[list[int], int]:
    """For each dof of each member its row among those of all X, and how many each member takes."""
    places = layout.dofs.places
    width = max(1, *(len(places[k]) for k in members))
    *starts, end = accumulate((len(row) for row in own), initial=0)
    rows: list[int] = []
    group_of = {k: g for g, S in enumerate(sets) for k in S}
    for k in members:
        g = group_of[k]
        rows += [starts[g] + own[g].index(i) for i in places[k]]
        rows += [end] * (width - len(places[k]))
    return rows, width


def _stages(
    layout: Layout, stages: Sequence[Sequence[int]], old: Mapping[int, int]
) -> tuple[Stage, ...]:
    parent, place = layout.tree.parent, _places_by_row(layout.tree.levels)
    found, above = [], {}
    for members in stages:
        found.append(
            Stage(
                _index([old[k] for k in members]),
                Gather.of([place[k] for k in members], layout.level_sizes),
                _index([above[parent[k]] for k in members] if above else []),
            )
        )
        above = {k: i for i, k in enumerate(members)}
    return tuple(found)


def _gathers(
    layout: Layout, new: Layout, stages: Sequence[Sequence[int]], staged: Collection[int]
) -> tuple[Gather, ...]:
    """For each new level where its nodes stand among the old levels and then the stages.

    Those that are `staged` stand in their stages, other nodes in their old levels.
    """
    levels = layout.tree.levels
    place = _places_by_row(levels)
    place |= {k: at for k, at in _places_by_row(stages, len(levels)).items() if k in staged}
    sizes = [*layout.level_sizes, *map(len, stages)]
    return tuple(Gather.of([place[k] for k in level], sizes) for level in new.tree.levels)


def _places_by_row(rows: Sequence[Sequence[int]], first: int = 0) -> dict[int, tuple[int, int]]:
    """For each node its row, counted from `first`, and its place in that."""
    return {k: (first + r, i) for r, row in enumerate(rows) for i, k in enumerate(row)}


def _index(x: Sequence[int]) -> Tensor:
    return torch.tensor(x, dtype=torch.int64)


def _depths(tree: Tree, sets: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """For each member the number of its ancestors in the same group."""
    return {k: sum(i in S for i in tree.ancestors(k)) for S in sets for k in S}


def _parent_outside(tree: Tree, group_of: dict[int, int], k: int) -> int:
    """The closest ancestor of k outside its group, -1 if there is none."""
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
                    "some are members.",
                    "They are one node already.",
                    "Pass all of them, or none.",
                )
        if aggregation_obstacle(tree, S):
            contract(tree, S)  # raises with the reason and the advice
        if twice := seen.intersection(S):
            names = ", ".join(repr(tree.names[k]) for k in sorted(twice))
            raise TreeError(
                f"{names} would be members of two nodes.",
                "A node of the tree belongs to one node of the coarser tree.",
                "Join the two sets into one; its aggregation_subgraph is the set to pass.",
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
                f"of {list(some)}.",
                f"Its members have the dofs {list(row)}; it takes over some of their places, one for each "
                "column of X.",
                "Pass as many distinct ones of these as X has columns.",
            )
