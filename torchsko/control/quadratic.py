r"""Batched convex quadratic programs, differentiable at their solution.

.. math::
    \min_x \tfrac12 x^* P x + p^* x \quad \text{subject to} \quad A x = b, \quad G x + s = h, \quad s \ge 0.

A primal-dual interior point method with Mehrotra's predictor and corrector, every sample on its own: a fixed
number of iterations, of which those after convergence change nothing. Derivatives are those of the implicit
function that the conditions of optimality define: one more Newton step whose matrix is held.

Why this and not a solver of others: weights of whole-body control span six decades and more, over which
iterations of first order (ADMM: OSQP) crawl; proxsuite is quicker for a few programs, but takes NumPy arrays,
one program at a time, where a GPU, vmap and forward mode end; qpth is this method, in reverse mode only.
``benchmarks/quadratic.py`` prints how they fare on the same programs.

References: S. Mehrotra, *On the implementation of a primal-dual interior point method*, SIAM Journal on
Optimization 2(4), 1992; B. Amos, J. Z. Kolter, *OptNet: differentiable optimization as a layer in neural
networks*, ICML 2017.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.precision import computed_in

BACK_OFF = 0.99
"""Share of the way to the boundary that a step goes."""


class Program(NamedTuple):
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


class Optimum(NamedTuple):
    """The solution of a `Program`.

    Attributes:
        x: `[*batch, n]`.
        of_equalities: multipliers of A x = b, `[*batch, e]`.
        of_bounds: multipliers of G x <= h, `[*batch, m]`, none negative.
        residual: largest violation of a condition of optimality, `[*batch]`, without derivatives; it stays
            large where no x meets the constraints.
    """

    x: Tensor
    of_equalities: Tensor
    of_bounds: Tensor
    residual: Tensor


def solve_program(
    program: Program, *, iterations: int = 30, tolerance: float = 1e-9, slack: float | None = None
) -> Optimum:
    """Solve quadratic programs.

    Args:
        program: the programs.
        iterations: of the interior point method.
        tolerance: residual at which a sample is left as it is.
        slack: of equalities and bounds per unit of a step's multipliers. It lets rows depend on one another:
            those of equalities, and of bounds that meet in one point, as at a foot without force. It is
            gone where steps end. Left out, what rounding can tell: 2e-10 in float64, 5e-5 in float32.

    Returns:
        The solution, differentiable once in every tensor of the program, in both modes.

    Reference: Mehrotra 1992; Amos, Kolter 2017.
    """
    loose = float(torch.finfo(computed_in(program.p)).eps ** 0.625) if slack is None else slack
    bounded = program.h != torch.inf  # what is no number is not free of bounds
    program = program._replace(  # 0 x <= 1 bounds nothing either
        G=torch.where(bounded[..., None], program.G, 0.0), h=torch.where(bounded, program.h, 1.0)
    )
    held = Program(*(x.detach() for x in program))
    here = _start(held)
    point, least = here, _violation(held, here)
    for _ in range(iterations):
        here = _step(held, here, loose)
        left = _violation(held, here)
        # Past what rounding allows residuals grow again: the best point seen is kept.
        better = (left < least) & (least > tolerance)
        least = torch.where(better, left, least)
        point = tuple(
            torch.where(better[..., None], new, old) for new, old in zip(here, point, strict=True)
        )
    # What derivatives pass through: the conditions at the solution, by the program as it was given.
    off = _residuals(program, point)
    change = _newton(_factor(held, point, loose), held, point, off, loose)
    there = tuple((x + dx).detach() for x, dx in zip(point, change, strict=True))
    left = _violation(held, there)
    # A last step that helps is taken; of one that does not there are the derivatives only.
    better = (left < least)[..., None]
    x, y, z = (
        x + torch.where(better, dx, dx - dx.detach())
        for x, dx in zip(point[:3], change[:3], strict=True)
    )
    return Optimum(x, y, z, torch.where(better[..., 0], left, least))


Point = tuple[Tensor, ...]
"""x, multipliers y of the equalities, z of the bounds, and the slacks s of the bounds."""


def _start(program: Program) -> Point:
    shapes = [x.shape[:-2] for x in (program.P, program.A, program.G)]
    shapes += [x.shape[:-1] for x in (program.p, program.b, program.h)]
    batch = torch.broadcast_shapes(*shapes)
    x = program.p.new_zeros(*batch, program.p.shape[-1])
    s = program.h.expand(*batch, program.h.shape[-1]).clamp(min=1.0)
    return x, x.new_zeros(*batch, program.b.shape[-1]), torch.ones_like(s), s


def _times(matrix: Tensor, x: Tensor) -> Tensor:
    return (matrix @ x[..., None])[..., 0]


def _residuals(program: Program, point: Point) -> Point:
    """Of stationarity, the equalities, complementarity and the bounds."""
    x, y, z, s = point
    P, p, A, b, G, h = program
    stationary = _times(P, x) + p + _times(A.mT, y) + _times(G.mT, z)
    return stationary, _times(A, x) - b, s * z, _times(G, x) + s - h


def _violation(program: Program, point: Point) -> Tensor:
    """The largest violation of a condition of optimality, `[*batch]`.

    Of a bound's multiplier and slack the smaller shall vanish. Their product says little: it is as small as
    the square of both where a bound is met without force.
    """
    stationary, equal, _, bound = _residuals(program, point)
    parts = [stationary, equal, torch.minimum(point[2], point[3]), bound]
    batch = torch.broadcast_shapes(*(x.shape[:-1] for x in parts))
    return torch.cat([x.expand(*batch, x.shape[-1]) for x in parts], -1).abs().amax(-1)


def _factor(program: Program, point: Point, slack: float) -> tuple[Tensor, Tensor]:
    """LU factors of the conditions, less the bounds' multipliers and slacks."""
    _, y, z, s = point
    P, A, G = program.P, program.A, program.G
    K = P + G.mT @ ((z / (s + slack * z))[..., None] * G)
    e = y.shape[-1]
    corner = -slack * torch.eye(e, dtype=P.dtype, device=P.device)
    batch = K.shape[:-2]
    A = A.expand(*batch, *A.shape[-2:])
    lower = torch.cat([A, corner.expand(*batch, e, e)], -1)
    # Where a program has no solution the matrix may lose its rank: no error, which would end all samples.
    LU, pivots, _ = torch.linalg.lu_factor_ex(torch.cat([torch.cat([K, A.mT], -1), lower], -2))
    # Factors come column by column. Of those, vmap's views with a batch of one make lu_solve read past a
    # sample (torch 2.13): row by row they are read as they are.
    return LU.clone(memory_format=torch.contiguous_format), pivots


def _newton(
    factor: tuple[Tensor, Tensor], program: Program, point: Point, off: Point, slack: float
) -> Point:
    """The step that takes residuals away, to first order and but for the slack."""
    _, _, z, s = point
    G = program.G
    stationary, equal, complementary, bound = off
    inner = (z * bound - complementary) / (s + slack * z)
    n = stationary.shape[-1]
    batch = torch.broadcast_shapes(stationary.shape[:-1], equal.shape[:-1])
    rhs = [-stationary - _times(G.mT, inner), -equal]
    rhs = torch.cat([x.expand(*batch, x.shape[-1]) for x in rhs], -1)
    dx, dy = torch.linalg.lu_solve(*factor, rhs[..., None])[..., 0].tensor_split([n], -1)
    forward = _times(G, dx)
    dz = inner + z / (s + slack * z) * forward
    return dx, dy, dz, slack * dz - bound - forward


def _step(program: Program, point: Point, slack: float) -> Point:
    """Mehrotra's predictor, then his corrector."""
    factor = _factor(program, point, slack)
    stationary, equal, complementary, bound = off = _residuals(program, point)
    step = _newton(factor, program, point, off, slack)
    z, s, dz, ds = *point[2:], *step[2:]
    if not z.shape[-1]:
        return tuple(x + dx for x, dx in zip(point, step, strict=True))
    mean = complementary.mean(-1, keepdim=True)
    reach = _reach(z, s, dz, ds)
    after = ((z + reach * dz) * (s + reach * ds)).mean(-1, keepdim=True)
    centring = (after / mean) ** 3 * mean
    corrected = complementary + dz * ds - centring
    step = _newton(factor, program, point, (stationary, equal, corrected, bound), slack)
    reach = _reach(z, s, step[2], step[3])
    return tuple(x + reach * dx for x, dx in zip(point, step, strict=True))


def _reach(z: Tensor, s: Tensor, dz: Tensor, ds: Tensor) -> Tensor:
    """How far a step may go until a multiplier or a slack vanishes, 1 at most, `[*batch, 1]`."""
    values, changes = torch.cat([z, s], -1), torch.cat([dz, ds], -1)
    room = torch.where(changes < 0, -values / changes, torch.inf)
    return (BACK_OFF * room.amin(-1, keepdim=True)).clamp(max=1.0)
