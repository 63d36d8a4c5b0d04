r"""Operators on a tree: base class, action, transposition, sums and products.

``X @ Y``, ``X + Y``, ``X - Y``, ``-X`` and ``X.T`` are operators; ``X @ x`` with a tensor is
``X.to_dense() @ x`` at the cost of a few sweeps: no operator forms a matrix larger than a node's
block unless `to_dense` asks for it. Inside ``torch.compile`` write ``compose(X, Y).act(x)`` for
``X @ Y @ x``: Dynamo (torch 2.13) does not trace ``@`` between objects other than tensors.

The concrete operators are in `operators`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, final, overload

import torch
from torch import Tensor

from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.packing import Packing
from torchsko.errors import ShapeError
from torchsko.utils.shapes import broadcast_shapes

Space = Literal["nodes", "dofs"]
"""Vectors with m_k components per node, or with d_k."""


@dataclass(frozen=True, eq=False)
class Signature:
    """Domain, codomain, batch shape and dtype of an operator.

    Attributes:
        layout: the tree and its block sizes.
        rows: space of its results.
        cols: space of its arguments.
        batch_shape: its leading batch dimensions.
        dtype: of its entries.
    """

    layout: Layout
    rows: Space
    cols: Space
    batch_shape: torch.Size
    dtype: torch.dtype

    @property
    def T(self) -> Signature:
        """Signature of the transpose."""
        return replace(self, rows=self.cols, cols=self.rows)

    @property
    def codomain(self) -> Packing:
        """Packing of the vectors it gives."""
        return self.layout.nodes if self.rows == "nodes" else self.layout.dofs

    @property
    def domain(self) -> Packing:
        """Packing of the vectors it takes."""
        return self.layout.nodes if self.cols == "nodes" else self.layout.dofs

    def __str__(self) -> str:
        size = f"[{self.codomain.total}, {self.domain.total}]"
        return f"{self.rows} <- {self.cols}, {size}, {self.layout.tree.num_nodes} nodes"


class TreeOperator(ABC):
    """A linear operator between the vectors of a tree: abstract here, final in every subclass."""

    @property
    @abstractmethod
    def signature(self) -> Signature:
        """Spaces, batch shape and dtype."""

    @property
    @abstractmethod
    def T(self) -> TreeOperator:
        """The transpose."""

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """The operator on packed columns whose padding is zero (see `layout`), O(N).

        `[*batch, n, width, r]` to the same; the result's padding is zero again.
        """

    def act(self, x: Tensor) -> Tensor:
        """`to_dense() @ x`, by sweeps; what `@` does with a tensor.

        Args:
            x: a vector `[N]`, or columns `[*batch, N, r]`, node by node in the tree's order; batch
                dimensions broadcast with the operator's.

        Returns:
            As `torch.matmul` would: `[*batch, M]`, or `[*batch, M, r]`.

        Raises:
            ShapeError: when x has another length than the operator takes.
        """
        if x.ndim == 1:
            return self.act(x[:, None])[..., 0]
        mapped = self.signature
        y = mapped.codomain.unpack(self.apply(mapped.domain.pack(x)))
        # Where no weight is met (a tree of bases only) the operator's own batch must still appear.
        batch = broadcast_shapes(mapped.batch_shape, x.shape[:-2])
        return y.expand(*batch, *y.shape[-2:])

    def to_dense(self) -> Tensor:
        """The matrix, `[*batch, M, N]`, true block sizes, in the tree's order; O(N^2)."""
        mapped = self.signature
        device = mapped.layout.order.device
        return self.act(torch.eye(mapped.domain.total, dtype=mapped.dtype, device=device))

    @overload
    def __matmul__(self, other: TreeOperator) -> TreeOperator: ...
    @overload
    def __matmul__(self, other: Tensor) -> Tensor: ...
    def __matmul__(self, other: Tensor | TreeOperator) -> Tensor | TreeOperator:
        """The product with an operator (see `compose`) or with a tensor (see `act`)."""
        if isinstance(other, Tensor):
            return self.act(other)
        return compose(self, other) if isinstance(other, TreeOperator) else NotImplemented

    def __add__(self, other: TreeOperator) -> TreeOperator:
        """The sum of two operators."""
        if not isinstance(other, TreeOperator):
            return NotImplemented
        mine, its = self.signature, other.signature
        if (mine.rows, mine.cols) != (its.rows, its.cols) or not _same_layout(mine, its):
            raise ShapeError(
                f"{_describe(self)} cannot be added to {_describe(other)}.",
                "Terms of a sum map between the same spaces on the same tree.",
                "Transpose one of them (.T), or multiply by the joint map H or H.T first.",
            )
        return Sum((self, other), _joint(mine, its))

    def __sub__(self, other: TreeOperator) -> TreeOperator:
        """The difference of two operators."""
        return self + (-other)

    def __neg__(self) -> TreeOperator:
        """The operator with its sign turned."""
        return Negative(self)


@dataclass(frozen=True, eq=False, repr=False)
class _Combination(TreeOperator):
    """Operators that are combined into one, with its signature."""

    operators: tuple[TreeOperator, ...]
    combined: Signature

    @property
    def signature(self) -> Signature:
        """Spaces, batch shape and dtype."""
        return self.combined


@final
@dataclass(frozen=True, eq=False, repr=False)
class Composite(_Combination):
    """A product of operators; made by `compose` and `@`."""

    @property
    def T(self) -> Composite:
        """The transposed factors in reverse order."""
        return Composite(tuple(factor.T for factor in reversed(self.operators)), self.combined.T)

    def apply(self, x: Tensor) -> Tensor:
        """The factors in turn, the last one first."""
        for factor in reversed(self.operators):
            x = factor.apply(x)
        return x


@final
@dataclass(frozen=True, eq=False, repr=False)
class Sum(_Combination):
    """A sum of operators between the same spaces; made by `+` and `-`."""

    @property
    def T(self) -> Sum:
        """The sum of the transposes."""
        return Sum(tuple(term.T for term in self.operators), self.combined.T)

    def apply(self, x: Tensor) -> Tensor:
        """Every term on the same columns."""
        first, *rest = (term.apply(x) for term in self.operators)
        return sum(rest, start=first)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Negative(TreeOperator):
    """An operator with its sign turned; made by `-`."""

    operator: TreeOperator

    @property
    def signature(self) -> Signature:
        """Spaces, batch shape and dtype."""
        return self.operator.signature

    @property
    def T(self) -> Negative:
        """The transpose, with its sign turned."""
        return Negative(self.operator.T)

    def apply(self, x: Tensor) -> Tensor:
        """The operator, then the sign."""
        return -self.operator.apply(x)


def compose(*factors: TreeOperator) -> TreeOperator:
    """The product X Y ... Z of operators, as ``X @ Y @ ... @ Z``; this one `torch.compile` traces.

    Args:
        *factors: from left to right; each one's columns are the rows of the next.

    Raises:
        ShapeError: when two neighbors do not fit, or belong to different trees.
    """
    first, *rest = factors
    mapped = first.signature
    for left, right in zip(factors, rest, strict=False):
        taken, given = left.signature, right.signature
        if taken.cols != given.rows or not _same_layout(taken, given):
            raise ShapeError(
                f"{_describe(left)} cannot act on what {_describe(right)} gives.",
                "In a product the columns of the left factor are the rows of the right one, on one "
                "tree.",
                "Transpose one of them (.T), or multiply by the joint map H or H.T in between.",
            )
        mapped = replace(_joint(mapped, given), cols=given.cols)
    flat = [x for f in factors for x in (f.operators if isinstance(f, Composite) else (f,))]
    return Composite(tuple(flat), mapped)


def _describe(x: TreeOperator) -> str:
    return f"{type(x).__name__} ({x.signature})"


def _same_layout(x: Signature, y: Signature) -> bool:
    """True if both signatures have the same tree and block sizes."""
    mine, its = x.layout, y.layout
    return mine is its or (
        mine.tree.parent == its.tree.parent
        and mine.nodes.sizes == its.nodes.sizes
        and mine.dofs.places == its.dofs.places
    )


def _joint(x: Signature, y: Signature) -> Signature:
    """The first signature with the batch shape of both."""
    return replace(x, batch_shape=broadcast_shapes(x.batch_shape, y.batch_shape))
