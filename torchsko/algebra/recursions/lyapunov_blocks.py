"""Single blocks of the products of `torchsko.algebra.recursions.lyapunov`, in its letters.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemma 3 and Algorithm 4.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.algebra.operators.edges import EdgeWeight
from torchsko.algebra.recursions.lyapunov import Levels
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.subgraph import node_number
from torchsko.utils.shapes import broadcast_shapes


def forward_block(
    layout: Layout, A: EdgeWeight, B: EdgeWeight, Y: Levels, i: int | str, j: int | str
) -> Tensor:
    """Block Z(i, j) of A X B* from its diagonal blocks, along the path between the two nodes.

    Args:
        layout: the tree and its block sizes.
        A: weights of the first SPO.
        B: weights of the second SPO.
        Y: `forward_diag(layout, A, X, B)`.
        i: row node, by number or name.
        j: column node.

    Returns:
        `[*batch, m_i, m_j]`; zero for unrelated nodes.

    Raises:
        TreeError: on an unknown node.

    Reference: Jain 2011, Part II, Lemma 3, Eq. 15.
    """
    tree = layout.tree
    i, j = node_number(tree, i), node_number(tree, j)
    if tree.is_ancestor(j, i):
        return forward_block(layout, B, A, tuple(y.mT for y in Y), j, i).mT
    Z = _node(layout, Y, j)
    for k in tree.path(i, j)[:-1]:
        Z = _edge(layout, A, k).up(Z)
    Z = Z if tree.related(i, j) else torch.zeros_like(Z)
    return _trim(layout, Z, i, j, (A, B))


def backward_block(
    layout: Layout, A: EdgeWeight, B: EdgeWeight, Y: Levels, i: int | str, j: int | str
) -> Tensor:
    """Block Z(i, j) of A* X B from its diagonal blocks, by the paths down from what both share.

    With k the closest node at or above both, Z(i, j) = A*(k, i) Y(k) B(k, j). The four cases of the
    algorithm are k = i = j, k = j, k = i, and k above both; without such a k the block is zero.

    Args:
        layout: the tree and its block sizes.
        A: weights of the first SPO.
        B: weights of the second SPO.
        Y: `backward_diag_of(layout, A, X, B)`.
        i: row node, by number or name.
        j: column node.

    Returns:
        `[*batch, m_i, m_j]`; zero for nodes on different bases.

    Raises:
        TreeError: on an unknown node.

    Reference: Jain 2011, Part II, Algorithm 4.3.
    """
    tree = layout.tree
    i, j = node_number(tree, i), node_number(tree, j)
    k = tree.closest_common_ancestor(i, j)
    if k is None:
        return _trim(layout, torch.zeros_like(_node(layout, Y, i)), i, j, (A, B))
    return _carried_down(layout, A, B, _node(layout, Y, k), (k, k), i, j)


def backward_cross_block(
    layout: Layout, A: EdgeWeight, X: Tensor, pair: tuple[int, int], i: int | str, j: int | str
) -> Tensor:
    """Contribution of an off-diagonal block X(a, b) to block (i, j) of A* X A, i below a, j below b.

    Args:
        layout: the tree and its block sizes.
        A: weights of the SPO.
        X: the block, `[*batch, 1, m, m]`.
        pair: a and b, at or above i and j.
        i: row node, by number or name.
        j: column node.

    Returns:
        `[*batch, m_i, m_j]`.
    """
    tree = layout.tree
    return _carried_down(layout, A, A, X, pair, node_number(tree, i), node_number(tree, j))


def _carried_down(
    layout: Layout, A: EdgeWeight, B: EdgeWeight, X: Tensor, pair: tuple[int, int], i: int, j: int
) -> Tensor:
    """A*(a, i) X B(b, j) of a block X(a, b), trimmed."""
    for node in reversed(layout.tree.path(pair[0], i)[:-1]):
        X = _edge(layout, A, node).down(X)
    for node in reversed(layout.tree.path(pair[1], j)[:-1]):
        X = _edge(layout, B, node).down(X.mT).mT
    return _trim(layout, X, i, j, (A, B))


def _node(layout: Layout, Y: Levels, k: int) -> Tensor:
    """The block of node k, `[*, 1, m, m]`."""
    level, place = _place(layout, k)
    return Y[level].narrow(-3, place, 1)


def _edge(layout: Layout, A: EdgeWeight, k: int) -> EdgeWeight:
    """The weight of node k alone."""
    level, place = _place(layout, k)
    after = layout.level_sizes[level] - place - 1
    return A.split(layout.level_sizes)[level].split((place, 1, after))[1]


def _place(layout: Layout, k: int) -> tuple[int, int]:
    level = layout.tree.depth(k)
    return level, layout.tree.levels[level].index(k)


def _trim(layout: Layout, Z: Tensor, i: int, j: int, weights: tuple[EdgeWeight, ...]) -> Tensor:
    """A padded block `[*, 1, m, m]` at its true size `[*batch, m_i, m_j]`."""
    m_i, m_j = layout.nodes.sizes[i], layout.nodes.sizes[j]
    batch = broadcast_shapes(Z.shape[:-3], *(weight.batch_shape for weight in weights))
    return Z[..., 0, :m_i, :m_j].expand(*batch, m_i, m_j)
