r"""One iteration of iterative LQR: expansions, the backward pass and the line search.

See `torchsko.control.ilqr.solver` for the method. In multiple shooting, a gap e leads from the end of each
step to the next state, :math:`x_{t + 1} = f(x_t, u_t) \oplus e_t`. The linear model is then
:math:`A x + B u - e`, and a forward pass with step size alpha leaves :math:`(1 - \alpha) e`. A step must
lower the merit function

.. math:: J + \nu \textstyle\sum_t |e_t|_1,

whose weight nu grows until the model predicts a descent. A full step closes all gaps.
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
from torchsko.control.ilqr.multipliers import complementarity, update_multipliers
from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.repeat import repeat
from torchsko.control.ilqr.trajectory import SolverState, rollout_policy

ARMIJO = 1e-4
"""Fraction of the predicted descent that a step must achieve."""

MAX_HALVINGS = 8
"""Halvings of alpha before the line search fails."""

MIN_REGULARIZATION, LOWER, HIGHER = 1e-6, 0.1, 10.0
"""Regularization after a first failure, relative to Q_uu; its factors after success and failure."""

MIN_CURVATURE_WEIGHT = 1 / 64
"""Smallest nonzero weight of second derivatives. It is divided by 4 after failure, multiplied after
success."""

MIN_GAP_SUM = 1e-12
"""Sum of gaps below which they count as closed."""

COST_ROUNDING = 50
"""Rounding errors of the cost, in machine epsilons, that the line search tolerates."""


def evaluate(
    problem: OptimalControl, state: SolverState, goals: list[Tensor], tolerance: float
) -> tuple[SolverState, QuadraticModel]:
    """Expand the problem along the trajectory, and mark converged samples."""
    A, B, gradient, hessian, end_gradient, end_hessian = problem.expand(
        state.q, state.qd, state.u, state.multipliers, state.penalty, goals
    )
    _, (costates, descent) = repeat(
        problem.costates, (end_gradient,), (A, B, gradient), (), reverse=True
    )
    free = free_inputs(problem, state.u, descent)
    norm = torch.where(
        state.converged, state.gradient, (free * descent).square().sum(-1).sum(0).sqrt()
    )
    closed = (state.gap.abs() <= tolerance).all(-1).all(0)
    feasible = complementarity(problem, state.values, state.multipliers, state.penalty) <= tolerance
    costates = select_samples(state.converged, state.costates, costates)
    converged = state.converged | ((norm <= tolerance) & closed & feasible)
    state = state._replace(gradient=norm, converged=converged, costates=costates)
    low, high = _step_bounds(problem, state.u)
    model = QuadraticModel(
        A, B, gradient, hessian, end_gradient, end_hessian, costates, descent, free, low, high,
        state.gap,
    )  # fmt: skip
    return state, model


def iterate(
    problem: OptimalControl,
    state: SolverState,
    goals: list[Tensor],
    tolerance: float,
    exact: bool,
    stop_early: bool,
) -> SolverState:
    """One iteration of the samples that have not converged.

    With bounds there are two plans. The bounded plan respects them in the backward pass; near the solution it
    alone converges where inputs stay at bounds. The unbounded plan is clamped in the forward pass. Far from
    the solution its feedback, which the bounded plan lacks at active bounds, often descends further. The step
    of lower cost is taken. Samples whose plan touches no bound have one plan only.
    """
    state, model = evaluate(problem, state, goals, tolerance)
    state, updated = update_multipliers(problem, state, tolerance)
    active = ~(state.converged | updated)
    full = _add_curvature(problem, state, model, goals) if exact else model
    plan, convexified = _solve_model(problem, state, model, full, goals, stop_early)
    after, accepted = _line_search(problem, state, goals, plan, active, stop_early)
    if problem.bounds is not None:
        selected = (convexified | _touches_bounds(model, plan)) & active
        other, other_accepted, other_convexified = _unbounded_step(
            problem, state, model, full, goals, selected, stop_early
        )
        better = other_accepted & ~(accepted & (after.cost <= other.cost))
        after = SolverState(
            *(select_samples(better, x, y) for x, y in zip(other, after, strict=True))
        )
        accepted = accepted | other_accepted
        convexified = torch.where(better, other_convexified, convexified)
    return _update_regularization(after, accepted, convexified, plan.size, active, exact)


def _touches_bounds(model: QuadraticModel, plan: FeedbackPlan) -> Tensor:
    """Samples with an input at a bound, or planned to reach one."""
    at_bound = (model.low >= 0) | (model.high <= 0)
    return (at_bound | (plan.k <= model.low) | (plan.k >= model.high)).any(-1).any(0)


def _unbounded_step(
    problem: OptimalControl,
    state: SolverState,
    model: QuadraticModel,
    full: QuadraticModel,
    goals: list[Tensor],
    selected: Tensor,
    stop_early: bool,
) -> tuple[SolverState, Tensor, Tensor]:
    """The step of the plan without bounds in the selected samples; whether it is accepted and convexified.

    With `stop_early` the other samples are left out of the computation.
    """
    rows, batch = None, state
    if stop_early and not bool(selected.any()):
        return state, torch.zeros_like(selected), selected
    if stop_early and not problem.is_batched:  # a batched mechanism cannot be indexed
        rows = selected.nonzero()[:, 0]
        state, goals = state.select(rows), [x.index_select(1, rows) for x in goals]
        same = full is model
        model = model.select(rows)
        full = model if same else full.select(rows)
    gauss_newton = _without_bounds(model)
    newton = gauss_newton if full is model else _without_bounds(full)
    plan, convexified = _solve_model(problem, state, gauss_newton, newton, goals, stop_early)
    active = selected if rows is None else selected[rows]
    state, accepted = _line_search(problem, state, goals, plan, active, stop_early)
    if rows is None:
        return state, accepted, convexified
    no_sample = torch.zeros_like(selected)
    accepted, convexified = (no_sample.index_copy(0, rows, x) for x in (accepted, convexified))
    return batch.with_rows(rows, state), accepted, convexified


def _without_bounds(model: QuadraticModel) -> QuadraticModel:
    """The model in which inputs either stay at their active bound, or have none."""
    infinity, zero = torch.full_like(model.low, torch.inf), torch.zeros_like(model.low)
    low, high = (torch.where(model.free > 0, x, zero) for x in (-infinity, infinity))
    return model._replace(low=low, high=high)


def _add_curvature(
    problem: OptimalControl, state: SolverState, model: QuadraticModel, goals: list[Tensor]
) -> QuadraticModel:
    """The model with second derivatives of dynamics and residuals, weighted per sample."""
    weight = state.exact[..., None, None]
    duals = state.multipliers, state.penalty
    curvature, end = problem.curvature(state.q, state.qd, state.u, model.costates, *duals, goals)
    return model._replace(
        hessian=model.hessian + weight * curvature, end_hessian=model.end_hessian + weight * end
    )


def _solve_model(
    problem: OptimalControl,
    state: SolverState,
    model: QuadraticModel,
    full: QuadraticModel,
    goals: list[Tensor],
    stop_early: bool,
) -> tuple[FeedbackPlan, Tensor]:
    """Solution of the full model, convexified where it is not positive definite; and a mask of where."""
    plan = backward_pass(problem, full, state.mu)
    convexified = ~plan.positive_definite
    if stop_early and not bool(convexified.any()):
        return plan, convexified
    scalar = problem.are_scalar(state.q, state.qd, state.u, goals)
    if full is model and not any(scalar):  # Gauss-Newton Hessians are convex
        return plan, convexified
    return solve_convexified(problem, model, state.mu, plan, scalar, stop_early), convexified


def free_inputs(problem: OptimalControl, u: Tensor, descent: Tensor) -> Tensor:
    """0 for inputs at a bound that the negative gradient points beyond, else 1."""
    if problem.bounds is None:
        return torch.ones_like(u)
    lower, upper = problem.bounds
    active = ((u <= lower) & (descent > 0)) | ((u >= upper) & (descent < 0))
    return torch.where(active, torch.zeros_like(u), torch.ones_like(u))


def _step_bounds(problem: OptimalControl, u: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest change of the inputs; empty without bounds."""
    if problem.bounds is None:
        return u[..., :0], u[..., :0]
    return problem.bounds[0] - u, problem.bounds[1] - u


def _line_search(
    problem: OptimalControl,
    state: SolverState,
    goals: list[Tensor],
    plan: FeedbackPlan,
    active: Tensor,
    stop_early: bool,
) -> tuple[SolverState, Tensor]:
    """Backtracking line search of active samples; the new state, and whether a step was accepted."""
    k, K, slope, curvature, _, solvable = plan
    selected = solvable & active
    gap_sum, weight = state.gap.abs().sum(-1).sum(0), state.weight
    # This weight keeps half of the predicted reduction of the gaps, whatever the cost does.
    least = 2 * (slope + torch.clamp(curvature, min=0) / 2)
    least = least / torch.clamp(gap_sum, min=MIN_GAP_SUM)
    weight = torch.where(gap_sum > MIN_GAP_SUM, torch.maximum(weight, least), weight)
    penalty = weight * gap_sum
    slack = COST_ROUNDING * torch.finfo(slope.dtype).eps * (state.cost.abs() + penalty)
    accepted, alpha = torch.zeros_like(selected), torch.ones_like(slope)
    states, cost, gap = [state.q, state.qd, state.u, state.values], state.cost, state.gap
    for _ in range(MAX_HALVINGS + 1):
        searching = selected & ~accepted
        if stop_early and not bool(searching.any()):
            break
        subset = stop_early and not problem.is_batched  # a batched mechanism cannot be indexed
        rows = searching.nonzero()[:, 0] if subset else None
        *after, cost_after = rollout_policy(problem, state, k, K, alpha, goals, rows)
        predicted = alpha * slope + alpha * alpha / 2 * curvature - alpha * penalty
        # Comparisons with non-finite costs are false.
        lower = cost_after - alpha * penalty <= state.cost + ARMIJO * predicted + slack
        accepted_now = searching & lower
        states = [
            torch.where(accepted_now[..., None], x, y) for x, y in zip(after, states, strict=True)
        ]
        cost, accepted = torch.where(accepted_now, cost_after, cost), accepted | accepted_now
        gap = torch.where(accepted_now[..., None], (1 - alpha[..., None]) * state.gap, gap)
        alpha = alpha / 2
    q, qd, u, values = states
    # The feedback is also valid about an unchanged trajectory, so an optimal start has gains.
    K = torch.where(solvable[..., None, None], K, state.K)
    changes = {"q": q, "qd": qd, "u": u, "K": K, "values": values}
    return state._replace(**changes, cost=cost, gap=gap, weight=weight), accepted


def _update_regularization(
    state: SolverState,
    accepted: Tensor,
    convexified: Tensor,
    size: Tensor,
    active: Tensor,
    exact: bool,
) -> SolverState:
    """Regularization, and weight of second derivatives, for the next iteration."""
    failed, mu = active & ~accepted, state.mu
    raised = torch.maximum(HIGHER * mu, MIN_REGULARIZATION * size)
    lowered = torch.where(mu > 2 * MIN_REGULARIZATION * size, LOWER * mu, torch.zeros_like(mu))
    mu = torch.where(accepted, lowered, mu)
    if not exact:
        mu = torch.where(failed, raised, mu)
        weight = state.exact
    else:
        mu = torch.where(failed & (convexified | (state.exact == 0)), raised, mu)
        nonzero = state.exact > MIN_CURVATURE_WEIGHT
        less = torch.where(nonzero, state.exact / 4, torch.zeros_like(mu))
        more = torch.clamp(4 * state.exact, MIN_CURVATURE_WEIGHT, 1)
        weight = torch.where(accepted & ~convexified, more, less)
        weight = torch.where(active, weight, state.exact)
    iterations = state.iterations + (~state.converged).to(state.iterations.dtype)
    return state._replace(mu=mu, exact=weight, iterations=iterations)
