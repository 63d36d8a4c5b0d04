r"""One iteration of iterative LQR: expansions, the Riccati recursion, and the search of alpha.

See `torchsko.control.ilqr.solver` for what it does. Where states were given that do not follow from the
inputs,
a gap e takes the end of each step to the state after it, :math:`x_{t + 1} = f(x_t, u_t) \oplus e_t`. The
model of the next motion has :math:`A x + B u - e` then, and following the feedback leaves
:math:`(1 - \alpha) e`. A step has to lower

.. math:: J + \nu \textstyle\sum_t |e_t|_1,

with a weight nu that grows until the model lowers it, too: a full step closes all gaps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.control.ilqr.backward_pass import (
    FeedbackPlan,
    QuadraticModel,
    backward_pass,
    select_samples,
    solve_convexified,
)
from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.trajectory import SolverState, rollout_step_sizes
from torchsko.mechanism.joints.configuration import subtract
from torchsko.utils.shapes import matvec

SHARE, HALVINGS = 1e-4, 8
"""Of the promised descent that a step has to keep; how often alpha is halved before it is given up."""

LEAST, LOWER, HIGHER = 1e-6, 0.1, 10.0
"""Regularisation after a first failure, over Q_uu; its change by steps that help, and that do not."""

LIGHTEST = 1 / 64
"""Least weight of second derivatives but none: a quarter for each failure, four times for each success."""

TINY = 1e-12
"""Sum of gaps below which they are closed: a full step leaves none."""

ROUNDING = 50
"""Rounding units of the cost that a step may seem to lose near the end."""


def evaluate(
    problem: OptimalControl, motion: SolverState, goals: list[Tensor], tolerance: float
) -> tuple[SolverState, QuadraticModel]:
    """Which samples have converged, and expansions along the motion."""
    along = problem.expand(motion.q[:-1], motion.qd[:-1], motion.u, *(x[:-1] for x in goals))
    end = problem.expand_final(motion.q[-1], motion.qd[-1], *(x[-1] for x in goals))
    A, B, gradient, hessian = along
    costates, descent = _costates(A, B, gradient, end[0])
    free = _free_inputs(problem, motion.u, descent)
    norm = torch.where(
        motion.converged, motion.gradient, (free * descent).square().sum(-1).sum(0).sqrt()
    )
    closed = (motion.gap.abs() <= tolerance).all(-1).all(0)
    good = (norm <= tolerance) & closed
    motion = motion._replace(gradient=norm, converged=motion.converged | good)
    low, high = _step_bounds(problem, motion.u)
    ahead = QuadraticModel(
        A, B, gradient, hessian, end[0], end[1], costates, free, low, high, motion.gap
    )  # fmt: skip
    return motion, ahead


def iterate(
    problem: OptimalControl,
    motion: SolverState,
    goals: list[Tensor],
    tolerance: float,
    exact: bool,
    stop_early: bool,
) -> SolverState:
    """One iteration of the samples that have not converged.

    Where inputs have bounds, there are two plans. One keeps to them, as the end of the way does: it alone
    converges where inputs stay at bounds. The other meets them only as it is followed; far from the end its
    feedback, which the first has not where it is at a bound, often leads further. The better one counts.
    Samples whose first plan comes to no bound have no other, and are left out where they may be.
    """
    motion, model = evaluate(problem, motion, goals, tolerance)
    full = _add_curvature(problem, motion, model, goals) if exact else model
    plan, doubtful = _solve_model(problem, motion, model, full, goals, stop_early)
    after, taken = _line_search(problem, motion, goals, plan, stop_early)
    if problem.bounds is not None:
        met = (doubtful | _touches_bounds(model, plan)) & ~motion.converged
        other, led, doubted = _unbounded_step(problem, motion, model, full, goals, met, stop_early)
        better = led & ~(taken & (after.cost <= other.cost))
        after = SolverState(
            *(select_samples(better, x, y) for x, y in zip(other, after, strict=True))
        )
        taken, doubtful = taken | led, torch.where(better, doubted, doubtful)
    return _update_regularization(after, taken, doubtful, plan.size, exact)


def _touches_bounds(model: QuadraticModel, plan: FeedbackPlan) -> Tensor:
    """Samples of inputs at a bound, or planned to come to one; those of others, bounds do not change."""
    at = (model.low >= 0) | (model.high <= 0)
    return (at | (plan.k <= model.low) | (plan.k >= model.high)).any(-1).any(0)


def _unbounded_step(
    problem: OptimalControl,
    motion: SolverState,
    model: QuadraticModel,
    full: QuadraticModel,
    goals: list[Tensor],
    wanted: Tensor,
    stop_early: bool,
) -> tuple[SolverState, Tensor, Tensor]:
    """Where the plan without bounds leads, whether anywhere, and where it was made convex.

    Samples that are not wanted are left out where that may be looked at, and are led nowhere.
    """
    rows, whole = None, motion
    if stop_early and not bool(wanted.any()):
        return motion, torch.zeros_like(wanted), wanted
    if stop_early and not problem.mech.batch_shape:  # otherwise samples stay with their robots
        rows = wanted.nonzero()[:, 0]
        motion, goals = motion.of(rows), [x.index_select(1, rows) for x in goals]
    loose, curved = (_without_bounds(x if rows is None else x.of(rows)) for x in (model, full))
    curved = loose if full is model else curved
    plan, doubtful = _solve_model(problem, motion, loose, curved, goals, stop_early)
    motion, led = _line_search(problem, motion, goals, plan, stop_early)
    if rows is None:
        return motion, led, doubtful
    none = torch.zeros_like(wanted)
    led, doubtful = (none.index_copy(0, rows, x) for x in (led, doubtful))
    return whole.with_rows(rows, motion), led, doubtful


def _without_bounds(model: QuadraticModel) -> QuadraticModel:
    """The model of inputs that either stay at their bound, or have none."""
    none, zero = torch.full_like(model.low, torch.inf), torch.zeros_like(model.low)
    low, high = (torch.where(model.free > 0, x, zero) for x in (-none, none))
    return model._replace(low=low, high=high)


def _add_curvature(
    problem: OptimalControl, motion: SolverState, model: QuadraticModel, goals: list[Tensor]
) -> QuadraticModel:
    """The model with second derivatives of steps and residuals, as each sample weighs them."""
    q, qd, weight = motion.q, motion.qd, motion.exact[..., None, None]
    more = problem.curvature(q[:-1], qd[:-1], motion.u, model.costates, *(x[:-1] for x in goals))
    end = problem.final_curvature(q[-1], qd[-1], *(x[-1] for x in goals))
    return model._replace(
        hessian=model.hessian + weight * more, end_hessian=model.end_hessian + weight * end
    )


def _solve_model(
    problem: OptimalControl,
    motion: SolverState,
    model: QuadraticModel,
    full: QuadraticModel,
    goals: list[Tensor],
    stop_early: bool,
) -> tuple[FeedbackPlan, Tensor]:
    """What solves the full model, made convex where it has to be, and where that was so."""
    plan = backward_pass(problem, full, motion.mu)
    doubtful = ~plan.good
    if stop_early and not bool(doubtful.any()):
        return plan, doubtful
    numbers = problem.numbers(motion.q[0], motion.qd[0], motion.u[0], *(x[0] for x in goals))
    if full is model and not any(numbers):  # all Hessians of Gauss and Newton are convex
        return plan, doubtful
    return solve_convexified(problem, model, motion.mu, plan, numbers, stop_early), doubtful


def compute_gaps(
    problem: OptimalControl, motion: SolverState, goals: list[Tensor]
) -> tuple[Tensor, ...]:
    """What takes the end of each step to the state after it; the inputs within bounds; the cost of both."""
    q, qd, u = motion.q[:-1], motion.qd[:-1], motion.u
    zero = torch.zeros_like(u[..., 0])
    still = torch.zeros_like(u), motion.K, zero
    q, qd, u, cost = problem.feedback_step(q, qd, q, qd, u, *still, *(x[:-1] for x in goals))
    gap = torch.cat([subtract(problem.mech, q, motion.q[1:]), motion.qd[1:] - qd], -1)
    end = problem.cost_final(motion.q[-1], motion.qd[-1], *(x[-1] for x in goals))
    return gap, u, cost.sum(0) + end


def _costates(A: Tensor, B: Tensor, gradient: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Costates after each step, and the gradient of the cost by all inputs, time in front."""
    x, p, costates, found = end.shape[-1], end, [], []
    for t in reversed(range(len(A))):
        costates.append(p)
        found.append(gradient[t, ..., x:] + matvec(B[t].mT, p))
        p = gradient[t, ..., :x] + matvec(A[t].mT, p)
    return torch.stack(costates[::-1]), torch.stack(found[::-1])


def _free_inputs(problem: OptimalControl, u: Tensor, descent: Tensor) -> Tensor:
    """1 for inputs that may change, 0 for those at a bound that the gradient pushes against."""
    if problem.bounds is None:
        return torch.ones_like(u)
    lower, upper = problem.bounds
    held = ((u <= lower) & (descent > 0)) | ((u >= upper) & (descent < 0))
    return torch.where(held, torch.zeros_like(u), torch.ones_like(u))


def _step_bounds(problem: OptimalControl, u: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest change of inputs; none where there are no bounds."""
    if problem.bounds is None:
        return u[..., :0], u[..., :0]
    return problem.bounds[0] - u, problem.bounds[1] - u


def _line_search(
    problem: OptimalControl,
    motion: SolverState,
    goals: list[Tensor],
    plan: FeedbackPlan,
    stop_early: bool,
) -> tuple[SolverState, Tensor]:
    """Each sample under its largest alpha that keeps the promise, and whether there was one."""
    k, K, slope, curvature, _, good = plan
    wanted = good & ~motion.converged
    open_, weight = motion.gap.abs().sum(-1).sum(0), motion.weight
    if motion.shooting:
        # Half of what is gained by closing the gaps is kept, whatever the cost does.
        least = 2 * (slope + torch.clamp(curvature, min=0) / 2) / torch.clamp(open_, min=TINY)
        weight = torch.where(open_ > TINY, torch.maximum(weight, least), weight)
    gain = weight * open_
    slack = ROUNDING * torch.finfo(slope.dtype).eps * (motion.cost.abs() + gain)
    taken, alpha = torch.zeros_like(wanted), torch.ones_like(slope)
    states, cost, gap = [motion.q, motion.qd, motion.u], motion.cost, motion.gap
    for _ in range(HALVINGS + 1):
        left = wanted & ~taken
        if stop_early and not bool(left.any()):
            break
        looked = stop_early and not problem.mech.batch_shape  # samples stay with their robots
        rows = left.nonzero()[:, 0] if looked else None
        *after, cost_after = rollout_step_sizes(problem, motion, k, K, alpha, goals, rows)
        promised = alpha * slope + alpha * alpha / 2 * curvature - alpha * gain
        # Comparisons with what is not finite are false.
        kept = cost_after - alpha * gain <= motion.cost + SHARE * promised + slack
        now = left & kept
        states = [torch.where(now[..., None], x, y) for x, y in zip(after, states, strict=True)]
        cost, taken = torch.where(now, cost_after, cost), taken | now
        gap = torch.where(now[..., None], (1 - alpha[..., None]) * motion.gap, gap)
        alpha = alpha / 2
    q, qd, u = states
    # Feedback about the motion that stays is right, too: a motion that is optimal already has gains.
    K = torch.where(good[..., None, None], K, motion.K)
    return motion._replace(q=q, qd=qd, u=u, K=K, cost=cost, gap=gap, weight=weight), taken


def _update_regularization(
    motion: SolverState, taken: Tensor, doubtful: Tensor, size: Tensor, exact: bool
) -> SolverState:
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
        mu = torch.where(failed & (doubtful | (motion.exact == 0)), raised, mu)
        less = torch.where(motion.exact > LIGHTEST, motion.exact / 4, torch.zeros_like(mu))
        more = torch.clamp(4 * motion.exact, LIGHTEST, 1)
        weight = torch.where(left, torch.where(taken & ~doubtful, more, less), motion.exact)
    iterations = motion.iterations + left.to(motion.iterations.dtype)
    return motion._replace(mu=mu, exact=weight, iterations=iterations)
