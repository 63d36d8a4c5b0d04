r"""Batched convex quadratic programs, differentiable at their solution.

.. math::
    \min_x \tfrac12 x^* P x + p^* x \quad \text{subject to} \quad
    A x = b, \quad \sigma G x + s = h, \quad s \ge 0,

where rows of G that are bounded from both sides occur with both signs :math:`\sigma`.

A primal-dual interior-point method with Mehrotra's predictor and corrector solves every sample
independently. The number of iterations is fixed; iterations after convergence change nothing. Derivatives
are those of the implicit function that the optimality conditions define: one more Newton step with a
constant matrix.

A kernel has little text, whatever the size of the program: matrices are stored once and read by dense
operations (`torchsko.linalg.sparse`), operations on entries of vectors are loops.

Alternatives: weights of whole-body control span six decades or more, for which first-order methods (ADMM:
OSQP) converge slowly. proxsuite is faster than the eager functions here, though not than a kernel of them,
but takes one NumPy program at a time, without GPUs, vmap and forward mode. qpth is this method in reverse
mode only. ``benchmarks/quadratic.py`` compares them on the same programs.

References: S. Mehrotra, *On the implementation of a primal-dual interior point method*, SIAM Journal on
Optimization 2(4), 1992; B. Amos, J. Z. Kolter, *OptNet: differentiable optimization as a layer in neural
networks*, ICML 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.newton_systems import (
    Body,
    SignedProgram,
    Solver,
    add_vectors,
    by_entries,
    ldl_solver,
    lu_solver,
)
from torchsko.implicit.loop import iterate
from torchsko.implicit.table_loop import Read, Write, is_looped, table_loop
from torchsko.linalg.dense import uses_blocks
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.linalg.sparse import gram_matrix, sparse_matvec, store
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import broadcast_shapes

STEP_FRACTION = 0.99
"""Fraction of the distance to the boundary that a step takes."""

MAX_GRADIENT_ENTRY = 100.0
"""Largest entry of p after scaling of the objective, since iterations start from multipliers of 1."""


class QuadraticProgram(NamedTuple):
    """A quadratic program; batch dimensions broadcast.

    Attributes:
        P: `[*batch, n, n]`, symmetric, positive definite.
        p: `[*batch, n]`.
        A: `[*batch, e, n]`; rows may be linearly dependent if they are consistent.
        b: `[*batch, e]`.
        G: `[*batch, m, n]`.
        h: `[*batch, m + t]`; inf where a bound is inactive. The last t bound -G x of the first t rows.
    """

    P: Tensor
    p: Tensor
    A: Tensor
    b: Tensor
    G: Tensor
    h: Tensor


class QPSolution(NamedTuple):
    """The solution of a `QuadraticProgram`.

    Attributes:
        x: `[*batch, n]`.
        equality_multipliers: multipliers of A x = b, `[*batch, e]`.
        inequality_multipliers: multipliers of the bounds, `[*batch, m + t]`, 0 or more.
        row_values: G x, `[*batch, m]`.
        residual: largest violation of an optimality condition, `[*batch]`, without derivatives. It stays
            large where the constraints are infeasible. If entries of p exceed 100, it refers to the objective
            scaled down to that size.
    """

    x: Tensor
    equality_multipliers: Tensor
    inequality_multipliers: Tensor
    row_values: Tensor
    residual: Tensor


def solve_qp(
    program: QuadraticProgram,
    *,
    iterations: int = 30,
    tolerance: float = 1e-8,
    slack: float | None = None,
) -> QPSolution:
    """Solve quadratic programs.

    Args:
        program: the programs.
        iterations: of the interior-point method.
        tolerance: residual at which a sample has converged. A step on its active bounds follows, after which
            residuals are near rounding.
        slack: relaxation of equalities and bounds per unit of a step's multipliers. It makes linearly
            dependent rows solvable, as of equalities, or of several bounds at a contact point without force.
            It vanishes at convergence. Default, near rounding: 2e-10 in float64, 5e-5 in float32.

    Returns:
        The solution, differentiable once in every tensor of the program, in both modes.

    Reference: Mehrotra 1992; Amos, Kolter 2017.
    """
    least_ratio = float(torch.finfo(compute_dtype(program.p)).eps ** 0.625)
    relaxation = least_ratio if slack is None else slack
    solver = ldl_solver if is_scalar_form() else lu_solver
    scale = program.p.detach().abs().amax(-1, keepdim=True) / MAX_GRADIENT_ENTRY
    scale = torch.where(scale > 1, scale, 1.0)
    signed = _with_signs(_augmented(program, scale))
    entries = []
    if uses_blocks(signed.P):
        P, p, A, b, G, h, signs = signed
        first, P, (A, G), vectors = store(P, (A, G), (p, b, h, signs))
        p, b, h, signs = vectors
        signed, entries = SignedProgram(P, p, A, b, G, h, signs), [first.detach()]
    constant = SignedProgram(*(x.detach() for x in signed))

    def interior_step(*tensors: Tensor) -> Point:
        point, least, best = tensors[:4], tensors[4], tensors[5:9]
        *fields, scale = tensors[9 + len(entries) :]
        program = SignedProgram(*fields)
        point = _step(program, point, relaxation, solver)
        residual = scale[..., 0] * _violation(program, point)
        # Near rounding residuals may grow again, so the best point is kept.
        better = (residual < least)[..., None]
        best = [
            by_entries(lambda x, y: (torch.where(better, x, y),), *pair)[0]
            for pair in zip(point, best, strict=True)
        ]
        return *point, torch.where(better[..., 0], residual, least), *best

    point = _start(constant)
    # The tolerance refers to the unscaled objective, as derivatives do.
    start = (*point, scale[..., 0] * _violation(constant, point), *point)
    state = iterate(
        interior_step,
        start,
        iterations,
        (*entries, *constant, scale),
        until=lambda *state: state[4] <= tolerance,
    )
    least, point = state[4], state[5:]
    active = _on_active_set(point, least_ratio)
    # Derivatives pass through the optimality conditions of the differentiable program.
    residuals = _residuals(signed, active)
    change = _refined_newton(solver, constant, active, residuals, relaxation)
    end = tuple(_add_change(x.detach(), dx.detach()) for x, dx in zip(active, change, strict=True))
    residual = scale[..., 0] * _violation(constant, end)
    # The value of the last step counts only where it lowers the residual; its derivatives always do.
    better = (residual < least)[..., None]
    x, y, z = (
        torch.where(better, x + dx, last + (dx - dx.detach()))
        for last, x, dx in zip(point[:3], active[:3], change[:3], strict=True)
    )
    residual = torch.where(better[..., 0], residual, least) / scale[..., 0]
    return QPSolution(x, scale * y, scale * z, sparse_matvec(signed.G, x), residual)


def _on_active_set(point: Point, ratio: float) -> Point:
    """The point with the multiplier zero at inactive bounds, and a slack of at most `ratio` z at active ones.

    A Newton step from there solves the program whose active bounds are equalities. The numbers that the
    interior point leaves, which are less small, would enter its derivatives.
    """
    x, y, z, s = point

    def complementary(z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        is_active = z > s
        return torch.where(is_active, z, 0.0), torch.where(is_active, (ratio * z).minimum(s), s)

    return x, y, *table_loop(complementary, [Read(z, -1), Read(s, -1)], [Write(-1)] * 2)


def _add_change(x: Tensor, change: Tensor, length: Tensor | float = 1.0) -> Tensor:
    return by_entries(lambda x, dx: (x + length * dx,), x, change)[0]


MAX_ENTRIES_AT_ONCE = 8
"""Entries of which an iteration finds the extreme one."""


def _least(body: Body, *vectors: Tensor) -> Tensor:
    """The least of one number for each entry of vectors, `[*batch]`; infinite without entries."""
    count, width = vectors[0].shape[-1], MAX_ENTRIES_AT_ONCE
    if not count:
        return torch.full_like(vectors[0].sum(-1), torch.inf)
    rows = [[min(k + i, count - 1) for i in range(width)] for k in range(0, count, width)]
    if not is_looped(vectors[0], len(rows)):
        return body(*vectors)[0].amin(-1)
    reads = [Read(x, -1, rows) for x in vectors]
    return table_loop(lambda *x: (body(*x)[0].amin(-1),), reads, [Write(-1)])[0].amin(-1)


def _with_signs(program: QuadraticProgram) -> SignedProgram:
    m, count = program.G.shape[-2], program.h.shape[-1]
    signs = torch.ones_like(program.h[..., :count])
    signs = torch.where(torch.arange(count, device=signs.device) < m, signs, -signs)
    bounded = program.h != torch.inf  # nan counts as bounded
    h = torch.where(bounded, program.h, 1.0)
    return SignedProgram(*program[:-1], h, torch.where(bounded, signs, 0.0))


def _augmented(program: QuadraticProgram, scale: Tensor) -> QuadraticProgram:
    """Divide the objective by a number `[*batch, 1]` and make P definite on the row space of A.

    The square of A x - b, in units of A, is added to the objective, which changes neither the solution nor
    the multipliers. An elimination may then start with P, even where P is small and the equalities alone
    determine x.

    Reference: G. Golub, C. Greif, *On solving block-structured indefinite linear systems*, SIAM Journal on
    Scientific Computing 24(6), 2003.
    """
    P, p, A, b, _, _ = program
    gram = gram_matrix(A, torch.ones_like(A[..., 0]))
    square = gram.detach().diagonal(0, -2, -1).amax(-1, keepdim=True)
    weight = 1 / torch.where(square > 0, square, 1.0)

    def total(P: Tensor, gram: Tensor) -> tuple[Tensor]:
        return (P / scale + weight * gram,)

    n = P.shape[-1]
    row, column = torch.tril_indices(n, n, device=P.device)
    (entries,) = by_entries(total, *(x[..., column, row] for x in (P, gram)))
    place = torch.zeros(n, n, dtype=torch.int64, device=P.device)
    place[row, column] = place[column, row] = torch.arange(len(row), device=P.device)
    p = p / scale - sparse_matvec(A.mT, weight * b)
    return program._replace(P=entries[..., place], p=p)


Point = tuple[Tensor, ...]
"""x, multipliers y of the equalities, z of the bounds, and the slacks s of the bounds."""


def _start(program: SignedProgram) -> Point:
    shapes = [x.shape[:-2] for x in (program.P, program.A, program.G)]
    shapes += [x.shape[:-1] for x in (program.p, program.b, program.h)]
    batch = broadcast_shapes(*shapes)
    x = program.p.new_zeros(*batch, program.p.shape[-1])
    h = program.h.expand(*batch, program.h.shape[-1])
    (s,) = by_entries(lambda h: (h.clamp(min=1.0),), h)
    return x, x.new_zeros(*batch, program.b.shape[-1]), torch.ones_like(s), s


def _residuals(program: SignedProgram, point: Point) -> Point:
    """Residuals of stationarity, the equalities, complementarity and the bounds."""
    x, y, z, s = point
    P, p, A, b, G, h, signs = program

    def of_bounds(row: Tensor, sign: Tensor, z: Tensor, s: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        return s * z, sign * row + s - h, sign * z

    reads = [program.of_bounds(sparse_matvec(G, x)), *(Read(v, -1) for v in (signs, z, s, h))]
    writes = [Write(-1), Write(-1), program.of_rows()]
    complementary, bound, force = table_loop(of_bounds, reads, writes)
    forces = sparse_matvec(P, x), p, sparse_matvec(A.mT, y), sparse_matvec(G.mT, force)
    return add_vectors(*forces), add_vectors(sparse_matvec(A, x), -b), complementary, bound


def _residual_change(program: SignedProgram, point: Point, step: Point) -> Point:
    """First-order change of the residuals by a step."""
    dx, dy, dz, ds = step
    P, _, A, _, G, _, signs = program

    def of_bounds(
        row: Tensor, sign: Tensor, z: Tensor, s: Tensor, dz: Tensor, ds: Tensor
    ) -> tuple[Tensor, ...]:
        return s * dz + z * ds, sign * row + ds, sign * dz

    vectors = (signs, *point[2:], dz, ds)
    reads = [program.of_bounds(sparse_matvec(G, dx)), *(Read(v, -1) for v in vectors)]
    writes = [Write(-1), Write(-1), program.of_rows()]
    complementary, bound, force = table_loop(of_bounds, reads, writes)
    stationary = add_vectors(
        sparse_matvec(P, dx), sparse_matvec(A.mT, dy), sparse_matvec(G.mT, force)
    )
    return stationary, sparse_matvec(A, dx), complementary, bound


def _violation(program: SignedProgram, point: Point) -> Tensor:
    """The largest violation of an optimality condition, `[*batch]`.

    Complementarity is measured by the smaller of multiplier and slack. Their product would be the square of
    both at a bound that is reached without force, and so too optimistic.
    """
    stationary, equal, _, bound = _residuals(program, point)
    parts = [_least(lambda x: (-x.abs(),), x) for x in (stationary, equal, bound)]
    parts.append(_least(lambda z, s: (-torch.minimum(z, s).abs(),), *point[2:]))
    return -torch.stack(parts, -1).amin(-1)


def _factorized(
    solver: Solver, program: SignedProgram, point: Point, slack: float
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Solves the system of a Newton step from a point, without the bounds' variables."""

    def weight(sign: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor]:
        return (sign * sign * z / (s + slack * z),)

    reads = [Read(x, -1) for x in (program.signs, *point[2:])]
    return solver(program, table_loop(weight, reads, [program.of_rows()])[0], slack)


def _newton(
    solve: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    program: SignedProgram,
    point: Point,
    residuals: Point,
    slack: float,
) -> Point:
    """The Newton step for the residuals, up to the relaxation by the slack."""
    stationary, equal, complementary, bound = residuals
    G, signs, z, s = program.G, program.signs, *point[2:]

    def force(
        sign: Tensor, z: Tensor, s: Tensor, bound: Tensor, complementary: Tensor
    ) -> tuple[Tensor, ...]:
        inner = (z * bound - complementary) / (s + slack * z)
        return inner, sign * inner

    reads = [Read(x, -1) for x in (signs, z, s, bound, complementary)]
    inner, total = table_loop(force, reads, [Write(-1), program.of_rows()])
    (f,) = by_entries(lambda x, y: (-x - y,), stationary, sparse_matvec(G.mT, total))
    dx, dy = solve(f, -equal)

    def change(row: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        sign, z, s, inner, bound = others
        dz = inner + z / (s + slack * z) * sign * row
        return dz, slack * dz - bound - sign * row

    reads = [program.of_bounds(sparse_matvec(G, dx))]
    reads += [Read(x, -1) for x in (signs, z, s, inner, bound)]
    dz, ds = table_loop(change, reads, [Write(-1)] * 2)
    return dx, dy, dz, ds


def _step(program: SignedProgram, point: Point, slack: float, solver: Solver) -> Point:
    """One iteration: Mehrotra's predictor, then the corrector."""
    solve = _factorized(solver, program, point, slack)
    stationary, equal, complementary, bound = residuals = _residuals(program, point)
    step = _newton(solve, program, point, residuals, slack)
    z, s, dz, ds = *point[2:], *step[2:]
    count = z.shape[-1]
    if not count:
        return tuple(x + dx for x, dx in zip(point, step, strict=True))
    length = _step_length(z, s, dz, ds)

    def product(z: Tensor, s: Tensor, dz: Tensor, ds: Tensor) -> tuple[Tensor, ...]:
        return z * s, (z + length * dz) * (s + length * ds)

    reads = [Read(x, -1) for x in (z, s, dz, ds)]
    totals = table_loop(product, reads, [Write(-1, is_total=True)] * 2)
    before, after = (x[..., None] / count for x in totals)
    centring = (after / before) ** 3 * before
    (corrected,) = by_entries(lambda c, dz, ds: (c + dz * ds - centring,), complementary, dz, ds)
    step = _newton(solve, program, point, (stationary, equal, corrected, bound), slack)
    length = _step_length(z, s, step[2], step[3])
    return tuple(_add_change(x, dx, length) for x, dx in zip(point, step, strict=True))


def _refined_newton(
    solver: Solver, program: SignedProgram, point: Point, residuals: Point, slack: float
) -> Point:
    """The Newton step for the residuals, with one refinement.

    The refinement removes the effect of the relaxation, up to 1e-4 of the derivatives.
    """
    solve = _factorized(solver, program, point, slack)
    step = _newton(solve, program, point, residuals, slack)
    changes = _residual_change(program, point, step)
    rest = tuple(add_vectors(x, dx) for x, dx in zip(residuals, changes, strict=True))
    correction = _newton(solve, program, point, rest, slack)
    return tuple(add_vectors(x, dx) for x, dx in zip(step, correction, strict=True))


def _step_length(z: Tensor, s: Tensor, dz: Tensor, ds: Tensor) -> Tensor:
    """Largest step length, at most 1, with positive multipliers and slacks, `[*batch, 1]`."""

    def room(z: Tensor, s: Tensor, dz: Tensor, ds: Tensor) -> tuple[Tensor]:
        of_z, of_s = (torch.where(dx < 0, -x / dx, torch.inf) for x, dx in ((z, dz), (s, ds)))
        return (torch.minimum(of_z, of_s),)

    return (STEP_FRACTION * _least(room, z, s, dz, ds)[..., None]).clamp(max=1.0)
