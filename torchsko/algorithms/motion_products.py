r"""Products of joint motions with inertias, computed with the mass matrix in one sweep.

.. math:: C = H A\,(M A^* X^* + B A^* Z^*) + H \tilde A F + E

X and Z are motions of every node per unit of its dofs. The Coriolis matrix and the
derivatives of inverse dynamics have this form. Both products decompose as in Lemma 3. Let R and Y be the
diagonal blocks of A M A* and A B A*. The columns R X* + Y Z*, R H* and Y* H* of every node are propagated to
its ancestors and multiplied there with H, X and Z.

========== ============================================================ ============
symbol     meaning                                                      code
========== ============================================================ ============
X, Z       motions multiplied with M, and with B                        ``X``, ``Z``
F          forces that act on ancestors only                            ``above``
E          contribution of a node's dofs to its own block               ``own``
R, Y       composite-body inertia, and the composite of B               ``R``, ``Y``
========== ============================================================ ============

References: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemma 3; S. Echeandia, P. Wensing, *Numerical methods to compute the Coriolis matrix
and Christoffel symbols for rigid-body systems*, Journal of Computational and Nonlinear Dynamics 16(9),
2021, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.algebra.operators.hinge import level_maps
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.lyapunov import forward_diag
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.pairs import Pairs
from torchsko.algorithms.composite_body import composite_inertia
from torchsko.algorithms.mass_matrix import ancestors_map, assembled, raise_columns, together
from torchsko.linalg.symmetric import mirror
from torchsko.utils.shapes import broadcast_shapes


class Motion(NamedTuple):
    """The motions of one matrix; rows go with the dofs of each node, zero-padded.

    Attributes:
        X: what meets M, `[*batch, n, d, m]`.
        Z: what meets B, `[*batch, n, d, m]`; None for H.
        above: F, `[*batch, n, m, d]`; None for zero.
        own: E, `[*batch, n, d, d]`; None for zero.
    """

    X: Tensor
    Z: Tensor | None = None
    above: Tensor | None = None
    own: Tensor | None = None


def mass_and_motion_matrices(
    model: SKOModel, B: Tensor, motions: Sequence[Motion]
) -> tuple[Tensor, ...]:
    """The mass matrix, and the matrix C of every motion, in one sweep, O(N * depth), level by level.

    Args:
        model: an SKO model; its a and b are not read.
        B: blocks, `[*batch, n, m, m]`.
        motions: see `Motion`.

    Returns:
        MM and a matrix for each motion, each `[*batch, num_dof, num_dof]`.

    Reference: Jain 2011, Part II, Lemma 3; Echeandia and Wensing 2021, Algorithm 1.
    """
    layout, pairs = model.layout, model.layout.pairs
    R = composite_inertia(model)
    Y = forward_diag(layout, model.edge_weight, B, model.edge_weight)
    H = level_maps(layout, model.maps)
    levels = [_levels(layout, H, motion) for motion in motions]
    edges = model.edge_weight.split(layout.level_sizes)
    blocks: list[list[Tensor]] = [[] for _ in range(1 + 2 * len(motions))]
    carried: Tensor | None = None
    for depth in reversed(range(len(R))):
        here = [motion[depth] for motion in levels]
        columns = _columns(H[depth], R[depth], Y[depth], here)
        level_blocks = _diagonal_blocks(H[depth], columns, here)
        if carried is not None:
            carried = raise_columns(layout, pairs, depth + 1, edges[depth + 1], carried.flatten(-2))
            carried = carried.unflatten(-1, (2 + len(motions), -1))
            above = _ancestor_blocks(layout, H, levels, depth, carried)
            new_blocks = [[a, b] for a, b in zip(level_blocks, above, strict=True)]
        else:
            new_blocks = [[a] for a in level_blocks]
        blocks = [new + old for new, old in zip(new_blocks, blocks, strict=True)]
        raised = [
            column if motion.above is None else column + motion.above
            for column, motion in zip(columns[2:], here, strict=True)
        ]
        carried = _appended([*columns[:2], *raised], carried)
    shapes = [x.shape[:-3] for motion in motions for x in motion if x is not None]
    batch = broadcast_shapes(model.batch_shape, B.shape[:-3], *shapes)
    flat = [[x.expand(*batch, *x.shape[-3:]).flatten(-3) for x in row] for row in blocks]
    MM, *halves = (assembled(layout, pairs, entries) for entries in flat)
    reads_upper = _reads_upper(layout, pairs)
    found = [
        together(layout, torch.where(reads_upper, upper, lower))
        for upper, lower in zip(halves[::2], halves[1::2], strict=True)
    ]
    MM, S = together(layout, MM), model.armature_matrix()
    return (MM if S is None else MM + S), *found


def _levels(layout: Layout, H: Sequence[Tensor], motion: Motion) -> list[Motion]:
    """A motion level by level, without the dofs that only pad."""
    X = layout.split_dofs(motion.X, -2)
    Z = H if motion.Z is None else layout.split_dofs(motion.Z, -2)
    none = [None] * len(X)
    F = none if motion.above is None else layout.split_dofs(motion.above, -1)
    E = none
    if motion.own is not None:
        rows = layout.split_dofs(motion.own, -2)
        E = [rows_l.narrow(-1, 0, rows_l.shape[-2]) for rows_l in rows]
    return [Motion(*level) for level in zip(X, Z, F, E, strict=True)]


def _columns(H: Tensor, R: Tensor, Y: Tensor, motions: Sequence[Motion]) -> list[Tensor]:
    """R H*, Y* H* and R X* + Y Z* of every node of a level, `[*batch, n, m, d]` each."""
    moved = [R @ motion.X.mT + Y @ (H if motion.Z is None else motion.Z).mT for motion in motions]
    return [R @ H.mT, Y.mT @ H.mT, *moved]


def _diagonal_blocks(
    H: Tensor, columns: Sequence[Tensor], motions: Sequence[Motion]
) -> list[Tensor]:
    """Diagonal blocks of every node: that of MM, then both halves of each matrix."""
    blocks = [mirror(H @ columns[0])]
    for column, motion in zip(columns[2:], motions, strict=True):
        block = H @ column if motion.own is None else H @ column + motion.own
        blocks += [block, block.mT]
    return blocks


def _ancestor_blocks(
    layout: Layout,
    H: Sequence[Tensor],
    levels: Sequence[Sequence[Motion]],
    depth: int,
    carried: Tensor,
) -> list[Tensor]:
    """Blocks of descendants' columns with the dofs of their ancestors in a level, as `_diagonal_blocks`."""
    pairs, count = layout.pairs, carried.shape[-4]
    above = [ancestors_map(layout, pairs, depth, H[depth], count)]
    momentum, turned, *moved = carried.unbind(-2)
    blocks = [above[0] @ momentum]
    for column, motion in zip(moved, levels, strict=True):
        X, Z = (
            ancestors_map(layout, pairs, depth, x, count)
            for x in (motion[depth].X, _or(motion[depth].Z, H[depth]))
        )
        blocks += [above[0] @ column, X @ momentum + Z @ turned]
    return blocks


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    return other if x is None else x


def _appended(columns: Sequence[Tensor], carried: Tensor | None) -> Tensor:
    """The columns of a level, stacked, then those from deeper levels; narrower ones padded with zeros."""
    here = torch.stack(torch.broadcast_tensors(*columns), -2)
    if carried is None:
        return here
    width = max(here.shape[-1], carried.shape[-1])
    both = [torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (here, carried)]
    return join([x.flatten(-2) for x in both]).unflatten(-1, (-1, width))


def _reads_upper(layout: Layout, pairs: Pairs) -> Tensor:
    """Mask of the entries that `assembled` reads before it mirrors them.

    It reads every block of two nodes with the ancestor's dofs as rows, and a diagonal block of a node
    on and below its diagonal.
    """
    dofs = layout.dofs if layout.apart is None else layout.apart
    node = torch.div(dofs.place, dofs.width, rounding_mode="floor")
    above = pairs.below.index_select(0, node).index_select(1, node)
    same = node[:, None] == node
    return torch.where(same, dofs.place[:, None] >= dofs.place, above)
