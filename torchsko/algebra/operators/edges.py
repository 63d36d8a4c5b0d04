"""Edge weights A(p(k), k): what one edge of the tree does to a vector or an inertia that crosses it.

Recursions never touch the numbers of a weight; they ask it to carry something `up` to the parent,
`down` to the child (its transpose), or an inertia up by `congruence`. So the same recursion runs on
dense matrices, which is fastest in eager mode, and on factored ones (a rigid transform kept as
rotation and position), which give the fewest operations when traced to scalars.

Weights are packed, `[*batch, n, ...]`, node k's edge at k; those of base nodes lead to the inertial
frame and are read by nothing in `algebra`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from torchsko.algebra.topology.gathering import join
from torchsko.utils.shapes import broadcast_shapes


class EdgeWeight(ABC):
    """One linear map per node, from the node's vectors to its parent's."""

    @property
    @abstractmethod
    def batch_shape(self) -> torch.Size:
        """Leading batch dimensions."""

    @abstractmethod
    def up(self, y: Tensor) -> Tensor:
        """A(p, k) y(k): `[*, n, m_k, r]` to `[*, n, m_p, r]`."""

    @abstractmethod
    def down(self, x: Tensor) -> Tensor:
        """A*(p, k) x: a parent-side block per child, `[*, n, m_p, r]`, to `[*, n, m_k, r]`."""

    @abstractmethod
    def congruence(self, P: Tensor) -> Tensor:
        """A P A* for symmetric P: `[*, n, m_k, m_k]` to `[*, n, m_p, m_p]`."""

    @abstractmethod
    def split(self, sizes: Sequence[int]) -> Sequence[EdgeWeight]:
        """The weights of consecutive runs of nodes."""

    @abstractmethod
    def select(self, nodes: Tensor) -> EdgeWeight:
        """The weights of the nodes at these positions, int64 `[k]`."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The matrices, `[*, n, m_p, m_k]`."""


@final
@dataclass(frozen=True, eq=False)
class DenseEdges(EdgeWeight):
    """Edge weights as matrices.

    Attributes:
        weight: `[*batch, n, m_p, m_k]`, padded to one size.
    """

    weight: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        """Leading batch dimensions."""
        return self.weight.shape[:-3]

    def up(self, y: Tensor) -> Tensor:
        """A y."""
        return self.weight @ y

    def down(self, x: Tensor) -> Tensor:
        """A* x."""
        return self.weight.mT @ x

    def congruence(self, P: Tensor) -> Tensor:
        """A P A*."""
        # P is symmetric; read as P* the small product runs along rows, 1.8 times faster on a CPU.
        return (self.weight @ P.mT) @ self.weight.mT

    def split(self, sizes: Sequence[int]) -> Sequence[DenseEdges]:
        """One object per run of nodes."""
        return [DenseEdges(w) for w in self.weight.split(tuple(sizes), dim=-3)]

    def select(self, nodes: Tensor) -> DenseEdges:
        """The weights at these positions."""
        return DenseEdges(self.weight.index_select(-3, nodes))

    def dense(self) -> Tensor:
        """The matrices themselves."""
        return self.weight


@final
@dataclass(frozen=True, eq=False)
class LevelEdges(EdgeWeight):
    """The edge weights of consecutive runs of nodes, normally one run per level, each contiguous.

    Attributes:
        runs: weights of each run, all of one kind.
        sizes: number of nodes in each.
    """

    runs: tuple[EdgeWeight, ...]
    sizes: tuple[int, ...]

    @property
    def batch_shape(self) -> torch.Size:
        """Leading batch dimensions."""
        return broadcast_shapes(*(run.batch_shape for run in self.runs))

    def up(self, y: Tensor) -> Tensor:
        """A y."""
        return join([run.up(part) for run, part in self._with(y)])

    def down(self, x: Tensor) -> Tensor:
        """A* x."""
        return join([run.down(part) for run, part in self._with(x)])

    def congruence(self, P: Tensor) -> Tensor:
        """A P A*."""
        return join([run.congruence(part) for run, part in self._with(P)])

    def split(self, sizes: Sequence[int]) -> Sequence[EdgeWeight]:
        """The runs themselves, or other ones cut from the joined matrices."""
        if tuple(sizes) == self.sizes:
            return self.runs
        return DenseEdges(self.dense()).split(sizes)

    def select(self, nodes: Tensor) -> DenseEdges:
        """The weights at these positions."""
        return DenseEdges(self.dense().index_select(-3, nodes))

    def dense(self) -> Tensor:
        """The matrices, `[*, n, m_p, m_k]`."""
        return join([run.dense() for run in self.runs])

    def _with(self, x: Tensor) -> list[tuple[EdgeWeight, Tensor]]:
        # One parent for all, or one edge for all: the run broadcasts.
        if x.shape[-3] == 1 or len(self.runs) == 1:
            return [(run, x) for run in self.runs]
        return list(zip(self.runs, x.split(self.sizes, dim=-3), strict=True))


@final
@dataclass(frozen=True, eq=False)
class ProductEdges(EdgeWeight):
    """Products of edge weights along paths, kept as factors: for code that is traced to scalars.

    Attributes:
        factors: weights of the edges from the outermost to the innermost, each of as many nodes.
    """

    factors: tuple[EdgeWeight, ...]

    @property
    def batch_shape(self) -> torch.Size:
        """Leading batch dimensions."""
        return broadcast_shapes(*(factor.batch_shape for factor in self.factors))

    def up(self, y: Tensor) -> Tensor:
        """A y."""
        for factor in reversed(self.factors):
            y = factor.up(y)
        return y

    def down(self, x: Tensor) -> Tensor:
        """A* x."""
        for factor in self.factors:
            x = factor.down(x)
        return x

    def congruence(self, P: Tensor) -> Tensor:
        """A P A*."""
        for factor in reversed(self.factors):
            P = factor.congruence(P)
        return P

    def split(self, sizes: Sequence[int]) -> Sequence[ProductEdges]:
        """One object per run of nodes."""
        runs = zip(*(factor.split(sizes) for factor in self.factors), strict=True)
        return [ProductEdges(run) for run in runs]

    def select(self, nodes: Tensor) -> ProductEdges:
        """The weights at these positions."""
        return ProductEdges(tuple(factor.select(nodes) for factor in self.factors))

    def dense(self) -> Tensor:
        """The matrices, `[*, n, m_p, m_k]`."""
        dense = [factor.dense() for factor in self.factors]
        weight = dense[0]
        for factor in dense[1:]:
            weight = weight @ factor
        return weight
