"""Factorisations of small matrices in traced functions, written out with + - * / and sqrt.

PyTorch's own derivatives ask for them again, so they take and give what its operations do. Two things
differ: rows are exchanged by comparing each with the one above, which ends with the same pivots, and what
PyTorch refuses when it runs (a matrix that is singular, or not positive definite) comes out as numbers that
are not finite, since a kernel has no errors to raise.

Reference: G. Golub, C. Van Loan, *Matrix Computations*, 4th edition, algorithms 3.4.1 and 4.2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.utils.shapes import broadcast_shapes

MOST = 16
"""Rows of a matrix whose rows are exchanged: each pair of them costs a choice for every column."""


def cholesky_ex(
    A: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """Lower triangular L with L L* = A; its lower half alone is read, the upper one with `upper`."""
    rest, columns = A.mT if upper else A, []
    for k in range(A.shape[-1]):
        column = rest[..., 1:, 0] / (root := rest[..., 0, 0].sqrt())[..., None]
        whole = torch.cat([root[..., None], column], -1)
        columns.append(torch.nn.functional.pad(whole, (k, 0)))
        rest = rest[..., 1:, 1:] - column[..., :, None] * column[..., None, :]
    L = torch.stack(columns, -1) if columns else A
    return L.mT if upper else L, _no_errors(A)


def lu(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Factors of A with its rows in another order: L and U in one matrix, the order, and its sign."""
    n = A.shape[-1]
    _refuse_large(n)
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
    """Pivots as LAPACK counts them: with which row, from 1 on, each one changed places in its turn."""
    rows = [torch.full_like(order[..., 0], float(i)) for i in range(order.shape[-1])]
    pivots = []
    for k, taken in enumerate(order.unbind(-1)):
        pivot = torch.full_like(taken, k + 1.0)
        for i in range(k + 1, len(rows)):
            here = rows[i] == taken
            pivot = torch.where(here, i + 1.0, pivot)
            rows[k], rows[i] = _exchanged(here, rows[k], rows[i])
        pivots.append(pivot)
    return torch.stack(pivots, -1) if pivots else order


def order_of(pivots: Tensor, LU: Tensor) -> Tensor:
    """The order of rows that pivots lead to; see `pivots_of`."""
    like = LU[..., 0].expand(broadcast_shapes(LU.shape[:-1], pivots.shape))
    rows = [torch.full_like(like[..., 0], float(i)) for i in range(pivots.shape[-1])]
    for k, pivot in enumerate(pivots.unbind(-1)):
        for i in range(k + 1, len(rows)):
            rows[k], rows[i] = _exchanged(pivot == i + 1.0, rows[k], rows[i])
    return torch.stack(rows, -1) if rows else like


def det(A: Tensor) -> Tensor:
    """The determinant, in operations with derivatives of their own: PyTorch's asks for singular vectors."""
    n = A.shape[-1]
    if n == 2:
        return A[..., 0, 0] * A[..., 1, 1] - A[..., 0, 1] * A[..., 1, 0]
    if n == 3:
        return (A[..., 0] * torch.linalg.cross(A[..., 1], A[..., 2])).sum(-1)
    LU, _, sign = lu(A)
    return reduce(torch.mul, LU.diagonal(0, -2, -1).unbind(-1), sign)


def slogdet(A: Tensor) -> tuple[Tensor, Tensor]:
    """Sign and logarithm of the absolute value of the determinant, likewise."""
    LU, _, sign = lu(A)
    pivots = LU.diagonal(0, -2, -1)
    return sign * pivots.sign().prod(-1), pivots.abs().log().sum(-1)


def logdet(A: Tensor) -> Tensor:
    """Logarithm of the determinant, likewise; nan where that is negative."""
    sign, logarithm = slogdet(A)
    return torch.where(sign < 0, torch.nan, logarithm)


def lu_solve(
    LU: Tensor, order: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """X with A X = B, or A* X = B with `adjoint`, or X A = B without `left`, from A's factors.

    What `solve_ex` and `inv_ex` keep for derivatives is the order of rows, in real numbers; integers are
    pivots, of `lu_factor_ex` or of PyTorch's own where the matrix is a constant.
    """
    if not order.dtype.is_floating_point:
        order = order_of(order, LU)
    if not left:
        return lu_solve(LU, order, B.mT, adjoint=not adjoint).mT.contiguous()
    here = order[..., :, None] == torch.arange(LU.shape[-1], dtype=torch.float64)
    if not adjoint:
        B = solve_triangular(LU, _moved(here, B), upper=False, unitriangular=True)
        return solve_triangular(LU, B, upper=True)
    B = solve_triangular(LU.mT, B, upper=False)
    return _moved(here.mT, solve_triangular(LU.mT, B, upper=True, unitriangular=True))


def solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X with A X = B; and the factors, which derivatives take."""
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
    """X with A X = B, or X A = B without `left`; of A one half is read."""
    if not left:
        return solve_triangular(
            A.mT, B.mT, upper=not upper, unitriangular=unitriangular
        ).mT.contiguous()
    n = A.shape[-1]
    found: list[Tensor] = [B] * n
    places = [*range(n)]
    for k in reversed(places) if upper else places:
        row = B[..., k, :]
        for j in places[k + 1 :] if upper else places[:k]:
            row = row - A[..., k, j, None] * found[j]
        found[k] = row if unitriangular else row / A[..., k, k, None]
    return torch.stack(torch.broadcast_tensors(*found), -2) if n else B


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with L L* X = B."""
    L = L.mT if upper else L
    return solve_triangular(L.mT, solve_triangular(L, B, upper=False), upper=True)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of L L*."""
    return cholesky_solve(_identity(L), L, upper)


def _exchanged(swap: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(swap, y, x), torch.where(swap, x, y)


def _moved(here: Tensor, B: Tensor) -> Tensor:
    """Rows of B, each where a row of a permutation has its entry."""
    rows = []
    for marks in here.unbind(-2):
        row = torch.zeros_like(B[..., 0, :])
        for j, mark in enumerate(marks.unbind(-1)):
            row = torch.where(mark[..., None], B[..., j, :], row)
        rows.append(row)
    return torch.stack(torch.broadcast_tensors(*rows), -2) if rows else B


def _identity(A: Tensor) -> Tensor:
    return torch.eye(A.shape[-1], dtype=torch.float64).expand_as(A)


def _no_errors(A: Tensor) -> Tensor:
    return torch.zeros(A.shape[:-2], dtype=torch.int32)


def _refuse_large(rows: int) -> None:
    if rows > MOST:
        raise FusedError(
            f"a matrix of {rows} rows is to be factorised in a traced function.",
            f"Written out with its rows exchanged, one of more than {MOST} fills a kernel.",
            "Where it is positive definite take torch.linalg.cholesky and torch.cholesky_solve; for the "
            "mass matrix there are ts.innovations(ts.assemble(mech, q)).solve(x) and its kin. Or run the "
            "function as it is: do not fuse it, or leave fused=True out.",
        )


FACTORS: dict[str, Callable[..., Any]] = {
    "linalg_cholesky_ex": cholesky_ex,
    "_linalg_solve_ex": solve_ex,
    "linalg_inv_ex": inv_ex,
    "linalg_lu_solve": lu_solve,
    "linalg_solve_triangular": solve_triangular,
    "cholesky_solve": cholesky_solve,
    "cholesky_inverse": cholesky_inverse,
}
"""By the name of the ATen operation."""

DETERMINANTS: dict[str, Callable[..., Any]] = {
    name + kind: function
    for name in ("", "linalg_")
    for kind, function in {"det": det, "slogdet": slogdet, "logdet": logdet}.items()
}
"""By the name of PyTorch's function, in whose place they are called."""
