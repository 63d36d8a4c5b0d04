"""Interface of tensors that record operations in a program instead of computing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class RunsEqualCallsOnce(TorchFunctionMode):
    """Base class of modes that look at the operations of a function, not at its values."""

    def results_of(
        self, fn: Callable[..., Sequence[Tensor]], args: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Results of a function, which may be those of an earlier call of the same operations."""
        raise NotImplementedError


class TracedTensor(Tensor):
    """Base class of traced tensors; see `torchsko.fused.tracing.symbolic.Symbolic`."""

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype in which the compiled program computes, which may differ from the tensor's dtype."""
        raise NotImplementedError

    def convert_closure(self, body: Callable[..., Any]) -> tuple[Callable[..., Any], list[Tensor]]:
        """A loop body with its captured batched tensors as additional arguments, and these tensors."""
        raise NotImplementedError

    def record_loop(self, loop: Any, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Record a loop (`torchsko.implicit.tensor_loop.TensorLoop`) over tensors as one instruction."""
        raise NotImplementedError

    def record_table_loop(self, loop: Any, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Record a loop over rows (`torchsko.implicit.table_loop.TableLoop`) as one instruction."""
        raise NotImplementedError

    def record_solution(self, solve: Callable[[], Tensor]) -> Tensor:
        """The solution of an equation, which a program may store for its backward pass.

        Args:
            solve: computes the solution.
        """
        raise NotImplementedError

    def record_block(
        self, kind: str, rows: int, variable: Tensor, fixed: Tensor | None = None, **sizes: Any
    ) -> Tensor:
        """Record a dense operation as one instruction; see `torchsko.fused.program.dense_block.DenseBlock`.

        Args:
            kind: name of the operation.
            rows: number of rows.
            variable: entries of the variable matrix, `[size]`.
            fixed: entries of the fixed matrix, `[size]`.
            **sizes: further attributes of the operation.

        Returns:
            The entries of the result, `[size]`.
        """
        raise NotImplementedError

    def record_product(self, kind: str, shift: float, *tensors: Tensor) -> Tensor:
        """Record a product with a sparse matrix: the function of `torchsko.linalg.sparse` of this name."""
        raise NotImplementedError

    def record_store(self, num_matrices: int, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Record `torchsko.linalg.sparse.store` of one sample: its entries, then the stored tensors."""
        raise NotImplementedError

    def mark_regular(self) -> None:
        """Declare that all entries are finite and not zero; see the function `mark_regular`."""
        raise NotImplementedError

    def can_be_nonzero(self) -> Tensor:
        """Mask of the entries that are not structural zeros; see the function `can_be_nonzero`."""
        raise NotImplementedError

    def mark_rare(self) -> None:
        """Declare that few samples fulfil the conditions; see the function `mark_rare`."""
        raise NotImplementedError


def mark_regular(x: Tensor) -> None:
    """Declare that the entries of a tensor are finite and not zero, so that a program may cancel x / x.

    Without it x / x stays, since it is nan where x is zero or infinite. Eager tensors are left as they are.
    """
    traced = torch.func.debug_unwrap(x, recurse=True)
    if isinstance(traced, TracedTensor):
        traced.mark_regular()


def can_be_nonzero(x: Tensor) -> Tensor:
    """Mask of the entries of a traced tensor that are not structural zeros, bool; one True in eager mode.

    A loop in a kernel does not know which of its inputs are zero. The mask is a constant of the trace.
    """
    traced = torch.func.debug_unwrap(x, recurse=True)
    if isinstance(traced, TracedTensor) and traced.shape == x.shape:
        return traced.can_be_nonzero()
    return torch.ones((), dtype=torch.bool, device=x.device)


def is_traced(x: Tensor) -> bool:
    """True if operations on a tensor are recorded in a program."""
    if torch.compiler.is_compiling():  # compilers refuse `debug_unwrap`
        return False
    return isinstance(torch.func.debug_unwrap(x, recurse=True), TracedTensor)


def mark_rare(condition: Tensor) -> None:
    """Declare that few samples fulfil each of the conditions, `[*batch, ...]`, bool.

    A kernel skips what is computed for ``torch.where(condition, x, y)`` alone where no sample in a vector of
    samples fulfils the condition. Eager tensors are left as they are.
    """
    traced = torch.func.debug_unwrap(condition, recurse=True)
    if isinstance(traced, TracedTensor):
        traced.mark_rare()
