"""A model as one block per node, at true sizes: the form in which its tree is taken apart.

The recursions want packed tensors; a transformation of the tree wants to say which block goes
where. Blocks come out of a model by `blocks_of`, go back into one by `Blocks.model`, and the
functions at the end lay them out in small dense matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.hinge import armature_blocks
from torchsko.algebra.operators.model import SKOModel, stack_blocks
from torchsko.algebra.topology.tree import Tree
from torchsko.utils.shapes import broadcast_shapes


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a model, node by node in the tree's order; vectors are columns.

    Attributes:
        edge_weight: A(p(k), k), `[*batch, m_p, m_k]`; without rows at a base.
        joint_map: H(k), `[*batch, d_k, m_k]`.
        inertia: M(k), `[*batch, m_k, m_k]`.
        coriolis_accel: a(k), `[*batch, m_k, 1]`.
        gyro_force: b(k), `[*batch, m_k, 1]`.
        armature: S(k), `[*batch, d_k, 1]` or `[*batch, d_k, d_k]`, or None for zero.
        hinge_bias: s(k), `[*batch, d_k, 1]`, or None for zero.
        straight: E(k), `[*batch, d_k, m_k]`, or None (see `SKOModel`).
        aligned: whether rows of E(k) are unit vectors, or zero.
        dof_places: where the dofs of node k stand in dof vectors.
    """

    edge_weight: list[Tensor]
    joint_map: list[Tensor]
    inertia: list[Tensor]
    coriolis_accel: list[Tensor]
    gyro_force: list[Tensor]
    armature: list[Tensor] | None
    hinge_bias: list[Tensor] | None
    straight: list[Tensor] | None
    aligned: list[bool]
    dof_places: list[tuple[int, ...]]

    def model(self, tree: Tree) -> SKOModel:
        """The model of these blocks on a tree."""
        S = self.armature
        made = SKOModel.from_blocks(
            tree,
            self.edge_weight,
            self.joint_map,
            self.inertia,
            [a[..., 0] for a in self.coriolis_accel],
            [b[..., 0] for b in self.gyro_force],
            None,
            self.dof_places,
            self.straight,
        )
        weight, layout = DenseEdges(made.edge_weight.dense()), made.layout
        s = self.hinge_bias
        made = replace(
            made, hinge_bias=None if s is None else stack_blocks(layout, s, layout.dofs.width, 1)
        )
        if S is not None:
            diagonal = all(s.shape[-1] == 1 for s in S)
            width = layout.dofs.width
            S = [s if diagonal else armature_blocks(s) for s in S]
            S = stack_blocks(layout, S, width, 1 if diagonal else width)
        return replace(made, edge_weight=weight, armature=S, aligned=tuple(self.aligned))


def blocks_of(model: SKOModel) -> Blocks:
    """The blocks of a model."""
    layout, S = model.layout, model.armature
    m, d = layout.nodes.sizes, layout.dofs.sizes
    one = (1,) * model.tree.num_nodes

    def cut(packed: Tensor, rows: Sequence[int], cols: Sequence[int]) -> list[Tensor]:
        blocks = layout.tree_order(packed, -3).unbind(-3)
        return [b[..., :r, :c] for b, r, c in zip(blocks, rows, cols, strict=True)]

    return Blocks(
        edge_weight=cut(
            model.edge_weight.dense(), [m[p] if p >= 0 else 0 for p in model.tree.parent], m
        ),
        joint_map=cut(model.joint_map, d, m),
        inertia=cut(model.inertia, m, m),
        coriolis_accel=cut(model.coriolis_accel, m, one),
        gyro_force=cut(model.gyro_force, m, one),
        armature=None if S is None else cut(S, d, one if S.shape[-1] == 1 else d),
        hinge_bias=None if model.hinge_bias is None else cut(model.hinge_bias, d, one),
        straight=None if model.straight is None else cut(model.straight, d, m),
        aligned=list(model.aligned),
        dof_places=list(layout.dofs.places),
    )


def row_of_columns(columns: Sequence[Tensor], starts: Sequence[int], rows: int) -> Tensor:
    """Blocks side by side, each from its own row on in a matrix of that many rows, else zeros."""
    placed = [
        pad(block, (0, 0, start, rows - start - block.shape[-2]))
        for block, start in zip(columns, starts, strict=True)
    ]
    return concatenate(placed, dim=-1)


def concatenate(blocks: Sequence[Tensor], dim: int) -> Tensor:
    """Matrices one after another along dim -2 or -1, batch dimensions broadcast."""
    shapes = {block.shape[:-2] for block in blocks}
    if len(shapes) > 1:
        batch = broadcast_shapes(*shapes)
        blocks = [block.expand(*batch, *block.shape[-2:]) for block in blocks]
    return torch.cat(list(blocks), dim=dim)


def connector(tree: Tree, blocks: Blocks, above: Sequence[int], below: Sequence[int]) -> Tensor:
    """The part of E_A with the rows of nodes `above` and the columns of nodes `below`, dense.

    Returns:
        `[*batch, sum of m over above, sum of m over below]`; zero but for the edges between them.
    """
    sizes = [blocks.inertia[k].shape[-1] for k in above]
    start = dict(zip(above, accumulate(sizes, initial=0), strict=False))
    columns, starts = [blocks.inertia[0].new_zeros(0, 0)], [0]
    for k in below:
        weight, p = blocks.edge_weight[k], tree.parent[k]
        columns.append(weight if p in start else weight[..., :0, :])
        starts.append(start.get(p, 0))
    return row_of_columns(columns, starts, sum(sizes))
