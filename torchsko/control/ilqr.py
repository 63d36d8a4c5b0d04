r"""Optimal control of batches of motions: iterative LQR, and Newton's method.

Each iteration expands steps and costs along the motion (`torchsko.control.optimal`), solves the
linear-quadratic problem that they make, and follows its feedback on the robot itself, under

.. math:: u_t + \alpha k_t + K_t x_t,

with the first alpha of 1, 1/2, 1/4, ... that lowers the cost by a share of what that problem promised.
Costates

.. math:: p_t = l_x + A^* p_{t+1}, \qquad g_t = l_u + B^* p_{t+1}

give the gradient g of the cost by all inputs, exactly; its norm says when a sample has converged. Inputs at a
bound that the gradient pushes against stay there, and do not count. With `exact`, the costates weigh the
second derivatives of the steps, and iterations are Newton's; a sample whose matrix is then not positive
definite, or whose step is too long, takes them with less weight.

Every sample has its own alpha, regularisation and end. Nothing waits for the device, unless `stop_early`.

Reference: W. Li, E. Todorov, *Iterative linear quadratic regulator design for nonlinear biological movement
systems*, ICINCO 2004; J. Pantoja, *Differential dynamic programming and Newton's method*, International
Journal of Control 47(5), 1988 (exact); Y. Tassa, N. Mansard, E. Todorov, *Control-limited differential
dynamic programming*, ICRA 2014 (bounds).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.optimal import OptimalControl
from torchsko.errors import ShapeError, TorchskoError
from torchsko.mechanism.state import check_state

SHARE, HALVINGS = 1e-4, 8
"""Of the promised descent that a step has to keep; how often alpha is halved before it is given up."""

LEAST, LOWER, HIGHER = 1e-6, 0.1, 10.0
"""Regularisation after a first failure, over Q_uu; its change by steps that help, and that do not."""

LIGHTEST = 1 / 64
"""Least weight of second derivatives but none: a quarter for each failure, four times for each success."""

ROUNDING = 50
"""Rounding units of the cost that a step may seem to lose near the end."""


class Optimized(NamedTuple):
    """What iterations found.

    Attributes:
        q: configurations, `[*batch, steps + 1, num_q]`.
        qd: velocities, `[*batch, steps + 1, num_dof]`.
        u: inputs, `[*batch, steps, num_u]`.
        gains: feedback K of the last iteration, `[*batch, steps, num_u, 2 num_dof]`; the control is
            u + K x, with x the difference to (q, qd) in tangent coordinates.
        cost: `[*batch]`.
        gradient: its norm by all inputs, those held by a bound left out, `[*batch]`.
        converged: whether that is below the tolerance, `[*batch]`.
        iterations: steps taken until then, int64 `[*batch]`.
    """

    q: Tensor
    qd: Tensor
    u: Tensor
    gains: Tensor
    cost: Tensor
    gradient: Tensor
    converged: Tensor
    iterations: Tensor


class _Motion(NamedTuple):
    """Samples under way, time in front where there is one; see `Optimized`."""

    q: Tensor
    qd: Tensor
    u: Tensor
    K: Tensor
    cost: Tensor
    gradient: Tensor
    mu: Tensor
    exact: Tensor
    converged: Tensor
    iterations: Tensor


def ilqr(
    problem: OptimalControl,
    q: Tensor,
    qd: Tensor,
    u: Tensor,
    *goals: Tensor,
    exact: bool = False,
    tolerance: float = 1e-6,
    max_iterations: int = 100,
    stop_early: bool = True,
) -> Optimized:
    """Motions of least cost, each from its own start: the nearest way down from the inputs given.

    Results carry no derivatives.

    Args:
        problem: of `torchsko.control.optimal_control`.
        q: configurations at the start, `[*batch, num_q]`.
        qd: velocities there, `[*batch, num_dof]` [rad/s or m/s].
        u: inputs to begin with, `[*batch, steps, num_u]` [N m or N].
        *goals: as the problem names them, `[*batch, *shape]`.
        exact: second derivatives of steps and residuals count, too: Newton's method.
        tolerance: norm of the gradient at which a sample has converged.
        max_iterations: their largest number.
        stop_early: end when all samples have converged, and leave out those that have; the host then waits
            for the device. False: every sample takes all iterations, each with all halvings of alpha; those
            not wanted change nothing.

    Returns:
        See `Optimized`.

    Raises:
        ShapeError: when a tensor does not fit.
        TorchskoError: on numbers out of range.
    """
    if not (tolerance > 0 and max_iterations >= 0):
        raise TorchskoError(
            f"ilqr was given tolerance={tolerance}, max_iterations={max_iterations}.\n"
            "It stops at a small norm of the gradient, after some steps at most.\n"
            "Pass tolerance=1e-6 and max_iterations=100, say."
        )
    batch = _batch(problem, q, qd, u, goals)
    with torch.no_grad():
        flat = not problem.mech.batch_shape  # otherwise samples stay with their robots
        q, qd, u, *targets = (
            _laid(x, batch, rank, flat)
            for x, rank in zip(
                (q, qd, u, *goals), (1, 1, 2, *map(len, problem.goals.values())), strict=True
            )
        )
        motion = _start(problem, q, qd, u.movedim(-2, 0), targets, exact)
        early = stop_early and flat
        motion = _iterate(problem, motion, targets, tolerance, max_iterations, exact, early)
    q, qd, u, K = (
        x.movedim(0, len(x.shape) - 1 - r) for x, r in zip(motion[:4], (1, 1, 1, 2), strict=True)
    )
    numbers = motion.cost, motion.gradient, motion.converged, motion.iterations
    return Optimized(*(_shaped(x, batch, flat) for x in (q, qd, u, K, *numbers)))


def _batch(
    problem: OptimalControl, q: Tensor, qd: Tensor, u: Tensor, goals: tuple[Tensor, ...]
) -> torch.Size:
    """Batch dimensions of all that is given.

    Raises:
        ShapeError: when something does not fit.
    """
    check_state(problem.mech, q=q, qd=qd)
    wanted = {"u": (u.shape[-2] if u.ndim > 1 else 1, problem.num_u), **problem.goals}
    if len(goals) != len(problem.goals):
        raise ShapeError(
            f"{len(goals)} goals were given.\nThe problem's costs depend on {list(problem.goals)}.\n"
            "Pass them after u, in this order."
        )
    batches = [q.shape[:-1], qd.shape[:-1], problem.mech.batch_shape]
    for (name, shape), x in zip(wanted.items(), (u, *goals), strict=True):
        if x.ndim < len(shape) or tuple(x.shape[x.ndim - len(shape) :]) != tuple(shape):
            raise ShapeError(
                f"{name} has shape {list(x.shape)}.\n"
                f"Its last dimensions are those of one sample, {list(shape)}.\n"
                f"Pass a tensor of shape [*batch, {', '.join(map(str, shape))}]."
            )
        batches.append(x.shape[: x.ndim - len(shape)])
    return torch.broadcast_shapes(*batches)


def _laid(x: Tensor, batch: torch.Size, rank: int, flat: bool) -> Tensor:
    shape = x.shape[x.ndim - rank :]
    x = x.expand(*batch, *shape)
    return x.reshape(-1, *shape) if flat else x


def _shaped(x: Tensor, batch: torch.Size, flat: bool) -> Tensor:
    return x.reshape((*batch, *x.shape[1:])) if flat else x


def _start(
    problem: OptimalControl,
    q: Tensor,
    qd: Tensor,
    u: Tensor,
    goals: list[Tensor],
    exact: bool,
) -> _Motion:
    """The motion of the inputs given."""
    K = u.new_zeros(*u.shape, 2 * problem.mech.num_dof)
    zero = torch.zeros_like(q[..., 0])
    still = [q.expand(len(u) + 1, *q.shape), qd.expand(len(u) + 1, *qd.shape), u]
    qs, qds, us, cost = _followed(problem, still, torch.zeros_like(u), K, zero, goals)
    weight = torch.full_like(zero, float(exact))
    none = torch.zeros_like(zero, dtype=torch.bool)
    count = torch.zeros_like(zero, dtype=torch.int64)
    return _Motion(qs, qds, us, K, cost, zero, zero, weight, none, count)


def _iterate(
    problem: OptimalControl,
    motion: _Motion,
    goals: list[Tensor],
    tolerance: float,
    max_iterations: int,
    exact: bool,
    stop_early: bool,
) -> _Motion:
    """Iterations, of what has not converged where that may be looked at."""
    whole, part, rows = motion, motion, None
    for _ in range(max_iterations):
        part = _improved(problem, part, goals, tolerance, exact, stop_early)
        if not stop_early:
            continue
        left = (~part.converged).nonzero()[:, 0]
        if 2 * len(left) > len(part.cost):
            continue
        whole, rows = _put_back(whole, part, rows), left if rows is None else rows[left]
        if not len(left):
            return whole
        part = _Motion(*(x.index_select(k, left) for k, x in zip(_BATCH, part, strict=True)))
        goals = [x[left] for x in goals]
    part, *_ = _judged(problem, part, goals, tolerance)
    return _put_back(whole, part, rows)


_BATCH = (1, 1, 1, 1, 0, 0, 0, 0, 0, 0)
"""Where the batch dimension of each part of a flat motion is."""


def _put_back(whole: _Motion, part: _Motion, rows: Tensor | None) -> _Motion:
    if rows is None:
        return part
    pairs = zip(_BATCH, whole, part, strict=True)
    return _Motion(*(x.index_copy(k, rows, y) for k, x, y in pairs))


Expansions = tuple[tuple[Tensor, ...], tuple[Tensor, Tensor], Tensor, Tensor]


def _judged(
    problem: OptimalControl, motion: _Motion, goals: list[Tensor], tolerance: float
) -> tuple[_Motion, Expansions]:
    """Which samples have converged; expansions of steps and of the end, costates, and free inputs."""
    along = problem.expand(motion.q[:-1], motion.qd[:-1], motion.u, *goals)
    end = problem.expand_final(motion.q[-1], motion.qd[-1], *goals)
    A, B, gradient, _ = along
    costates, descent = _costates(A, B, gradient, end[0])
    free = _free(problem, motion.u, descent)
    norm = torch.where(
        motion.converged, motion.gradient, (free * descent).square().sum(-1).sum(0).sqrt()
    )
    motion = motion._replace(gradient=norm, converged=motion.converged | (norm <= tolerance))
    return motion, (along, end, costates, free)


def _improved(
    problem: OptimalControl,
    motion: _Motion,
    goals: list[Tensor],
    tolerance: float,
    exact: bool,
    stop_early: bool,
) -> _Motion:
    """One iteration of the samples that have not converged."""
    motion, (along, end, costates, free) = _judged(problem, motion, goals, tolerance)
    A, B, gradient, hessian = along
    end_gradient, end_hessian = end
    if exact:
        q, qd, weight = motion.q, motion.qd, motion.exact[..., None, None]
        more = problem.curvature(q[:-1], qd[:-1], motion.u, costates, *goals)
        hessian = hessian + weight * more
        end_hessian = end_hessian + weight * problem.final_curvature(q[-1], qd[-1], *goals)
    carry, found = (end_hessian, end_gradient), []
    for t in reversed(range(len(A))):
        step = (x[t] for x in (A, B, gradient, hessian, free))
        *carry, k, K, slope, curvature, size, good = problem.riccati(*carry, *step, motion.mu)
        found.append((k, K, slope, curvature, size, good))
    k, K, slope, curvature, size, good = (torch.stack(x[::-1]) for x in zip(*found, strict=True))
    promise = slope.sum(0), curvature.sum(0), good.amin(0) > 0
    after, taken = _searched(problem, motion, goals, k, K, promise, stop_early)
    return _counted(after, taken, size.amax(0), exact)


def _costates(A: Tensor, B: Tensor, gradient: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Costates after each step, and the gradient of the cost by all inputs, time in front."""
    x, p, costates, found = end.shape[-1], end, [], []
    for t in reversed(range(len(A))):
        costates.append(p)
        found.append(gradient[t, ..., x:] + (B[t].mT @ p[..., None])[..., 0])
        p = gradient[t, ..., :x] + (A[t].mT @ p[..., None])[..., 0]
    return torch.stack(costates[::-1]), torch.stack(found[::-1])


def _free(problem: OptimalControl, u: Tensor, descent: Tensor) -> Tensor:
    """1 for inputs that may change, 0 for those at a bound that the gradient pushes against."""
    if problem.bounds is None:
        return torch.ones_like(u)
    lower, upper = problem.bounds
    held = ((u <= lower) & (descent > 0)) | ((u >= upper) & (descent < 0))
    return torch.where(held, torch.zeros_like(u), torch.ones_like(u))


def _searched(
    problem: OptimalControl,
    motion: _Motion,
    goals: list[Tensor],
    k: Tensor,
    K: Tensor,
    promise: tuple[Tensor, Tensor, Tensor],
    stop_early: bool,
) -> tuple[_Motion, Tensor]:
    """Each sample under its largest alpha that keeps the promise, and whether there was one."""
    slope, curvature, good = promise
    wanted = good & ~motion.converged
    slack = ROUNDING * torch.finfo(slope.dtype).eps * motion.cost.abs()
    before, taken = [motion.q, motion.qd, motion.u], torch.zeros_like(wanted)
    states, cost, alpha = before, motion.cost, torch.ones_like(slope)
    for _ in range(HALVINGS + 1):
        *after, cost_after = _followed(problem, before, k, K, alpha, goals)
        promised = alpha * slope + alpha * alpha / 2 * curvature
        # Comparisons with what is not finite are false.
        kept = cost_after <= motion.cost + SHARE * promised + slack
        now = wanted & ~taken & kept
        states = [torch.where(now[..., None], x, y) for x, y in zip(after, states, strict=True)]
        cost, taken = torch.where(now, cost_after, cost), taken | now
        if stop_early and bool((taken | ~wanted).all()):
            break
        alpha = alpha / 2
    q, qd, u = states
    K = torch.where(taken[..., None, None], K, motion.K)
    return motion._replace(q=q, qd=qd, u=u, K=K, cost=cost), taken


def _followed(
    problem: OptimalControl,
    motion: list[Tensor],
    k: Tensor,
    K: Tensor,
    alpha: Tensor,
    goals: list[Tensor],
) -> tuple[Tensor, ...]:
    """Motion and cost under u + alpha k + K x."""
    q_bar, qd_bar, u_bar = motion
    q, qd, qs, qds, us, costs = q_bar[0], qd_bar[0], [q_bar[0]], [qd_bar[0]], [], []
    for t in range(len(u_bar)):
        bar = q_bar[t], qd_bar[t], u_bar[t]
        q, qd, u, cost = problem.follow(q, qd, *bar, k[t], K[t], alpha, *goals)
        for found, x in zip((qs, qds, us, costs), (q, qd, u, cost), strict=True):
            found.append(x)
    total = torch.stack(costs).sum(0) + problem.cost_final(q, qd, *goals)
    return torch.stack(qs), torch.stack(qds), torch.stack(us), total


def _counted(motion: _Motion, taken: Tensor, size: Tensor, exact: bool) -> _Motion:
    """Regularisation, and whether second derivatives count, for the next iteration."""
    left = ~motion.converged
    failed, mu = left & ~taken, motion.mu
    raised = torch.maximum(HIGHER * mu, LEAST * size)
    lowered = torch.where(mu > 2 * LEAST * size, LOWER * mu, torch.zeros_like(mu))
    mu = torch.where(taken, lowered, mu)
    if not exact:
        mu = torch.where(failed, raised, mu)
        weight = motion.exact
    else:
        mu = torch.where(failed & (motion.exact == 0), raised, mu)
        less = torch.where(motion.exact > LIGHTEST, motion.exact / 4, torch.zeros_like(mu))
        weight = torch.where(failed, less, torch.clamp(4 * motion.exact, LIGHTEST, 1))
    iterations = motion.iterations + left.to(motion.iterations.dtype)
    return motion._replace(mu=mu, exact=weight, iterations=iterations)
