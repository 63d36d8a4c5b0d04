r"""Lyapunov equations on a tree: quadratic products of two SPOs with a block-diagonal matrix between.

For SPOs A, B of one tree and block-diagonal X,

.. math::
    A X B^* = Y + \tilde A Y + Y \tilde B^*, \qquad X = Y - E_A Y E_B^*,

    A^* X B = Y + \tilde A^* Y + Y \tilde B + R, \qquad X = Y - \mathrm{diag\_of}(E_A^* Y E_B),

with block-diagonal Y (another one in each line) found in one sweep. All terms of a sum are disjoint: no
two have a nonzero block in the same place.

=============== ============================================ ============================
paper           meaning                                      code
=============== ============================================ ============================
E_A, E_B        SKO operators, as their edge weights         ``A``, ``B``
X               given blocks, packed `[*batch, n, m, m]`     ``X``
Y               diagonal blocks, one tensor per level        ``Y``
Z(i, j)         any block of the product                     `lyapunov_blocks`
A~ Y, Y B~, R   the other disjoint terms                     ``below``, ``above``, ``unrelated``
=============== ============================================ ============================

Forward, two nodes get a block when they are related. Backward, they do when they share an ancestor, and
E_A* Y E_B couples siblings: it is *not* block diagonal, which is why `diag_of` stands in the equation
and in the names below.

DEPARTS: in the paper Z is symmetric when A = B, so that half of it need not be computed; X must
be symmetric, too. The paper calls A* X B fully populated: on a forest, nodes on different bases have zero
blocks. Lemma 6 calls Y symmetric and positive semi-definite, which needs A = B and such an X.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemmas 3, 5, 6 and Algorithm 4.3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.algebra.operators import logdepth
from torchsko.algebra.operators.edges import EdgeWeight
from torchsko.algebra.operators.logdepth import Method, Powers, doubles, powers
from torchsko.algebra.operators.sweeps import gather_tilde, scatter_tilde
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.layout import Layout

Levels = tuple[Tensor, ...]
"""Blocks of every node, one tensor `[*batch, n_l, m, m]` per level, bases first."""


class ForwardTerms(NamedTuple):
    """The disjoint terms of Z = A X B*, each `[*batch, M, M]`, M the sum of the node sizes.

    Attributes:
        diagonal: Y.
        below: A~ Y, the blocks Z(i, j) with j below i.
        above: Y B~*, the blocks Z(i, j) with j above i.
    """

    diagonal: Tensor
    below: Tensor
    above: Tensor

    def total(self) -> Tensor:
        """Z itself."""
        return self.diagonal + self.below + self.above


class BackwardTerms(NamedTuple):
    """The disjoint terms of Z = A* X B, each `[*batch, M, M]`, M the sum of the node sizes.

    Attributes:
        diagonal: Y.
        above: A~* Y, the blocks Z(i, j) with j above i.
        below: Y B~, the blocks Z(i, j) with j below i.
        unrelated: R, the blocks of unrelated nodes that share an ancestor.
    """

    diagonal: Tensor
    above: Tensor
    below: Tensor
    unrelated: Tensor

    def total(self) -> Tensor:
        """Z itself."""
        return self.diagonal + self.above + self.below + self.unrelated


def forward_diag(
    layout: Layout,
    A: EdgeWeight,
    X: Tensor,
    B: EdgeWeight | None = None,
    *,
    method: Method = "sweep",
) -> Levels:
    """Diagonal blocks Y of A X B*: Y(k) = sum over children j of A(k,j) Y(j) B*(k,j) + X(k), O(N).

    Args:
        layout: the tree and its block sizes.
        A: weights of the first SPO.
        X: blocks, packed `[*batch, n, m, m]`.
        B: weights of the second SPO; when left out B = A, and every X(k) must be symmetric.
        method: "sweep", level by level, or "doubling", in O(log depth) operations (see `logdepth`).

    Returns:
        Y, one tensor `[*batch, n_l, m, m]` per level.

    Raises:
        TorchskoError: on another method.

    Reference: Jain 2011, Part II, Lemma 3.
    """
    if doubles(method):
        return layout.split(logdepth.forward_diag(layout.jumps, *_doubled(layout, A, X, B)))
    Y = list(layout.split(X))
    A_levels = A.split(layout.level_sizes)
    B_levels = [None] * len(Y) if B is None else B.split(layout.level_sizes)
    for depth in range(len(Y) - 1, 0, -1):
        a, b = A_levels[depth], B_levels[depth]
        handed = a.congruence(Y[depth]) if b is None else b.up(a.up(Y[depth]).mT).mT
        Y[depth - 1] = Y[depth - 1] + layout.links[depth].sum_to_parents(handed)
    return tuple(Y)


def forward_terms(layout: Layout, A: EdgeWeight, B: EdgeWeight, Y: Levels) -> ForwardTerms:
    """All of Z = A X B*, as its disjoint terms Y, A~ Y and Y B~*.

    Args:
        layout: the tree and its block sizes.
        A: weights of the first SPO.
        B: weights of the second SPO.
        Y: `forward_diag(layout, A, X, B)`.

    Returns:
        Three matrices `[*batch, M, M]`, node by node in the tree's order.

    Reference: Jain 2011, Part II, Lemma 3, Eq. 11.
    """
    columns, rows = _as_columns(join(list(Y))), _as_columns(join([y.mT for y in Y]))
    return ForwardTerms(
        diagonal=_dense(layout, columns),
        below=_dense(layout, gather_tilde(layout, A, columns)),
        above=_dense(layout, gather_tilde(layout, B, rows)).mT,
    )


def backward_diag_of(
    layout: Layout,
    A: EdgeWeight,
    X: Tensor,
    B: EdgeWeight | None = None,
    *,
    method: Method = "sweep",
) -> Levels:
    """Diagonal blocks Y of A* X B: Y(k) = A*(p(k),k) Y(p(k)) B(p(k),k) + X(k), O(N).

    Args:
        layout: the tree and its block sizes.
        A: weights of the first SPO.
        X: blocks, packed `[*batch, n, m, m]`, of any symmetry.
        B: weights of the second SPO; when left out, B = A.
        method: "sweep", level by level, or "doubling", in O(log depth) operations (see `logdepth`).

    Returns:
        Y, one tensor `[*batch, n_l, m, m]` per level. It solves only X = Y - diag_of(E_A* Y E_B).

    Raises:
        TorchskoError: on another method.

    Reference: Jain 2011, Part II, Lemma 5.
    """
    if doubles(method):
        return layout.split(logdepth.backward_diag_of(layout.jumps, *_doubled(layout, A, X, B)))
    Y = list(layout.split(X))
    A_levels = A.split(layout.level_sizes)
    B_levels = A_levels if B is None else B.split(layout.level_sizes)
    for depth in range(1, len(Y)):
        above = layout.links[depth].to_children(Y[depth - 1])
        carried = B_levels[depth].down(A_levels[depth].down(above).mT).mT
        Y[depth] = carried + Y[depth]
    return tuple(Y)


def backward_terms(layout: Layout, A: EdgeWeight, B: EdgeWeight, Y: Levels) -> BackwardTerms:
    """All of Z = A* X B, as its disjoint terms Y, A~* Y, Y B~ and R.

    On a serial chain all nodes are related and R vanishes.

    Args:
        layout: the tree and its block sizes.
        A: weights of the first SPO.
        B: weights of the second SPO.
        Y: `backward_diag_of(layout, A, X, B)`.

    Returns:
        Four matrices `[*batch, M, M]`, node by node in the tree's order.

    Reference: Jain 2011, Part II, Lemmas 5 and 6.
    """
    columns, rows = _as_columns(join(list(Y))), _as_columns(join([y.mT for y in Y]))
    below = scatter_tilde(layout, B, rows).flatten(-3, -2).mT.unflatten(-2, columns.shape[-3:-1])
    return BackwardTerms(
        diagonal=_dense(layout, columns),
        above=_dense(layout, scatter_tilde(layout, A, columns)),
        below=_dense(layout, below),
        unrelated=_dense(layout, _unrelated_term(layout, A, below)),
    )


def _doubled(
    layout: Layout, A: EdgeWeight, X: Tensor, B: EdgeWeight | None
) -> tuple[Powers, Tensor, Powers | None]:
    """The arguments of `logdepth` for those of this module."""
    first = powers(layout.jumps, A.dense())
    return first, X, None if B is None else powers(layout.jumps, B.dense())


def _unrelated_term(layout: Layout, A: EdgeWeight, below: Tensor) -> Tensor:
    """R as columns, case four: R(i, j) = A*(p(i), i) Z(p(i), j), where p(i) is not below j either.

    Z(p(i), j) is zero where j is an ancestor of i, so only i and its descendants are masked.
    """
    if layout.level_sizes == (1,) * len(layout.level_sizes):
        return torch.zeros_like(below)
    levels = layout.split(below)
    edges = A.split(layout.level_sizes)
    apart = ~layout.pairs.below.repeat_interleave(layout.nodes.width, dim=-1)
    masks = apart.split(layout.level_sizes)
    R = [torch.zeros_like(levels[0])]
    for depth in range(1, len(levels)):
        above = layout.links[depth].to_children(levels[depth - 1] + R[depth - 1])
        R.append(torch.where(masks[depth][:, None, :], edges[depth].down(above), 0.0))
    return join(R)


def _as_columns(Y: Tensor) -> Tensor:
    """The block-diagonal matrix of packed blocks as columns, `[*, n, m, m]` to `[*, n, m, n m]`."""
    n = Y.shape[-3]
    own = torch.eye(n, dtype=Y.dtype, device=Y.device)[:, None, :, None]
    return (own * Y[..., None, :]).flatten(-2)


def _dense(layout: Layout, columns: Tensor) -> Tensor:
    """Columns `[*, n, m, n m]`, both sides breadth first and padded, as `[*, M, M]` in tree order."""
    rows = layout.nodes.unpack(columns).mT
    return layout.nodes.unpack(rows.unflatten(-2, columns.shape[-3:-1])).mT
