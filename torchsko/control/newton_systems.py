"""Systems of Newton steps of quadratic programs, without the variables of the bounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.implicit.table_loop import Read, Write, table_loop
from torchsko.linalg.sparse import forward_adjoint, gram_matrix
from torchsko.linalg.symmetric import ldl
from torchsko.utils.shapes import concatenate, matvec

Body = Callable[..., tuple[Tensor, ...]]


def by_entries(body: Body, *vectors: Tensor) -> tuple[Tensor, ...]:
    """Apply a function with one result to the entries of vectors: a loop of a kernel where there are many."""
    return table_loop(body, [Read(x, -1) for x in vectors], [Write(-1)])


def add_vectors(*vectors: Tensor) -> Tensor:
    """The sum of vectors, by one loop."""
    return by_entries(lambda *x: (reduce(torch.add, x),), *vectors)[0]


class SignedProgram(NamedTuple):
    """A `QuadraticProgram` with a sign for each bound, which has no infinite bounds.

    Attributes:
        P, p, A, b, G, h: see `QuadraticProgram`.
        signs: 1 for G x <= h, -1 for -G x <= h; 0 for 0 x <= 1, which is never active, `[*batch, m + t]`.
    """

    P: Tensor
    p: Tensor
    A: Tensor
    b: Tensor
    G: Tensor
    h: Tensor
    signs: Tensor

    @property
    def rows(self) -> list[int]:
        """The row of G of each bound."""
        m, count = self.G.shape[-2], self.h.shape[-1]
        return [*range(m), *range(count - m)]

    def of_bounds(self, x: Tensor) -> Read:
        """Numbers of the rows of G, `[*batch, m]`, for each bound."""
        return Read(x, -1, self.rows)

    def of_rows(self) -> Write:
        """Sums over the bounds of each row of G."""
        return Write(-1, self.rows, self.G.shape[-2])


Solver = Callable[[SignedProgram, Tensor, float], Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]
"""Factorizes [[K, A*], [A, -slack]] with K = P + G* w G, from a program, the weights w `[*batch, m]` and the
slack; returns a function that solves it for right-hand sides `[*batch, n]`, `[*batch, e]`."""


def lu_solver(
    program: SignedProgram, weights: Tensor, slack: float
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Solve by LU with row exchanges, in a few large operations."""
    K, A = gram_matrix(program.G, weights, program.P), program.A
    n, e, batch = K.shape[-1], A.shape[-2], K.shape[:-2]
    corner = -slack * torch.eye(e, dtype=K.dtype, device=K.device)
    A = A.expand(*batch, e, n)
    lower = torch.cat([A, corner.expand(*batch, e, e)], -1)
    # The matrix of an infeasible program may be singular; an error would stop all samples.
    LU, pivots, _ = torch.linalg.lu_factor_ex(torch.cat([torch.cat([K, A.mT], -1), lower], -2))
    # Factors are column-major. Their views under vmap with a batch of one make lu_solve read past a sample
    # (torch 2.13); a row-major copy avoids that.
    LU = LU.clone(memory_format=torch.contiguous_format)

    def solve(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        rhs = concatenate((f, g))[..., None]
        dx, dy = torch.linalg.lu_solve(LU, pivots, rhs)[..., 0].tensor_split([n], -1)
        return dx, dy

    return solve


def ldl_solver(
    program: SignedProgram, weights: Tensor, slack: float
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Solve by LDL* of x, then of y, in the given order, without square roots.

    The pivots of a quasidefinite matrix do not vanish in exact arithmetic. A pivot that is lost in rounding,
    as with dependent equalities, is replaced by its initial value, which freezes its variable.

    Reference: R. Vanderbei, *Symmetric quasidefinite matrices*, SIAM Journal on Optimization 5(1), 1995.
    """
    first = ldl(gram_matrix(program.G, weights, program.P), MIN_PIVOTS[0])
    pivots = torch.stack(first.pivots, -1)
    B = forward_adjoint(program.A, first)
    (inverse,) = by_entries(lambda x: (1 / x,), pivots)
    second = ldl(gram_matrix(B, inverse, shift=slack), MIN_PIVOTS[1])

    def solve(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        (u,) = by_entries(lambda x, y: (x * y,), first.forward(f[..., None])[..., 0], inverse)
        v = second.forward(add_vectors(matvec(B.mT, u), -g)[..., None])
        dy = second.backward(second.scaled(v))
        (u,) = by_entries(lambda u, w, y: (u - w * y,), u, matvec(B, dy[..., 0]), inverse)
        return first.backward(u[..., None])[..., 0], dy[..., 0]

    return solve


MIN_PIVOTS = (0.5, 64.0)
"""Thresholds of lost pivots of x and of y; see `torchsko.linalg.symmetric.ldl`."""
