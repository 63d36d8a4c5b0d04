r"""Models after several nodes are joined to one (aggregation, embedding), in O(members).

A set S of nodes that meets the aggregation condition hangs on one parent c. As one node, with new dofs qd
that determine those of its members, qd_S = X qd and qdd_S = X qdd + xi, it has

.. math::
    H_S \to X^* H_S A_S, \quad a_S \to A_S^* (a_S + H_S^* \xi), \quad E_{SP} \to E_{SP} A_S,

while M, b and all below stay. The stacked node is not formed: its blocks are those of its members, each of
which hangs on c itself, by a weight W* and a joint map Y* from the dofs that all members share,

.. math::
    W(k) = A^*(p, k)\, W(p), \quad Y(k) = A^*(p, k)\, Y(p) + H^*(k) X_k, \quad
    y_a(k) = A^*(p, k)\, y_a(p) + a(k) + H^*(k) \xi_k,

started at c by W = I, Y = 0, y_a = 0. So a member remains an ordinary node. The members of a node share D,
the force and the acceleration of their
hinge (see `sharing`): D = sum Y* P Y + X* S X.

======== ================================================== ==================
symbol   meaning                                            code
======== ================================================== ==================
c        parent of the node of several members              ``tops`` hang on it
X_k      dofs of member k per dof of the node               ``ratios``
xi_k     their acceleration at qdd = 0                      ``xi``
======== ================================================== ==================

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*, Nonlinear
Dynamics, 2011, section 6 (X = I, xi = 0: aggregation); A. Jain, *Multibody graph transformations and
analysis, Part II: Closed-chain constraint embedding*, Nonlinear Dynamics, 2012.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchsko.algebra.operators.blocks import concatenate
from torchsko.algebra.operators.edges import DenseEdges, EdgeWeight, LevelEdges, ProductEdges
from torchsko.algebra.operators.hinge import (
    LevelMaps,
    armature_blocks,
    armature_force,
    level_maps,
    spread,
)
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.topology.embedding_plan import EmbeddingPlan
from torchsko.algebra.topology.gathering import join, with_rows
from torchsko.algebra.topology.layout import Layout
from torchsko.errors import ShapeError
from torchsko.linalg.scalar_form import is_scalar_form


def embedded(
    model: SKOModel,
    plan: EmbeddingPlan,
    X: Sequence[Tensor] | None = None,
    xi: Sequence[Tensor] | None = None,
) -> SKOModel:
    """The model in which the dofs of each node determine the motion of its members: the numeric part.

    Args:
        model: a model on the layout that the plan was made for.
        plan: `embedding_plan(model.layout, ...)`.
        X: for each node, rates of its members per rate of the node, `[*batch, d_S, d]`: rows in the order
            of the members' numbers, each one's dofs in their order. The identity by default.
        xi: for each node, the acceleration of its members where that of the node vanishes, `[*batch, d_S]`
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
    A = [] if is_scalar_form() else [edge.dense() for edge in edges]
    W = None if is_scalar_form() else plan.stages[0].weights.take(A)
    for depth in range(1, len(sizes)):
        stage = plan.stages[depth]
        if is_scalar_form():
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
    if is_scalar_form():  # products stay products, and what is known of a single weight stays known
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
                f"{label} has the shapes {found} for the nodes {names}.",
                "Each node has one: a row for each dof of its members; X has a column for each "
                "dof of the node.",
                f"Pass tensors of shapes [*batch, ...] with {shapes} at the end.",
            )
