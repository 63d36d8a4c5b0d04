r"""Nodes of several members: what a tree becomes, and what its models become, in O(members).

A set S of nodes that meets the aggregation condition hangs on one parent c. As one node, with dofs of its own
from which those of its members follow, qd_S = X qd and qdd_S = X qdd + xi, it has

.. math::
    H_S \to X^* H_S A_S, \quad a_S \to A_S^* (a_S + H_S^* \xi), \quad E_{SP} \to E_{SP} A_S,

while M, b and all below stay. The stacked node is not formed: its blocks are those of its members, each of
which hangs on c itself, by a weight W* and a joint map Y* from the dofs that all members share,

.. math::
    W(k) = A^*(p, k)\, W(p), \quad Y(k) = A^*(p, k)\, Y(p) + H^*(k) X_k, \quad
    y_a(k) = A^*(p, k)\, y_a(p) + a(k) + H^*(k) \xi_k,

started at c by W = I, Y = 0, y_a = 0. So a member is a node like any other, next to its fellow members, and
what they share is D, the force and the acceleration of their hinge (see `sharing`): D = sum Y* P Y + X* S X.

======== ================================================== ==================
symbol   meaning                                            code
======== ================================================== ==================
c        parent of the node of several members              ``tops`` hang on it
X_k      dofs of member k per dof of the node               ``ratios``
xi_k     what is left of their acceleration at qdd = 0      ``xi``
======== ================================================== ==================

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*, Nonlinear
Dynamics, 2011, section 6 (X = I, xi = 0: aggregation); A. Jain, *Multibody graph transformations and
analysis, Part II: Closed-chain constraint embedding*, Nonlinear Dynamics, 2012.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchsko.algebra.blocks import concatenate
from torchsko.algebra.edges import DenseEdges, EdgeWeight, LevelEdges, ProductEdges
from torchsko.algebra.gathering import Gather, with_rows
from torchsko.algebra.hinge import (
    LevelMaps,
    armature_blocks,
    armature_force,
    join,
    level_maps,
    spread,
)
from torchsko.algebra.layout import Layout
from torchsko.algebra.model import SKOModel
from torchsko.algebra.subgraph import aggregation_obstacle, contract, node_numbers
from torchsko.algebra.tree import Tree
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
        lists = {name: [x.to(device) for x in getattr(self, name)] for name in ("maps", "weights")}
        stages = [
            Stage(s.members.to(device), s.weights.to(device), s.parents.to(device))
            for s in self.stages
        ]
        return replace(
            self, stages=tuple(stages), **moved, **{k: tuple(x) for k, x in lists.items()}
        )


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


def embedded(
    model: SKOModel,
    plan: EmbeddingPlan,
    X: Sequence[Tensor] | None = None,
    xi: Sequence[Tensor] | None = None,
) -> SKOModel:
    """The model in which the members of each node move as its own dofs say: the numeric part.

    Args:
        model: a model on the layout that the plan was made for.
        plan: `embedding_plan(model.layout, ...)`.
        X: for each node, rates of its members per rate of its own, `[*batch, d_S, d]`: rows in the order
            of the members' numbers, each one's dofs in their order. The identity when left out.
        xi: for each node, the acceleration of its members where its own vanish, `[*batch, d_S]`
            [rad/s^2 or m/s^2]: Xdot qd. Zero when left out.

    Returns:
        A model with the dofs of the plan, whose mass matrix is X* MM X and whose bias X* (C + MM xi).
        Velocities and forces of all nodes, members too, are blocks of it.

    Raises:
        ShapeError: when an X or xi does not fit; names the members.

    Reference: Jain 2012, Transformations Part II, constraint embedding.
    """
    _refuse_ratios(model, plan, X, xi)
    layout, straight = plan.layout, model.straight
    ratios = _rows(plan, _identities(model, plan) if X is None else X)
    moved = None if xi is None else _rows(plan, [x[..., None] for x in xi])
    H = model.joint_map.index_select(-3, plan.members).narrow(-2, 0, plan.width)
    Y, a, deep = _scattered(model, plan, H, ratios, moved)
    inside = {k for S in plan.groups for k in S}
    zeros = torch.zeros_like(H[..., :1, :])
    return replace(
        model,
        layout=layout,
        edge_weight=_weights(model, plan, deep),
        maps=_maps(model, plan, Y),
        inertia=_reordered(plan, model.inertia),
        coriolis_accel=model.coriolis_accel
        if a is None
        else _merged(plan, model.coriolis_accel, a),
        gyro_force=_reordered(plan, model.gyro_force),
        armature=_armature(model, plan, ratios),
        hinge_bias=_hinge_bias(model, plan, ratios, moved),
        straight=None
        if straight is None
        else _merged(plan, _wide(straight, layout), _wide(zeros, layout)),
        aligned=tuple(k in inside or simple for k, simple in enumerate(model.aligned)),
    )


def _scattered(
    model: SKOModel, plan: EmbeddingPlan, H: Tensor, ratios: Tensor, xi: Tensor | None
) -> tuple[list[Tensor], Tensor | None, list[Tensor]]:
    """Y of each stage, ya of all members, None for a as it was, and W of each stage below the tops."""
    sizes = [stage.members.shape[0] for stage in plan.stages]
    Y = list(spread(H, ratios).split(sizes, -3))
    if len(sizes) == 1 and xi is None:
        return Y, None, []
    own = model.coriolis_accel.index_select(-3, plan.members)
    own = own if xi is None else own + spread(H, xi)
    if len(sizes) == 1:
        return Y, own, []
    a, deep = list(own.split(sizes, -3)), []
    edges = model.edge_weight.split(model.layout.level_sizes)
    A = [] if model.scalar else [edge.dense() for edge in edges]
    W = None if model.scalar else plan.stages[0].weights.take(A)
    for depth in range(1, len(sizes)):
        stage = plan.stages[depth]
        if model.scalar:
            edge: EdgeWeight = model.edge_weight.select(stage.members)
        else:
            edge = DenseEdges(stage.weights.take(A))
            assert W is not None
            W = W.index_select(-3, stage.parents) @ edge.dense()
            deep.append(W)
        Y[depth] = edge.down(Y[depth - 1].index_select(-3, stage.parents)) + Y[depth]
        a[depth] = edge.down(a[depth - 1].index_select(-3, stage.parents)) + a[depth]
    return Y, join(a), deep


def _maps(model: SKOModel, plan: EmbeddingPlan, Y: list[Tensor]) -> Tensor | LevelMaps:
    """The joint maps on the new tree: in one tensor where no member's depends on the sample alone."""
    layout, maps = plan.layout, [y.mT for y in Y]
    if isinstance(model.maps, Tensor) and all(y.ndim <= model.maps.ndim for y in Y):
        return _merged(plan, _wide(model.maps, layout), _wide(join(maps), layout))
    sources = [*level_maps(model.layout, model.maps), *maps]
    levels = zip(plan.maps, layout.level_dofs, strict=True)
    return LevelMaps(tuple(gather.take(sources, rows) for gather, rows in levels))


def _weights(model: SKOModel, plan: EmbeddingPlan, deep: list[Tensor]) -> EdgeWeight:
    """The edge weights on the new tree."""
    if plan.same_tree:
        return model.edge_weight
    sizes = plan.layout.level_sizes
    if model.scalar:  # products stay products, and what is known of a single weight stays known
        single = model.edge_weight.split((1,) * model.tree.num_nodes)
        runs = [
            single[path[0]]
            if len(path) == 1
            else ProductEdges(tuple(single[k] for k in path[::-1]))
            for path in plan.paths
        ]
        levels = [
            LevelEdges(tuple(runs[end - n : end]), (1,) * n)
            for end, n in zip(accumulate(sizes), sizes, strict=True)
        ]
        return LevelEdges(tuple(levels), sizes)
    old = [edge.dense() for edge in model.edge_weight.split(model.layout.level_sizes)]
    # The tops take no part, their weights are those of the old levels.
    sources = [*old, old[0], *deep]
    return LevelEdges(tuple(DenseEdges(gather.take(sources)) for gather in plan.weights), sizes)


def _reordered(plan: EmbeddingPlan, x: Tensor) -> Tensor:
    """Blocks of the old nodes, breadth first in the new tree."""
    return x if plan.same_tree else x.index_select(-3, plan.order)


def _merged(plan: EmbeddingPlan, old: Tensor, members: Tensor) -> Tensor:
    """Blocks of the old nodes, those of the members replaced, breadth first in the new tree."""
    return join([old, members]).index_select(-3, plan.source)


def _wide(H: Tensor, layout: Layout) -> Tensor:
    """Blocks with as many rows as the new model's dofs are wide."""
    return with_rows(H, layout.dofs.width)


def _armature(model: SKOModel, plan: EmbeddingPlan, ratios: Tensor) -> Tensor | None:
    """X* S X at the members, S elsewhere."""
    S, layout = model.armature, plan.layout
    if S is None:
        return None
    own = S.index_select(-3, plan.members).narrow(-2, 0, plan.width)
    own = own.narrow(-1, 0, plan.width) if own.shape[-1] > 1 else own
    here = ratios.mT @ armature_force(own, ratios)
    missing = layout.dofs.width - here.shape[-1]
    if S.shape[-1] == 1 and here.shape[-1] == 1:
        return _merged(plan, _wide(S, layout), pad(here, (0, 0, 0, missing)))
    old = armature_blocks(S)
    gap = layout.dofs.width - old.shape[-1]
    here = pad(here, (0, missing, 0, missing))
    return _merged(plan, pad(old, (0, gap, 0, gap)), here)


def _hinge_bias(
    model: SKOModel, plan: EmbeddingPlan, ratios: Tensor, xi: Tensor | None
) -> Tensor | None:
    """X* (s + S xi) at the members, s elsewhere."""
    S, s, layout = model.armature, model.hinge_bias, plan.layout
    if s is None and (S is None or xi is None):
        return None
    s = torch.zeros_like(model.joint_map[..., :1]) if s is None else s
    here = s.index_select(-3, plan.members).narrow(-2, 0, plan.width)
    if S is not None and xi is not None:
        S = S.index_select(-3, plan.members).narrow(-2, 0, plan.width)
        here = here + armature_force(S.narrow(-1, 0, plan.width) if S.shape[-1] > 1 else S, xi)
    return _merged(plan, _wide(s, layout), _wide(ratios.mT @ here, layout))


def _identities(model: SKOModel, plan: EmbeddingPlan) -> list[Tensor]:
    like = model.inertia
    return [torch.eye(d, dtype=like.dtype, device=like.device) for d, _ in plan.num_dofs]


def _rows(plan: EmbeddingPlan, of: Sequence[Tensor]) -> Tensor:
    """Rows of all X for the dofs of each member, zero for padding: `[*batch, members, width, d]`."""
    most = max(1, *(x.shape[-1] for x in of))
    padded = [pad(x, (0, most - x.shape[-1])) if x.shape[-1] < most else x for x in of]
    rows = pad(concatenate(padded, dim=-2), (0, 0, 0, 1))
    return rows.index_select(-2, plan.ratio_rows).unflatten(-2, (-1, plan.width))


def _refuse_ratios(
    model: SKOModel,
    plan: EmbeddingPlan,
    X: Sequence[Tensor] | None,
    xi: Sequence[Tensor] | None,
) -> None:
    square = all(of == d for of, d in plan.num_dofs)
    for label, given, shapes in (
        ("X", X, [(of, d) for of, d in plan.num_dofs]),
        ("xi", xi, [(of,) for of, _ in plan.num_dofs]),
    ):
        found = (
            [None] * len(shapes)
            if given is None
            else [tuple(x.shape[-len(shapes[0]) :]) for x in given]
        )
        wanted = [None] * len(shapes) if given is None and (label == "xi" or square) else shapes
        if found != wanted:
            names = ["+".join(model.tree.names[k] for k in S) for S in plan.groups]
            raise ShapeError(
                f"{label} has the shapes {found} for the nodes {names}.\n"
                "Each node has one, a row for each dof of its members, a column of X for each of its own.\n"
                f"Pass tensors of shapes [*batch, ...] with {shapes} at the end."
            )
