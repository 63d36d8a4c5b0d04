r"""Batched convex quadratic programs, differentiable at their solution.

.. math::
    \min_x \tfrac12 x^* P x + p^* x \quad \text{subject to} \quad A x = b, \quad G x + s = h, \quad s \ge 0.

A primal-dual interior-point method with Mehrotra's predictor and corrector solves every sample
independently. The number of iterations is fixed; iterations after convergence change nothing. Derivatives
are those of the implicit function that the optimality conditions define: one more Newton step with a
constant matrix.

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

from torchsko.implicit.loop import iterate, subprogram
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.linalg.sparse import gram_matrix, sparse_matvec
from torchsko.linalg.symmetric import Eliminated, ldl
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import broadcast_shapes, concatenate, matvec

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
        h: `[*batch, m]`; inf where a row is inactive.
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
        inequality_multipliers: multipliers of G x <= h, `[*batch, m]`, 0 or more.
        residual: largest violation of an optimality condition, `[*batch]`, without derivatives. It stays
            large where the constraints are infeasible. If entries of p exceed 100, it refers to the objective
            scaled down to that size.
    """

    x: Tensor
    equality_multipliers: Tensor
    inequality_multipliers: Tensor
    residual: Tensor


def solve_qp(
    program: QuadraticProgram,
    *,
    iterations: int = 30,
    tolerance: float = 1e-9,
    slack: float | None = None,
) -> QPSolution:
    """Solve quadratic programs.

    Args:
        program: the programs.
        iterations: of the interior-point method.
        tolerance: residual at which a sample has converged.
        slack: relaxation of equalities and bounds per unit of a step's multipliers. It makes linearly
            dependent rows solvable, as of equalities, or of several bounds at a contact point without force.
            It vanishes at convergence. Default, near rounding: 2e-10 in float64, 5e-5 in float32.

    Returns:
        The solution, differentiable once in every tensor of the program, in both modes.

    Reference: Mehrotra 1992; Amos, Kolter 2017.
    """
    relaxation = (
        float(torch.finfo(compute_dtype(program.p)).eps ** 0.625) if slack is None else slack
    )
    solver = ldl_solver if is_scalar_form() else lu_solver
    scale = program.p.detach().abs().amax(-1, keepdim=True) / MAX_GRADIENT_ENTRY
    scale = torch.where(scale > 1, scale, 1.0)
    program = _without_infinite_bounds(program)
    program = program._replace(P=program.P / scale[..., None], p=program.p / scale)
    program = _augment_objective(program)
    constant = QuadraticProgram(*(x.detach() for x in program))

    def interior_step(*tensors: Tensor) -> Point:
        point, least, best = tensors[:4], tensors[4], tensors[5:9]
        *fields, scale = tensors[9:]
        program = QuadraticProgram(*fields)
        point = _step(program, point, relaxation, solver)
        residual = scale[..., 0] * _violation(program, point)
        # Near rounding residuals may grow again, so the best point is kept.
        better = residual < least
        best = [torch.where(better[..., None], *x) for x in zip(point, best, strict=True)]
        return *point, torch.where(better, residual, least), *best

    point = _start(constant)
    # The tolerance refers to the unscaled objective, as derivatives do.
    start = (*point, scale[..., 0] * _violation(constant, point), *point)
    state = iterate(
        interior_step,
        start,
        iterations,
        (*constant, scale),
        until=lambda *state: state[4] <= tolerance,
    )
    least, point = state[4], state[5:]
    # Derivatives pass through the optimality conditions of the differentiable program.
    residuals = _residuals(program, point)
    change = _refined_newton(solver, constant, point, residuals, relaxation)
    end = tuple((x + dx).detach() for x, dx in zip(point, change, strict=True))
    residual = scale[..., 0] * _violation(constant, end)
    # The value of the last step counts only where it lowers the residual; its derivatives always do.
    better = (residual < least)[..., None]
    x, y, z = (
        x + torch.where(better, dx, dx - dx.detach())
        for x, dx in zip(point[:3], change[:3], strict=True)
    )
    residual = torch.where(better[..., 0], residual, least) / scale[..., 0]
    return QPSolution(x, scale * y, scale * z, residual)


def _without_infinite_bounds(program: QuadraticProgram) -> QuadraticProgram:
    """Replace inactive rows by 0 x <= 1, which is never active."""
    bounded = program.h != torch.inf  # nan counts as bounded
    G = torch.where(bounded[..., None], program.G, 0.0)
    return program._replace(G=G, h=torch.where(bounded, program.h, 1.0))


def _augment_objective(program: QuadraticProgram) -> QuadraticProgram:
    """Make P definite on the row space of A, with the same solution and multipliers.

    The square of A x - b, in units of A, is added to the objective. An elimination may then start with P,
    even where P is small and the equalities alone determine x.

    Reference: G. Golub, C. Greif, *On solving block-structured indefinite linear systems*, SIAM Journal on
    Scientific Computing 24(6), 2003.
    """
    P, p, A, b, _, _ = program
    if not A.shape[-2]:
        return program
    square = (A * A).detach().sum(-2).amax(-1)[..., None, None]
    scaled = A.mT / torch.where(square > 0, square, 1.0)
    return program._replace(P=P + scaled @ A, p=p - matvec(scaled, b))


Point = tuple[Tensor, ...]
"""x, multipliers y of the equalities, z of the bounds, and the slacks s of the bounds."""


def _start(program: QuadraticProgram) -> Point:
    shapes = [x.shape[:-2] for x in (program.P, program.A, program.G)]
    shapes += [x.shape[:-1] for x in (program.p, program.b, program.h)]
    batch = broadcast_shapes(*shapes)
    x = program.p.new_zeros(*batch, program.p.shape[-1])
    s = program.h.expand(*batch, program.h.shape[-1]).clamp(min=1.0)
    return x, x.new_zeros(*batch, program.b.shape[-1]), torch.ones_like(s), s


def _residuals(program: QuadraticProgram, point: Point) -> Point:
    """Residuals of stationarity, the equalities, complementarity and the bounds."""
    x, y, z, s = point
    P, p, A, b, G, h = program
    stationary = sparse_matvec(P, x) + p + sparse_matvec(A.mT, y) + sparse_matvec(G.mT, z)
    return stationary, sparse_matvec(A, x) - b, s * z, sparse_matvec(G, x) + s - h


def _residual_change(program: QuadraticProgram, point: Point, step: Point) -> Point:
    """First-order change of the residuals by a step."""
    _, _, z, s = point
    dx, dy, dz, ds = step
    P, _, A, _, G, _ = program
    stationary = sparse_matvec(P, dx) + sparse_matvec(A.mT, dy) + sparse_matvec(G.mT, dz)
    return stationary, sparse_matvec(A, dx), s * dz + z * ds, sparse_matvec(G, dx) + ds


def _violation(program: QuadraticProgram, point: Point) -> Tensor:
    """The largest violation of an optimality condition, `[*batch]`.

    Complementarity is measured by the smaller of multiplier and slack. Their product would be the square of
    both at a bound that is reached without force, and so too optimistic.
    """
    stationary, equal, _, bound = _residuals(program, point)
    parts = [stationary, equal, torch.minimum(point[2], point[3]), bound]
    return concatenate(parts).abs().amax(-1)


class KKTMatrix(NamedTuple):
    """Matrix of a Newton step without the bounds' variables: [[K, A*], [A, -slack]], K = P + G* w G.

    Attributes:
        P: `[*batch, n, n]`.
        G: `[*batch, m, n]`.
        weights: of the bounds, `[*batch, m]`.
        A: `[*batch, e, n]`.
        slack: of the equalities.
    """

    P: Tensor
    G: Tensor
    weights: Tensor
    A: Tensor
    slack: float

    @property
    def K(self) -> Tensor:
        """`[*batch, n, n]`, symmetric, positive definite."""
        return self.P + gram_matrix(self.G, self.weights)


Solver = Callable[[KKTMatrix], Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]
"""Factorizes a KKT matrix; returns a function that solves it for right-hand sides `[*batch, n]`, `[*batch,
e]`."""


def lu_solver(matrix: KKTMatrix) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Solve by LU with row exchanges, in a few large operations."""
    K, A, slack = matrix.K, matrix.A, matrix.slack
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


def ldl_solver(matrix: KKTMatrix) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Solve by LDL* of x, then of y, in the given order, without square roots.

    The pivots of a quasidefinite matrix do not vanish in exact arithmetic. A pivot that is lost in rounding,
    as with dependent equalities, is replaced by its initial value, which freezes its variable. Kernels
    contain a large factorization once, for the iterations and the last step.

    Reference: R. Vanderbei, *Symmetric quasidefinite matrices*, SIAM Journal on Optimization 5(1), 1995.
    """
    slack, blocks = matrix.slack, matrix[:-1]

    def factors(P: Tensor, G: Tensor, weights: Tensor, A: Tensor) -> tuple[Tensor, ...]:
        first = ldl(KKTMatrix(P, G, weights, A, slack).K, MIN_PIVOTS[0])
        B = first.forward(A.mT)
        corner = slack * torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
        inverse = 1 / torch.stack(first.pivots, -1)
        second = ldl(gram_matrix(B, inverse) + corner, MIN_PIVOTS[1])
        return first.packed(B), B, second.packed(B)

    n, e = blocks[0].shape[-1], blocks[-1].shape[-2]
    is_large = n**3 / 3 + n * n * e + n * e * e > SUBPROGRAM_MIN_PRODUCTS
    packed = subprogram(factors, blocks, 3) if is_large else factors(*blocks)
    first, B, second = Eliminated.of(packed[0]), packed[1], Eliminated.of(packed[2])

    def solve(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        u = first.forward(f[..., None])
        v = second.forward(B.mT @ first.scaled(u) - g[..., None])
        dy = second.backward(second.scaled(v))
        dx = first.backward(first.scaled(u - B @ dy))
        return dx[..., 0], dy[..., 0]

    return solve


MIN_PIVOTS = (0.5, 64.0)
"""Thresholds of lost pivots of x and of y; see `torchsko.linalg.symmetric.ldl`."""


SUBPROGRAM_MIN_PRODUCTS = 100_000
"""Products of a factorization above which a kernel contains it once, as a subprogram. Passing the matrices
costs 10 to 20 % of the time of a quadruped; a humanoid on eight contact points would be too large
otherwise."""


def _kkt_matrix(program: QuadraticProgram, point: Point, slack: float) -> KKTMatrix:
    """Matrix of a Newton step from a point."""
    _, _, z, s = point
    return KKTMatrix(program.P, program.G, z / (s + slack * z), program.A, slack)


def _newton(
    solve: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    program: QuadraticProgram,
    point: Point,
    residuals: Point,
    slack: float,
) -> Point:
    """The Newton step for the residuals, up to the relaxation by the slack."""
    _, _, z, s = point
    G = program.G
    stationary, equal, complementary, bound = residuals
    inner = (z * bound - complementary) / (s + slack * z)
    dx, dy = solve(-stationary - sparse_matvec(G.mT, inner), -equal)
    forward = sparse_matvec(G, dx)
    dz = inner + z / (s + slack * z) * forward
    return dx, dy, dz, slack * dz - bound - forward


def _step(program: QuadraticProgram, point: Point, slack: float, solver: Solver) -> Point:
    """One iteration: Mehrotra's predictor, then the corrector."""
    solve = solver(_kkt_matrix(program, point, slack))
    stationary, equal, complementary, bound = residuals = _residuals(program, point)
    step = _newton(solve, program, point, residuals, slack)
    z, s, dz, ds = *point[2:], *step[2:]
    if not z.shape[-1]:
        return tuple(x + dx for x, dx in zip(point, step, strict=True))
    mean = complementary.mean(-1, keepdim=True)
    length = _step_length(z, s, dz, ds)
    after = ((z + length * dz) * (s + length * ds)).mean(-1, keepdim=True)
    centring = (after / mean) ** 3 * mean
    corrected = complementary + dz * ds - centring
    step = _newton(solve, program, point, (stationary, equal, corrected, bound), slack)
    length = _step_length(z, s, step[2], step[3])
    return tuple(x + length * dx for x, dx in zip(point, step, strict=True))


def _refined_newton(
    solver: Solver, program: QuadraticProgram, point: Point, residuals: Point, slack: float
) -> Point:
    """The Newton step for the residuals, with one refinement.

    The refinement removes the effect of the relaxation, up to 1e-4 of the derivatives.
    """
    solve = solver(_kkt_matrix(program, point, slack))
    step = _newton(solve, program, point, residuals, slack)
    changes = _residual_change(program, point, step)
    rest = tuple(x + dx for x, dx in zip(residuals, changes, strict=True))
    correction = _newton(solve, program, point, rest, slack)
    return tuple(x + dx for x, dx in zip(step, correction, strict=True))


def _step_length(z: Tensor, s: Tensor, dz: Tensor, ds: Tensor) -> Tensor:
    """Largest step length, at most 1, with positive multipliers and slacks, `[*batch, 1]`."""
    values, changes = torch.cat([z, s], -1), torch.cat([dz, ds], -1)
    room = torch.where(changes < 0, -values / changes, torch.inf)
    return (STEP_FRACTION * room.amin(-1, keepdim=True)).clamp(max=1.0)
