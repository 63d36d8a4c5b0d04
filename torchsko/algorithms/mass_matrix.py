r"""The mass matrix from composite-body inertias.

.. math::
    \mathcal{M} = H R H^* + H \tilde{A} R H^* + H R \tilde{A}^* H^* + S

======== ================================ ==========================
paper    meaning                          code
======== ================================ ==========================
R        composite-body inertia           ``R``
X        R(k) H*(k), carried up the path  ``X``
======== ================================ ==========================

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemma 4, Algorithms 4.1 and 4.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.algebra.operators.edges import EdgeWeight
from torchsko.algebra.operators.hinge import level_maps
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.pairs import Pairs
from torchsko.algorithms.composite_body import composite_inertia
from torchsko.linalg.symmetric import mirror
from torchsko.utils.shapes import gather_entries


def mass_matrix(model: SKOModel) -> Tensor:
    """The mass matrix by Algorithm 4.2, O(N * depth), level by level.

    For every node k, X = R(k) H*(k) travels up its path; each ancestor l it meets gives the block
    MM(l, k) = H(l) X. All nodes travel together, one level at a time; from their parent on, those that share
    a hinge travel as their sum.

    Returns:
        `[*batch, num_dof, num_dof]`, symmetric [kg m^2, kg m or kg].

    Reference: Jain 2011, Part II, Algorithm 4.2.
    """
    layout, pairs = model.layout, model.layout.pairs
    R = composite_inertia(model)
    H = level_maps(layout, model.maps)
    edges = model.edge_weight.split(layout.level_sizes)
    batch = model.batch_shape
    entries: list[Tensor] = []
    X: Tensor | None = None
    for depth in reversed(range(len(R))):
        here = R[depth] @ H[depth].mT
        diagonal = mirror(H[depth] @ here)
        met = [diagonal]
        if X is not None:
            X = raise_columns(layout, pairs, depth + 1, edges[depth + 1], X)
            met.append(ancestors_map(layout, pairs, depth, H[depth], X.shape[-3]) @ X)
        entries = [block.expand(*batch, *block.shape[-3:]).flatten(-3) for block in met] + entries
        X = append(here, X)
    MM, S = together(layout, assembled(layout, pairs, entries)), model.armature_matrix()
    return MM if S is None else MM + S


def assembled(layout: Layout, pairs: Pairs, entries: list[Tensor]) -> Tensor:
    """The symmetric matrix of entries in the order of `Pairs.mass_matrix_source`, flat per level."""
    flat = torch.nn.functional.pad(torch.cat(entries, dim=-1), (0, 1))
    n = sum(layout.dofs.sizes)
    return gather_entries(flat, pairs.mass_matrix_source).unflatten(-1, (n, n))


def together(layout: Layout, matrix: Tensor) -> Tensor:
    """The matrix of all dofs from one in which every node has its own: shared ones add up."""
    if layout.apart is not None:
        for _ in range(2):
            matrix = layout.dofs.collect(layout.apart.pack(matrix)).mT
    return matrix


def raise_columns(layout: Layout, pairs: Pairs, depth: int, edges: EdgeWeight, X: Tensor) -> Tensor:
    """Columns of the nodes at `depth` or deeper, carried from `depth` to the level above."""
    X = ancestors(layout, pairs, depth, edges).up(X)
    share, count = layout.shares[depth], layout.level_sizes[depth]
    if share is None:
        return X
    here, below = X.split((count, X.shape[-3] - count), -3)
    return torch.cat([share.leader_total(here), below], -3)


def ancestors(layout: Layout, pairs: Pairs, depth: int, edges: EdgeWeight) -> EdgeWeight:
    """For every node at `depth` or deeper, the edge weight of its ancestor at `depth`."""
    if layout.level_sizes[depth] == 1:
        return edges  # one ancestor for all: broadcasting hands it out
    return edges.select(pairs.ancestor[depth])


def ancestors_map(layout: Layout, pairs: Pairs, depth: int, H: Tensor, count: int) -> Tensor:
    """For every node deeper than `depth`, the joint map of its ancestor at `depth`."""
    return (
        H if layout.level_sizes[depth] == 1 else H.index_select(-3, pairs.ancestor[depth][-count:])
    )


def append(here: Tensor, X: Tensor | None) -> Tensor:
    """A level's own columns, then those from below; narrower ones padded with zeros."""
    if X is None:
        return here
    width = max(here.shape[-1], X.shape[-1])
    both = [torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (here, X)]
    return join(both)
