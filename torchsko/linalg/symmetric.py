"""Small symmetric blocks: mirroring, and solving with a symmetric positive definite matrix.

Each function has a dense and a scalar form; see `torchsko.linalg.scalar_form`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.linalg.dense import MIN_ROWS, ldl_matrix, uses_blocks
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import broadcast_shapes
from torchsko.utils.traced_tensor import mark_regular


def mirror(x: Tensor) -> Tensor:
    """A matrix that is symmetric by construction, `[*, k, k]`; scalar form reads its upper half."""
    return mirror_upper(x) if is_scalar_form() else x


def mirror_upper(x: Tensor) -> Tensor:
    """The symmetric matrix with the upper half of a matrix, `[*, k, k]`."""
    return x.triu() + x.triu(1).mT


def symmetric_part(x: Tensor) -> Tensor:
    """(x + x*) / 2 of a matrix that is symmetric but for rounding; scalar form as in `mirror`."""
    return mirror_upper(x) if is_scalar_form() else (x + x.mT) / 2


class Eliminated(NamedTuple):
    """A symmetric matrix as L diag(pivots) L*, with a diagonal of ones in L.

    Attributes:
        pivots: the d pivots, each `[*]`.
        columns: those of L below the diagonal but the last, `[*, d - 1 - i]`.
    """

    pivots: list[Tensor]
    columns: list[Tensor]

    @staticmethod
    def of(entries: Tensor) -> Eliminated:
        """From the result of `packed`."""
        d = math.isqrt(2 * entries.shape[-1])
        row = torch.arange(d, device=entries.device)
        matrix = entries[..., (row * (row + 1) // 2)[:, None].tril() + row.expand(d, d).tril()]
        return Eliminated.from_matrix(matrix)

    @staticmethod
    def from_matrix(factors: Tensor) -> Eliminated:
        """From L below the diagonal, and the pivots on it, `[*, d, d]`."""
        columns = [factors[..., i + 1 :, i] for i in range(factors.shape[-1] - 1)]
        return Eliminated([*factors.diagonal(0, -2, -1).unbind(-1)], columns)

    def packed(self, like: Tensor) -> Tensor:
        """The rows of L with the pivots on the diagonal, one after another, `[*, d (d + 1) / 2]`.

        Args:
            like: `[*, ...]`, of the type and device of a matrix without rows.
        """
        if not self.pivots:
            return like[..., 0, :0]
        rows, columns = torch.tril_indices(len(self.pivots), len(self.pivots), device=like.device)
        return self.matrix[..., rows, columns]

    @property
    def matrix(self) -> Tensor:
        """L below the diagonal, and the pivots on it, `[*, d, d]`."""
        columns = [
            torch.nn.functional.pad(
                torch.cat([pivot[..., None], *self.columns[i : i + 1]], -1), (i, 0)
            )
            for i, pivot in enumerate(self.pivots)
        ]
        return torch.stack(columns, -1)

    def forward(self, B: Tensor) -> Tensor:
        """Y with L Y = B, `[*, d, r]`."""
        if len(self.pivots) >= MIN_ROWS:
            return torch.linalg.solve_triangular(self.matrix, B, upper=False, unitriangular=True)
        rows = [*B.unbind(-2)]
        for i, column in enumerate(self.columns):
            for j, entry in enumerate(column.unbind(-1), i + 1):
                rows[j] = rows[j] - entry[..., None] * rows[i]
        return _stacked(rows, B)

    def scaled(self, B: Tensor) -> Tensor:
        """Rows of B `[*, d, r]` divided by the pivots."""
        rows = zip(B.unbind(-2), self.pivots, strict=True)
        return _stacked([row / pivot[..., None] for row, pivot in rows], B)

    def backward(self, B: Tensor) -> Tensor:
        """X with L* X = B, `[*, d, r]`."""
        if len(self.pivots) >= MIN_ROWS:
            return torch.linalg.solve_triangular(self.matrix.mT, B, upper=True, unitriangular=True)
        rows = [*B.unbind(-2)]
        for i, column in reversed([*enumerate(self.columns)]):
            for j, entry in enumerate(column.unbind(-1), i + 1):
                rows[i] = rows[i] - entry[..., None] * rows[j]
        return _stacked(rows, B)


def _stacked(rows: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(torch.broadcast_tensors(*rows), -2) if rows else like


def ldl(D: Tensor, lost: float | None = None) -> Eliminated:
    """Elimination of a symmetric positive definite matrix, D = L diag(pivot) L*, unpivoted.

    Args:
        D: `[*, d, d]`.
        lost: pivots of so many units of rounding of the diagonal's entry, and smaller ones, are lost: each
            becomes as large as that entry, and moves nothing much. Left out, none is looked at.
    """
    if uses_blocks(D):
        least = -1.0 if lost is None else lost * torch.finfo(compute_dtype(D)).eps
        return Eliminated.from_matrix(ldl_matrix(D, least, lambda x: _eliminate(x, lost).matrix))
    return _eliminate(D, lost)


def _eliminate(D: Tensor, lost: float | None) -> Eliminated:
    """See `ldl`; spelled out."""
    pivots, columns, rest = [], [], D
    for i in range(D.shape[-1]):
        pivot, row = rest[..., 0, 0], rest[..., 0, 1:]
        if lost is not None:
            size = D[..., i, i]
            least = lost * torch.finfo(compute_dtype(D)).eps * size
            pivot = torch.where(pivot > least, pivot, size)
        mark_regular(pivot)
        pivots.append(pivot)
        if i < D.shape[-1] - 1:
            column = row / pivot[..., None]
            # Each outer product is symmetric: its lower half is read off the upper one.
            rest = mirror_upper(rest[..., 1:, 1:] - row[..., :, None] * column[..., None, :])
            columns.append(column)
    return Eliminated(pivots, columns)


def spd_solve(D: Tensor, B: Tensor) -> Tensor:
    """Solve D X = B for symmetric positive definite D.

    Neither form synchronizes with the device or checks D: singular hinges are refused at load.

    Args:
        D: `[*, d, d]`.
        B: `[*, d, r]`.

    Returns:
        X, `[*, d, r]`.
    """
    if D.shape[-1] == 1:
        if is_scalar_form():
            mark_regular(D)
        return B / D
    if not is_scalar_form() or uses_blocks(D):
        # Where B.shape is D.shape[:-1], torch 2.13 takes B for vectors in the forward derivative.
        B = B.expand(*broadcast_shapes(D.shape[:-2], B.shape[:-2]), *B.shape[-2:])
        return torch.cholesky_solve(B, torch.linalg.cholesky_ex(D).L)
    factors = ldl(D)
    return factors.backward(factors.scaled(factors.forward(B)))


def spd_logdet(D: Tensor) -> Tensor:
    """Logarithm of the determinant of a symmetric positive definite matrix, `[*, d, d]` to `[*]`."""
    if D.shape[-1] == 1:
        return D[..., 0, 0].log()
    if is_scalar_form() and not uses_blocks(D):
        return torch.stack([pivot.log() for pivot in ldl(D)[0]]).sum(0)
    return 2 * torch.linalg.cholesky_ex(D).L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def spd_condition(D: Tensor) -> Tensor:
    """Condition number of a symmetric matrix `[*, d, d]`, |D| |D^-1| in the Frobenius norm, `[*]`.

    Infinite or nan where the elimination meets a pivot that is not positive: D is not positive definite
    to rounding.
    """
    identity = torch.eye(D.shape[-1], dtype=D.dtype, device=D.device).expand_as(D)
    if is_scalar_form() and not uses_blocks(D):
        positive = torch.stack([pivot > 0 for pivot in ldl(D)[0]], -1).all(-1)
        inverse = spd_solve(D, identity)
    else:
        L, info = torch.linalg.cholesky_ex(D)
        positive, inverse = info == 0, torch.cholesky_solve(identity, L)
    squares = D.square().sum((-2, -1)) * inverse.square().sum((-2, -1))
    return torch.where(positive, squares.sqrt(), torch.inf)


def spd_factor(D: Tensor) -> Tensor:
    """Lower triangular L with L L* = D, `[*, d, d]`."""
    if D.shape[-1] == 1:
        return D.sqrt()
    if not is_scalar_form() or uses_blocks(D):
        return torch.linalg.cholesky_ex(D).L
    pivots, columns = ldl(D)
    full = []
    for i, pivot in enumerate(pivots):
        below = [torch.ones_like(pivot)[..., None], *columns[i : i + 1]]
        column = torch.nn.functional.pad(torch.cat(below, -1), (i, 0))
        full.append(column * pivot.sqrt()[..., None])
    return torch.stack(full, dim=-1)


def factor_solve(D: Tensor, B: Tensor, *, adjoint: bool) -> Tensor:
    """Solve L X = B, or L* X = B, where L L* = D is the factor of `spd_factor`.

    Args:
        D: `[*, d, d]`.
        B: `[*, d, r]`.
        adjoint: solve with L*.
    """
    return triangular_solve(spd_factor(D), B, adjoint=adjoint)


def triangular_solve(L: Tensor, B: Tensor, *, adjoint: bool) -> Tensor:
    """Solve L X = B, or L* X = B, for a lower triangular L.

    Args:
        L: `[*, d, d]`.
        B: `[*, d, r]`.
        adjoint: solve with L*.
    """
    if L.shape[-1] == 1:
        return B / L
    if not is_scalar_form() or uses_blocks(L):
        return torch.linalg.solve_triangular(L.mT if adjoint else L, B, upper=adjoint)
    d = L.shape[-1]
    rows: dict[int, Tensor] = {}
    for i in reversed(range(d)) if adjoint else range(d):
        known = [L[..., j, i] if adjoint else L[..., i, j] for j in rows]
        terms = [c[..., None] * x for c, x in zip(known, rows.values(), strict=True)]
        rows[i] = (B[..., i, :] - sum(terms)) / L[..., i, i, None]
    return torch.stack([rows[i] for i in range(d)], dim=-2)
