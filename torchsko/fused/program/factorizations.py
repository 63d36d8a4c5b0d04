"""Factorizations of small matrices in traced functions, written out with + - * / and sqrt.

Arguments and results are those of the ATen operations, since PyTorch's derivative formulas call
these operations. There are two differences. Pivoting exchanges a row with the pivot row whenever
its entry is larger, which selects the same pivots. A singular or indefinite matrix gives results
that are not finite instead of an error, since a kernel cannot raise one.

Reference: G. Golub, C. Van Loan, *Matrix Computations*, 4th edition, algorithms 3.4.1 and 4.2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.linalg.dense import MAX_ROWS, MIN_ROWS, over_batch, packed, unpacked, uses_blocks
from torchsko.utils.shapes import broadcast_shapes
from torchsko.utils.traced_tensor import TracedTensor

MAX_PIVOTED_ROWS = 16
"""Largest matrix whose factorization with pivoting is spelled out: each pair of rows costs a selection for
every column. Larger ones are one instruction."""


def cholesky_ex(
    A: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """Lower triangular L with L L* = A; only the lower half of A is read, or the upper half with `upper`."""
    if uses_blocks(A):
        L = over_batch(_dense_cholesky, A.mT if upper else A)
        return L.mT.contiguous() if upper else L, _no_errors(A)
    rest, columns = A.mT if upper else A, []
    for k in range(A.shape[-1]):
        column = rest[..., 1:, 0] / (root := rest[..., 0, 0].sqrt())[..., None]
        below = torch.cat([root[..., None], column], -1)
        columns.append(torch.nn.functional.pad(below, (k, 0)))
        rest = rest[..., 1:, 1:] - column[..., :, None] * column[..., None, :]
    L = torch.stack(columns, -1) if columns else A
    return L.mT if upper else L, _no_errors(A)


def lu(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """LU factors of A: L and U in one matrix, the order of rows, and the sign of this permutation."""
    n = A.shape[-1]
    if n > MAX_PIVOTED_ROWS:
        return _dense_lu(A)
    rows = list(A.unbind(-2))
    order = [A.new_full(A.shape[:-2], float(i)) for i in range(n)]
    sign = A.new_ones(A.shape[:-2])
    for k in range(n - 1):
        for i in range(k + 1, n):
            swap = rows[i][..., k].abs() > rows[k][..., k].abs()
            rows[k], rows[i] = _exchanged(swap[..., None], rows[k], rows[i])
            order[k], order[i] = _exchanged(swap, order[k], order[i])
            sign = torch.where(swap, -sign, sign)
        for i in range(k + 1, n):
            factor = rows[i][..., k : k + 1] / rows[k][..., k : k + 1]
            rest = rows[i][..., k + 1 :] - factor * rows[k][..., k + 1 :]
            rows[i] = torch.cat([rows[i][..., :k], factor, rest], -1)
    return (torch.stack(rows, -2), torch.stack(order, -1), sign) if n else (A, A.sum(-1), sign)


def pivots_of(order: Tensor) -> Tensor:
    """LAPACK pivots of a row order: for each row in turn, the row it was exchanged with, counted from 1."""
    rows = [torch.full_like(order[..., 0], float(i)) for i in range(order.shape[-1])]
    pivots = []
    for k, row in enumerate(order.unbind(-1)):
        pivot = torch.full_like(row, k + 1.0)
        for i in range(k + 1, len(rows)):
            is_pivot = rows[i] == row
            pivot = torch.where(is_pivot, i + 1.0, pivot)
            rows[k], rows[i] = _exchanged(is_pivot, rows[k], rows[i])
        pivots.append(pivot)
    return torch.stack(pivots, -1) if pivots else order


def order_of(pivots: Tensor, LU: Tensor) -> Tensor:
    """The row order that results from LAPACK pivots; the inverse of `pivots_of`."""
    like = LU[..., 0].expand(broadcast_shapes(LU.shape[:-1], pivots.shape))
    rows = [torch.full_like(like[..., 0], float(i)) for i in range(pivots.shape[-1])]
    for k, pivot in enumerate(pivots.unbind(-1)):
        for i in range(k + 1, len(rows)):
            rows[k], rows[i] = _exchanged(pivot == i + 1.0, rows[k], rows[i])
    return torch.stack(rows, -1) if rows else like


def det(A: Tensor) -> Tensor:
    """The determinant by differentiable operations; PyTorch's derivative needs singular values."""
    n = A.shape[-1]
    if n == 2:
        return A[..., 0, 0] * A[..., 1, 1] - A[..., 0, 1] * A[..., 1, 0]
    if n == 3:
        return (A[..., 0] * torch.linalg.cross(A[..., 1], A[..., 2])).sum(-1)
    LU, _, sign = lu(A)
    return reduce(torch.mul, LU.diagonal(0, -2, -1).unbind(-1), sign)


def slogdet(A: Tensor) -> tuple[Tensor, Tensor]:
    """Sign of the determinant and logarithm of its absolute value, by differentiable operations."""
    LU, _, sign = lu(A)
    pivots = LU.diagonal(0, -2, -1)
    return sign * pivots.sign().prod(-1), pivots.abs().log().sum(-1)


def logdet(A: Tensor) -> Tensor:
    """Logarithm of the determinant, by differentiable operations; nan where the determinant is negative."""
    sign, logarithm = slogdet(A)
    return torch.where(sign < 0, torch.nan, logarithm)


def lu_solve(
    LU: Tensor, order: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """X with A X = B, or A* X = B with `adjoint`, or X A = B without `left`, from LU factors of A.

    A floating-point ``order`` is the row order that `solve_ex` and `inv_ex` save for derivatives.
    An integer one holds LAPACK pivots, from `lu_factor_ex` or from PyTorch for a constant matrix.
    """
    if not order.dtype.is_floating_point:
        order = order_of(order, LU)
    if not left:
        return lu_solve(LU, order, B.mT, adjoint=not adjoint).mT.contiguous()
    if not adjoint:
        B = solve_triangular(LU, _reordered(order, B), upper=False, unitriangular=True)
        return solve_triangular(LU, B, upper=True)
    B = solve_triangular(LU.mT, B, upper=False)
    B = solve_triangular(LU.mT, B, upper=True, unitriangular=True)
    return _reordered(order, B, inverse=True)


def solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X with A X = B, and the LU factors for derivatives."""
    is_vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    columns = B[..., None] if is_vector else B
    LU, order, _ = lu(A)
    X = lu_solve(LU, order, columns, left=left)
    return X[..., 0] if is_vector else X, LU, order, _no_errors(A)


def inv_ex(A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """The inverse."""
    LU, order, _ = lu(A)
    return lu_solve(LU, order, _identity(A)), _no_errors(A)


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """X with A X = B, or X A = B without `left`; only one triangle of A is read."""
    if not left:
        return solve_triangular(
            A.mT, B.mT, upper=not upper, unitriangular=unitriangular
        ).mT.contiguous()
    n = A.shape[-1]
    if MIN_ROWS <= n <= MAX_ROWS:
        kind, L = ("backward", A.mT) if upper else ("forward", A)
        return over_batch(partial(_dense_solve, kind, unitriangular), L, B)
    solution: list[Tensor] = [B] * n
    for k in reversed(range(n)) if upper else range(n):
        row = B[..., k, :]
        for j in range(k + 1, n) if upper else range(k):
            row = row - A[..., k, j, None] * solution[j]
        solution[k] = row if unitriangular else row / A[..., k, k, None]
    return torch.stack(torch.broadcast_tensors(*solution), -2) if n else B


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with L L* X = B."""
    L = L.mT if upper else L
    return solve_triangular(L.mT, solve_triangular(L, B, upper=False), upper=True)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of L L*."""
    return cholesky_solve(_identity(L), L, upper)


def _dense_cholesky(A: Any) -> Tensor:
    n = A.shape[-1]
    return unpacked(A.record_block("cholesky", n, packed(A)), n)


def _dense_solve(kind: str, unit: bool, L: Any, B: Any) -> Tensor:
    """X with L X = B, or L* X = B, by one instruction."""
    traced = L if isinstance(L, TracedTensor) else B
    sizes = {"columns": B.shape[-1], "unit": unit}
    entries = traced.record_block(kind, B.shape[-2], B.reshape(-1), packed(L), **sizes)
    return entries.reshape(B.shape)


def _dense_lu(A: Any) -> tuple[Tensor, Tensor, Tensor]:
    """LU factors by one instruction."""
    n = A.shape[-1]
    # Determinants call this above the derivatives, where tensors are wrapped.
    _refuse_large(n, MAX_ROWS if isinstance(A, TracedTensor) else MAX_PIVOTED_ROWS)
    factors = over_batch(lambda x: x.record_block("lu", n, x.reshape(-1)).reshape(n + 1, n), A)
    LU, order = factors[..., :n, :], factors[..., n, :]
    return LU, order, _sign_of(order)


def _sign_of(order: Tensor) -> Tensor:
    """The sign of a permutation: -1 to the number of pairs in the wrong order."""
    is_wrong = (order[..., :, None] > order[..., None, :]).triu(1)
    parity = torch.where(is_wrong, 1.0, 0.0).sum((-2, -1)) / 2
    return torch.where(parity == parity.floor(), 1.0, -1.0)


def _exchanged(swap: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(swap, y, x), torch.where(swap, x, y)


def _reordered(order: Tensor, B: Tensor, *, inverse: bool = False) -> Tensor:
    """Rows of B in an order, or back from it."""
    if order.shape[-1] > MAX_PIVOTED_ROWS:
        return over_batch(partial(_dense_order, inverse), order[..., None], B)
    permutation = order[..., :, None] == torch.arange(order.shape[-1], dtype=torch.float64)
    return _permuted(permutation.mT if inverse else permutation, B)


def _dense_order(inverse: bool, order: Any, B: Any) -> Tensor:
    """Rows of B in an order, by one instruction."""
    traced = order if isinstance(order, TracedTensor) else B
    kind = "reorder_back" if inverse else "reorder"
    sizes = {"columns": B.shape[-1]}
    entries = traced.record_block(kind, B.shape[-2], B.reshape(-1), order.reshape(-1), **sizes)
    return entries.reshape(B.shape)


def _permuted(permutation: Tensor, B: Tensor) -> Tensor:
    """Rows of B permuted by a boolean permutation matrix."""
    rows = []
    for is_source in permutation.unbind(-2):
        row = torch.zeros_like(B[..., 0, :])
        for j, flag in enumerate(is_source.unbind(-1)):
            row = torch.where(flag[..., None], B[..., j, :], row)
        rows.append(row)
    return torch.stack(torch.broadcast_tensors(*rows), -2) if rows else B


def _identity(A: Tensor) -> Tensor:
    return torch.eye(A.shape[-1], dtype=torch.float64).expand_as(A)


def _no_errors(A: Tensor) -> Tensor:
    return torch.zeros(A.shape[:-2], dtype=torch.int32)


def _refuse_large(rows: int, most: int) -> None:
    if rows > most:
        raise FusedError(
            f"a matrix of {rows} rows is factorized with pivoting in a traced function.",
            f"With more than {most} rows the kernel becomes too large.",
            "For a positive definite matrix use torch.linalg.cholesky and torch.cholesky_solve, for the mass "
            "matrix ts.innovations(ts.assemble(mech, q)).solve(x). Otherwise run the function without "
            "ts.fuse or fused=True.",
        )


FACTORIZATIONS: dict[str, Callable[..., Any]] = {
    "linalg_cholesky_ex": cholesky_ex,
    "_linalg_solve_ex": solve_ex,
    "linalg_inv_ex": inv_ex,
    "linalg_lu_solve": lu_solve,
    "linalg_solve_triangular": solve_triangular,
    "cholesky_solve": cholesky_solve,
    "cholesky_inverse": cholesky_inverse,
}
"""Functions by the name of the ATen operation."""

DETERMINANTS: dict[str, Callable[..., Any]] = {
    name + kind: function
    for name in ("", "linalg_")
    for kind, function in {"det": det, "slogdet": slogdet, "logdet": logdet}.items()
}
"""Functions that replace PyTorch's determinants, by name."""
