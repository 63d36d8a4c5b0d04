r"""The operators of a tree, applied by sweeps.

.. math::
    [E_A]_{p(k),k} = A(p(k), k), \qquad A = (I - E_A)^{-1}, \qquad \tilde A = A - I = E_A A

=============== ===================== ========================== =========
class           operator              held as                    applied
=============== ===================== ========================== =========
`BlockDiagonal` H, M, P, D, G, ...    one block per node         product
`SKO`           E_A, E_A*             one edge weight per node   one step
`SPO`           A, A*                 one edge weight per node   one sweep
`Identity`      I                     nothing                    not
=============== ===================== ========================== =========

Products, sums and transposes of them: see `composition`.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, sections 2-3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, final

import torch
from torch import Tensor

from torchsko.algebra.operators.composition import Signature, Space, TreeOperator
from torchsko.algebra.operators.edges import EdgeWeight
from torchsko.algebra.operators.sweeps import gather, scatter, step_down, step_up
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.sharing import total


@final
@dataclass(frozen=True, eq=False, repr=False)
class BlockDiagonal(TreeOperator):
    """One block per node, nothing between nodes but what they share (see `sharing`).

    Attributes:
        layout: tree and block sizes.
        blocks: packed breadth first, zero-padded, `[*batch, n, width of rows, width of cols]`.
        rows: space of the vectors it gives.
        cols: space of the vectors it takes.
    """

    layout: Layout
    blocks: Tensor
    rows: Space = "nodes"
    cols: Space = "nodes"

    @property
    def signature(self) -> Signature:
        """Spaces, batch shape and dtype."""
        blocks = self.blocks
        return Signature(self.layout, self.rows, self.cols, blocks.shape[:-3], blocks.dtype)

    @property
    def T(self) -> BlockDiagonal:
        """The transpose: the blocks' transposes."""
        return BlockDiagonal(self.layout, self.blocks.mT, self.cols, self.rows)

    def apply(self, x: Tensor) -> Tensor:
        """Block times block; what reaches a hinge from several nodes is added up."""
        y = self.blocks @ x
        return total(self.layout.share, y) if (self.rows, self.cols) == ("dofs", "nodes") else y


@dataclass(frozen=True, eq=False, repr=False)
class _EdgeOperator(TreeOperator):
    """An operator given by one edge weight per node, or its transpose."""

    layout: Layout
    edge_weight: EdgeWeight
    adjoint: bool = False

    @property
    def signature(self) -> Signature:
        """Spaces, batch shape and dtype."""
        batch, dtype = self.edge_weight.batch_shape, self.edge_weight.dense().dtype
        return Signature(self.layout, "nodes", "nodes", batch, dtype)

    @property
    def T(self) -> Self:
        """The transpose."""
        return replace(self, adjoint=not self.adjoint)


@final
@dataclass(frozen=True, eq=False, repr=False)
class SKO(_EdgeOperator):
    """The SKO operator E_A: block (p(k), k) is the edge weight A(p(k), k), every other block zero.

    Nilpotent: its power `tree.nilpotency` is zero.

    Attributes:
        layout: tree and block sizes.
        edge_weight: A(p(k), k) for every node, of any block sizes, singular ones included.
        adjoint: whether this is E_A*.
    """

    def apply(self, x: Tensor) -> Tensor:
        """One step: from children to parents, or from parents to children."""
        step = step_down if self.adjoint else step_up
        return step(self.layout, self.edge_weight, x)


@final
@dataclass(frozen=True, eq=False, repr=False)
class SPO(_EdgeOperator):
    """The spatial propagation operator A = (I - E_A)^-1.

    Block (i, j) is the product of the edge weights on the path from j up to its ancestor i, I on
    the diagonal, zero for all other pairs.

    Attributes:
        layout: tree and block sizes.
        edge_weight: A(p(k), k) for every node.
        adjoint: whether this is A*.
    """

    def apply(self, x: Tensor) -> Tensor:
        """One sweep: gather to the bases (Lemma 1), or scatter to the tips (Lemma 2)."""
        sweep = scatter if self.adjoint else gather
        return sweep(self.layout, self.edge_weight, x)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Identity(TreeOperator):
    """The identity on the node vectors or the dof vectors of a layout."""

    layout: Layout
    space: Space
    dtype: torch.dtype

    @property
    def signature(self) -> Signature:
        """Spaces, batch shape and dtype."""
        return Signature(self.layout, self.space, self.space, torch.Size(), self.dtype)

    @property
    def T(self) -> Identity:
        """Itself."""
        return self

    def apply(self, x: Tensor) -> Tensor:
        """X as it is."""
        return x
