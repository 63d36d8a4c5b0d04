r"""Batched convex quadratic programs, differentiable at their solution.

.. math::
    \min_x \tfrac12 x^* P x + p^* x \quad \text{subject to} \quad A x = b, \quad G x + s = h, \quad s \ge 0.

A primal-dual interior point method with Mehrotra's predictor and corrector, every sample on its own: a fixed
number of iterations, of which those after convergence change nothing. Derivatives are those of the implicit
function that the conditions of optimality define: one more Newton step whose matrix is held.

Why this and not a solver of others: weights of whole-body control span six decades and more, over which
iterations of first order (ADMM: OSQP) crawl; proxsuite is quicker than the functions here, though not than a
kernel of them, but takes NumPy arrays, one program at a time, where a GPU, vmap and forward mode end; qpth is
this method, in reverse mode only.
``benchmarks/quadratic.py`` prints how they fare on the same programs.

References: S. Mehrotra, *On the implementation of a primal-dual interior point method*, SIAM Journal on
Optimization 2(4), 1992; B. Amos, J. Z. Kolter, *OptNet: differentiable optimization as a layer in neural
networks*, ICML 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.implicit.loop import loop, subprogram
from torchsko.linalg.symmetric import Eliminated, ldl
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import concatenate, matvec

BACK_OFF = 0.99
"""Share of the way to the boundary that a step goes."""

LARGEST = 100.0
"""Entry of p down to which an objective is scaled: iterations begin with multipliers of 1, not far off."""


class QuadraticProgram(NamedTuple):
    """A quadratic program; batch dimensions broadcast.

    Attributes:
        P: `[*batch, n, n]`, symmetric, positive definite.
        p: `[*batch, n]`.
        A: `[*batch, e, n]`; rows may depend on one another where they agree.
        b: `[*batch, e]`.
        G: `[*batch, m, n]`.
        h: `[*batch, m]`; inf where a row bounds nothing.
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
        inequality_multipliers: multipliers of G x <= h, `[*batch, m]`, none negative.
        residual: largest violation of a condition of optimality, `[*batch]`, without derivatives; it stays
            large where no x meets the constraints. Where entries of p are above 100, it is that of the
            objective scaled down until none is.
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
    scalar: bool = False,
) -> QPSolution:
    """Solve quadratic programs.

    Args:
        program: the programs.
        iterations: of the interior point method.
        tolerance: residual at which a sample is left as it is.
        slack: of equalities and bounds per unit of a step's multipliers. It lets rows depend on one another:
            those of equalities, and of bounds that meet in one point, as at a foot without force. It is
            gone where steps end. Left out, what rounding can tell: 2e-10 in float64, 5e-5 in float32.
        scalar: whether steps are eliminations without exchanges of rows, for code that is traced to
            scalars; see `torchsko.linalg.symmetric`.

    Returns:
        The solution, differentiable once in every tensor of the program, in both modes.

    Reference: Mehrotra 1992; Amos, Kolter 2017.
    """
    loose = float(torch.finfo(compute_dtype(program.p)).eps ** 0.625) if slack is None else slack
    solver = ldl_solver if scalar else lu_solver
    bounded = program.h != torch.inf  # what is no number is not free of bounds
    size = program.p.detach().abs().amax(-1, keepdim=True) / LARGEST
    size = torch.where(size > 1, size, 1.0)
    program = _augment_objective(
        program._replace(  # 0 x <= 1 bounds nothing either
            P=program.P / size[..., None],
            p=program.p / size,
            G=torch.where(bounded[..., None], program.G, 0.0),
            h=torch.where(bounded, program.h, 1.0),
        )
    )
    held = QuadraticProgram(*(x.detach() for x in program))

    def improved(*tensors: Tensor) -> Point:
        here, least, point = tensors[:4], tensors[4], tensors[5:9]
        *given, size = tensors[9:]
        given = QuadraticProgram(*given)
        here = _step(given, here, loose, solver)
        left = size[..., 0] * _violation(given, here)
        # Past what rounding allows residuals grow again: the best point seen is kept.
        better = left < least
        chosen = [torch.where(better[..., None], *x) for x in zip(here, point, strict=True)]
        return *here, torch.where(better, left, least), *chosen

    here = _start(held)
    # Who waits for the tolerance waits for it in the objective's own size: derivatives want it.
    start = (*here, size[..., 0] * _violation(held, here), *here)
    found = loop(
        improved, start, iterations, (*held, size), until=lambda *state: state[4] <= tolerance
    )
    least, point = found[4], found[5:]
    # What derivatives pass through: the conditions at the solution, by the program as it was given.
    off = _residuals(program, point)
    solve = solver(_conditions(held, point, loose))
    change = _newton(solve, held, point, off, loose)
    # What the slack has left of them, which in derivatives may be a part in ten thousand.
    rest = [x + dx for x, dx in zip(off, _residual_change(held, point, change), strict=True)]
    more = _newton(solve, held, point, tuple(rest), loose)
    change = tuple(x + dx for x, dx in zip(change, more, strict=True))
    there = tuple((x + dx).detach() for x, dx in zip(point, change, strict=True))
    left = size[..., 0] * _violation(held, there)
    # A last step that helps is taken; of one that does not there are the derivatives only.
    better = (left < least)[..., None]
    x, y, z = (
        x + torch.where(better, dx, dx - dx.detach())
        for x, dx in zip(point[:3], change[:3], strict=True)
    )
    residual = torch.where(better[..., 0], left, least) / size[..., 0]
    return QPSolution(x, size * y, size * z, residual)


def _augment_objective(program: QuadraticProgram) -> QuadraticProgram:
    """A program with the same solution and multipliers, whose P is definite where its equalities are not met.

    To the objective the square of A x - b is added, in units of A: where P is small, what is known of x by
    the equalities alone is then in P, too, and an elimination may begin there.

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
    batch = torch.broadcast_shapes(*shapes)
    x = program.p.new_zeros(*batch, program.p.shape[-1])
    s = program.h.expand(*batch, program.h.shape[-1]).clamp(min=1.0)
    return x, x.new_zeros(*batch, program.b.shape[-1]), torch.ones_like(s), s


def _residuals(program: QuadraticProgram, point: Point) -> Point:
    """Of stationarity, the equalities, complementarity and the bounds."""
    x, y, z, s = point
    P, p, A, b, G, h = program
    stationary = matvec(P, x) + p + matvec(A.mT, y) + matvec(G.mT, z)
    return stationary, matvec(A, x) - b, s * z, matvec(G, x) + s - h


def _residual_change(program: QuadraticProgram, point: Point, step: Point) -> Point:
    """How residuals change by a step, to first order."""
    _, _, z, s = point
    dx, dy, dz, ds = step
    P, _, A, _, G, _ = program
    stationary = matvec(P, dx) + matvec(A.mT, dy) + matvec(G.mT, dz)
    return stationary, matvec(A, dx), s * dz + z * ds, matvec(G, dx) + ds


def _violation(program: QuadraticProgram, point: Point) -> Tensor:
    """The largest violation of a condition of optimality, `[*batch]`.

    Of a bound's multiplier and slack the smaller shall vanish. Their product says little: it is as small as
    the square of both where a bound is met without force.
    """
    stationary, equal, _, bound = _residuals(program, point)
    parts = [stationary, equal, torch.minimum(point[2], point[3]), bound]
    return concatenate(parts).abs().amax(-1)


class KKTMatrix(NamedTuple):
    """What a step solves, less the bounds' multipliers and slacks: [[K, A*], [A, -slack]], K = P + G* w G.

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
        return self.P + self.G.mT @ (self.weights[..., None] * self.G)


Solver = Callable[[KKTMatrix], Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]
"""Factorises conditions; what it gives solves them for right-hand sides `[*batch, n]` and `[*batch, e]`."""


def lu_solver(conditions: KKTMatrix) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Conditions by LU, few large operations."""
    K, A, slack = conditions.K, conditions.A, conditions.slack
    n, e, batch = K.shape[-1], A.shape[-2], K.shape[:-2]
    corner = -slack * torch.eye(e, dtype=K.dtype, device=K.device)
    A = A.expand(*batch, e, n)
    lower = torch.cat([A, corner.expand(*batch, e, e)], -1)
    # Where a program has no solution the matrix may lose its rank: no error, which would end all samples.
    LU, pivots, _ = torch.linalg.lu_factor_ex(torch.cat([torch.cat([K, A.mT], -1), lower], -2))
    # Factors come column by column. Of those, vmap's views with a batch of one make lu_solve read past a
    # sample (torch 2.13): row by row they are read as they are.
    LU = LU.clone(memory_format=torch.contiguous_format)

    def solve(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        rhs = concatenate((f, g))[..., None]
        dx, dy = torch.linalg.lu_solve(LU, pivots, rhs)[..., 0].tensor_split([n], -1)
        return dx, dy

    return solve


def ldl_solver(conditions: KKTMatrix) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Conditions by elimination of x, then of y, in the order in which they stand, without square roots.

    In exact numbers no pivot of these vanishes. One that is lost in rounding, as where equalities depend on
    one another, becomes as large as it was at first: what it would move stays. Of a large factorisation a
    kernel has one, for the iterations and for the last step.

    Reference: R. Vanderbei, *Symmetric quasidefinite matrices*, SIAM Journal on Optimization 5(1), 1995.
    """
    slack, given = conditions.slack, conditions[:-1]

    def factors(P: Tensor, G: Tensor, weights: Tensor, A: Tensor) -> tuple[Tensor, ...]:
        here = KKTMatrix(P, G, weights, A, slack)
        first = ldl(here.K, LOST[0])
        B = first.forward(here.A.mT)
        corner = slack * torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
        second = ldl(B.mT @ first.scaled(B) + corner, LOST[1])
        return (*first.packed(B), B, *second.packed(B))

    n, e = given[0].shape[-1], given[-1].shape[-2]
    is_large = n**3 / 3 + n * n * e + n * e * e > ONCE
    found = subprogram(factors, given, 5) if is_large else factors(*given)
    first, B, second = Eliminated.of(*found[:2]), found[2], Eliminated.of(*found[3:])

    def solve(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        u = first.forward(f[..., None])
        v = second.forward(B.mT @ first.scaled(u) - g[..., None])
        dy = second.backward(second.scaled(v))
        dx = first.backward(first.scaled(u - B @ dy))
        return dx[..., 0], dy[..., 0]

    return solve


LOST = (0.5, 64.0)
"""Pivots of x and of y that are lost in rounding; see `torchsko.linalg.symmetric.ldl`."""


ONCE = 100_000
"""Products of a factorisation from which on a kernel has it once. To hand matrices over takes a tenth to a
fifth of a quadruped's time; a humanoid's kernel on the corners of its feet would be too large otherwise."""


def _conditions(program: QuadraticProgram, point: Point, slack: float) -> KKTMatrix:
    """What a step from a point solves."""
    _, _, z, s = point
    return KKTMatrix(program.P, program.G, z / (s + slack * z), program.A, slack)


def _newton(
    solve: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    program: QuadraticProgram,
    point: Point,
    off: Point,
    slack: float,
) -> Point:
    """The step that takes residuals away, to first order and but for the slack."""
    _, _, z, s = point
    G = program.G
    stationary, equal, complementary, bound = off
    inner = (z * bound - complementary) / (s + slack * z)
    dx, dy = solve(-stationary - matvec(G.mT, inner), -equal)
    forward = matvec(G, dx)
    dz = inner + z / (s + slack * z) * forward
    return dx, dy, dz, slack * dz - bound - forward


def _step(program: QuadraticProgram, point: Point, slack: float, solver: Solver) -> Point:
    """Mehrotra's predictor, then his corrector."""
    solve = solver(_conditions(program, point, slack))
    stationary, equal, complementary, bound = off = _residuals(program, point)
    step = _newton(solve, program, point, off, slack)
    z, s, dz, ds = *point[2:], *step[2:]
    if not z.shape[-1]:
        return tuple(x + dx for x, dx in zip(point, step, strict=True))
    mean = complementary.mean(-1, keepdim=True)
    reach = _reach(z, s, dz, ds)
    after = ((z + reach * dz) * (s + reach * ds)).mean(-1, keepdim=True)
    centring = (after / mean) ** 3 * mean
    corrected = complementary + dz * ds - centring
    step = _newton(solve, program, point, (stationary, equal, corrected, bound), slack)
    reach = _reach(z, s, step[2], step[3])
    return tuple(x + reach * dx for x, dx in zip(point, step, strict=True))


def _reach(z: Tensor, s: Tensor, dz: Tensor, ds: Tensor) -> Tensor:
    """How far a step may go until a multiplier or a slack vanishes, 1 at most, `[*batch, 1]`."""
    values, changes = torch.cat([z, s], -1), torch.cat([dz, ds], -1)
    room = torch.where(changes < 0, -values / changes, torch.inf)
    return (BACK_OFF * room.amin(-1, keepdim=True)).clamp(max=1.0)
