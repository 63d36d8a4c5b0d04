"""Factorizations of matrices of several dozen rows in traced functions, as dense operations of a program.

Below `MIN_ROWS` a trace spells a factorization out in scalars, where zeros and equal entries cost nothing.
From `MIN_ROWS` on it is one instruction on matrices (`torchsko.fused.program.dense_block`), with a fraction
of the build time. Derivatives consist of the same operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko.utils.shapes import broadcast_shapes
from torchsko.utils.traced_tensor import TracedTensor

MIN_ROWS = 16
"""Rows from which a factorization, and the solution with its factors, are one instruction."""

MAX_ROWS = 64
"""Largest number of rows of such an instruction."""


def uses_blocks(A: Tensor) -> bool:
    """True if one instruction factorizes a square matrix: it is traced and has `MIN_ROWS` or more rows."""
    if not MIN_ROWS <= A.shape[-1] <= MAX_ROWS:
        return False
    return isinstance(torch.func.debug_unwrap(A, recurse=True), TracedTensor)


def ldl_matrix(D: Tensor, least: float, eliminate: Callable[[Tensor], Tensor]) -> Tensor:
    """L D L* of a symmetric matrix without pivoting: L below the diagonal, D on it, zeros above.

    Args:
        D: `[*, n, n]`; the upper half is read.
        least: pivots of at most this share of the diagonal's entry are replaced by it; none if negative.
        eliminate: the eager form.

    Returns:
        `[*, n, n]`, differentiable to any order. Replaced pivots are differentiated like the others.
    """
    return _Ldl.apply(D, least, eliminate)


class _Ldl(torch.autograd.Function):
    """With M = L^-1 dD L^-*, dL = L tril(M, -1) / pivots and the change of the pivots is diag(M)."""

    @staticmethod
    def forward(D: Tensor, least: float, eliminate: Callable[[Tensor], Tensor]) -> Tensor:
        if not isinstance(D, TracedTensor):
            return eliminate(D)
        return over_batch(lambda x: unpacked(_traced_ldl(x, least), x.shape[-1]), D)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.least, ctx.eliminate = inputs
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None]:
        (factors,) = (x.view_as(x) for x in ctx.saved_tensors)
        L, pivots = _split(factors)
        (grad,) = grad_outputs
        M = (L.mT @ grad.tril(-1)).tril(-1) / pivots[..., None, :] + _diagonal(grad)
        half = _solve_triangular(L, M, adjoint=True)
        full = _solve_triangular(L, half.mT, adjoint=True)
        return (full + full.mT) / 2, None, None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        with forward_ad._set_fwd_grad_enabled(
            True
        ):  # disabled by PyTorch here; outer levels need it
            (factors,) = (forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors)
            L, pivots = _split(factors)
            tangent = grad_inputs[0].triu() + grad_inputs[0].triu(1).mT
            half = _solve_triangular(L, tangent, adjoint=False)
            M = _solve_triangular(L, half.mT, adjoint=False)
            return L @ (M.tril(-1) / pivots[..., None, :]) + _diagonal(M)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        D, least, eliminate = arguments
        return _Ldl.apply(D.movedim(in_dims[0] or 0, 0), least, eliminate), 0


def _traced_ldl(D: Any, least: float) -> Tensor:
    return D.record_block("ldl", D.shape[-1], packed(D.mT), least=least)


def over_batch(fn: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
    """Apply a function of matrices to each sample of a batch.

    Args:
        fn: maps matrices without batch dimensions to a matrix.
        *matrices: `[*, ...]`, with two dimensions behind the batch; batch dimensions broadcast.
    """
    batch = broadcast_shapes(*(x.shape[:-2] for x in matrices))
    if not batch:
        return fn(*matrices)
    flat = [x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in matrices]
    results = torch.stack([fn(*sample) for sample in zip(*flat, strict=True)])
    return results.reshape(*batch, *results.shape[1:])


def packed(A: Tensor) -> Tensor:
    """The rows of the lower half of a matrix `[n, n]` one after another, `[n (n + 1) / 2]`."""
    n = A.shape[-1]
    return torch.cat([A[i, : i + 1] for i in range(n)])


def unpacked(entries: Tensor, n: int) -> Tensor:
    """The lower triangular matrix `[n, n]` of packed entries."""
    rows = [
        torch.nn.functional.pad(row, (0, n - len(row))) for row in entries.split([*range(1, n + 1)])
    ]
    return torch.stack(rows)


def _split(factors: Tensor) -> tuple[Tensor, Tensor]:
    """L with its diagonal of ones, and the pivots."""
    pivots = factors.diagonal(0, -2, -1)
    return factors.tril(-1) + _diagonal(torch.ones_like(factors)), pivots


def _diagonal(A: Tensor) -> Tensor:
    """The matrix with its entries off the diagonal replaced by zeros."""
    return A.triu().tril()


def _solve_triangular(L: Tensor, B: Tensor, *, adjoint: bool) -> Tensor:
    """X with L X = B, or L* X = B, for L with a diagonal of ones."""
    L = L.mT if adjoint else L
    return torch.linalg.solve_triangular(L, B, upper=adjoint, unitriangular=True)
