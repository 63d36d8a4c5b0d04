r"""Sparsity patterns of E_A, A and the mass matrix, derived from the tree alone.

=============== ================================== ============================
operator        block (i, j) may be nonzero when   function
=============== ================================== ============================
E_A             i is the parent of j               `sko_pattern`
A               i is j or an ancestor of it        `spo_pattern`
MM              i and j are related                `mass_matrix_pattern`
=============== ================================== ============================

The same holds one scale up: cut the tree into its serial-chain segments, and blocks of E_A couple
adjacent segments, those of A and MM related ones; within a segment all nodes are related, so its
own block is dense. `coarsen` goes from nodes to segments, `expand` from nodes to scalars.

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*,
Nonlinear Dynamics, 2011, section 7; the same results in *Graph Theoretic Foundations of Multibody
Dynamics, Part II*, Multibody System Dynamics 26(3), 2011, section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchsko.algebra.topology.packing import Packing
from torchsko.algebra.topology.subgraph import coarse_tree, segment_groups
from torchsko.algebra.topology.tree import Tree


def sko_pattern(tree: Tree) -> Tensor:
    """Nonzero blocks of E_A: (parent, child), bool `[n, n]`.

    Reference: Jain 2011, Transformations Part I, Eq. 43.
    """
    return _pattern(tree, lambda i, j: tree.parent[j] == i)


def spo_pattern(tree: Tree) -> Tensor:
    """Nonzero blocks of A: (ancestor, node) and the diagonal, bool `[n, n]`.

    Reference: Jain 2011, Transformations Part I, Eq. 45.
    """
    return _pattern(tree, lambda i, j: i == j or tree.is_ancestor(i, j))


def mass_matrix_pattern(tree: Tree) -> Tensor:
    """Nonzero blocks of the mass matrix: those of related nodes, bool `[n, n]`.

    Reference: Jain 2011, Transformations Part I, section 7.
    """
    return _pattern(tree, tree.related)


def segment_tree(tree: Tree) -> Tree:
    """The tree with one node per serial-chain segment, homeomorphic to the tree.

    Returns:
        Segments stand in the order of their lowest-numbered nodes, named by their nodes joined
        by "+".

    Example:
        >>> fork = Tree.from_parents([-1, 0, 1, 1, 3])
        >>> segment_tree(fork)
        Tree(parent=(-1, 0, 0), names=('0+1', '2', '3+4'))

    Reference: Jain 2011, Transformations Part I, section 7.
    """
    return coarse_tree(tree, segment_groups(tree))


def coarsen(
    pattern: Tensor, rows: Sequence[Sequence[int]], cols: Sequence[Sequence[int]] | None = None
) -> Tensor:
    """Pattern of groups from that of their members, bool `[r, c]` to `[len(rows), len(cols)]`.

    A block may be nonzero when any entry in it may.

    Args:
        pattern: of nodes or of scalars.
        rows: the members of each group of rows.
        cols: the same for columns; as rows when left out.
    """
    left = _membership(rows, pattern.shape[0], pattern.device)
    right = _membership(rows if cols is None else cols, pattern.shape[1], pattern.device)
    return left @ pattern.to(left.dtype) @ right.mT > 0


def expand(pattern: Tensor, rows: Packing, cols: Packing) -> Tensor:
    """Pattern of scalars from that of nodes, bool `[n, n]` to `[rows.total, cols.total]`.

    Args:
        pattern: of nodes, in the tree's order.
        rows: packing of the vectors the operator gives: `layout.nodes` or `layout.dofs`.
        cols: packing of the vectors it takes.
    """
    left = _membership(rows.places, rows.total, pattern.device)
    right = _membership(cols.places, cols.total, pattern.device)
    return left.mT @ pattern.to(left.dtype) @ right > 0


def _pattern(tree: Tree, coupled: Callable[[int, int], bool]) -> Tensor:
    nodes = range(tree.num_nodes)
    return torch.tensor([[coupled(i, j) for j in nodes] for i in nodes])


def _membership(groups: Sequence[Sequence[int]], count: int, device: torch.device) -> Tensor:
    """1 where member j belongs to group i; products with it count, so they are exact."""
    rows = [[float(j in group) for j in range(count)] for group in groups]
    return torch.tensor(rows, dtype=torch.float64, device=device).reshape(len(groups), count)
