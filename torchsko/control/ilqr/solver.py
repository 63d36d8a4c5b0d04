r"""Optimal control of batches of trajectories: iterative LQR, and Newton's method.

Each iteration expands dynamics and costs along the trajectory (`torchsko.control.ilqr.problem`), solves the
resulting linear-quadratic problem, and rolls out its feedback policy

.. math:: u_t + \alpha k_t + K_t x_t

with the first alpha of 1, 1/2, 1/4, ... that lowers the cost by a fraction of the prediction. Where the
linear-quadratic problem is unbounded it is made convex (`torchsko.control.ilqr.backward_pass`). Where inputs
reach their bounds it is solved with and without bounds, and the trajectory of lower cost is taken
(`torchsko.control.ilqr.iteration`). The costates

.. math:: p_t = l_x + A^* p_{t+1}, \qquad g_t = l_u + B^* p_{t+1}

give the exact gradient g of the cost with respect to all inputs. Its norm decides on convergence. Inputs at
an active bound are fixed and do not count. With `exact`, the costates weight second derivatives of the
dynamics, and iterations are Newton's. Their weight is reduced in samples whose matrix is not positive
definite, or whose step fails.

Single shooting starts from inputs alone. With given states (multiple shooting), gaps between the end of a
step and the next state close by the fraction alpha per iteration. A robot that would fall over before its
inputs are found can so start upright.

Every sample has its own alpha, regularization and end. The host does not wait for the device except with
`stop_early`, and for eigenvalues of scalar costs.

Reference: W. Li, E. Todorov, *Iterative linear quadratic regulator design for nonlinear biological movement
systems*, ICINCO 2004; J. Pantoja, *Differential dynamic programming and Newton's method*, International
Journal of Control 47(5), 1988 (exact); Y. Tassa, N. Mansard, E. Todorov, *Control-limited differential
dynamic programming*, ICRA 2014 (bounds); M. Giftthaler, M. Neunert, M. Stauble, J. Buchli, M. Diehl, *A
family of iterative Gauss-Newton shooting methods for nonlinear optimal control*, IROS 2018 (gaps).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.ilqr.held_starts import warn_unreached
from torchsko.control.ilqr.iteration import evaluate, iterate
from torchsko.control.ilqr.multipliers import complementarity, start_penalty
from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.start_checks import (
    check_problem,
    check_solver,
    check_start,
    guessed_states,
    warn_nonfinite,
)
from torchsko.control.ilqr.trajectory import (
    SolverState,
    compute_gaps,
    penalty_cost,
    rollout_policy,
)
from torchsko.control.ilqr.trajectory_gradient import differentiable_trajectory


class ILQRResult(NamedTuple):
    """Result of `ilqr`.

    Attributes:
        q: configurations, `[*batch, steps + 1, num_q]`.
        qd: velocities, `[*batch, steps + 1, num_dof]`.
        u: inputs, `[*batch, steps, num_u]`.
        gains: feedback K of the last iteration, `[*batch, steps, num_u, 2 num_dof]`; the control is u + K x,
            with x the deviation from (q, qd) in tangent coordinates. In a converged sample they belong to the
            returned trajectory, unless the last iteration was the maximum. Zero without iterations.
        cost: `[*batch]`.
        gradient: norm of the gradient with respect to all inputs that are not at an active bound, `[*batch]`;
            with inequalities that of the Lagrangian.
        converged: whether the gradient, the gaps and the violation are below the tolerance, `[*batch]`.
        iterations: number of iterations until convergence, int64 `[*batch]`.
        gap: largest gap between a step and the next state, `[*batch]`; zero in single shooting.
        violation: largest violation of inequalities and cones, or of the complementarity of their values and
            multipliers, `[*batch]`, in their units.
        multipliers: those of inequalities and cones of each step, `[*batch, steps, rows]`, in the order of
            their values, with zeros for phases with fewer rows. The gradient of the cost is that of the sum
            of values times multipliers.
    """

    q: Tensor
    qd: Tensor
    u: Tensor
    gains: Tensor
    cost: Tensor
    gradient: Tensor
    converged: Tensor
    iterations: Tensor
    gap: Tensor
    violation: Tensor
    multipliers: Tensor


def ilqr(
    problem: OptimalControl,
    q: Tensor,
    qd: Tensor,
    u: Tensor,
    *goals: Tensor,
    states: tuple[Tensor, Tensor] | None = None,
    exact: bool = False,
    tolerance: float = 1e-6,
    max_iterations: int = 100,
    stop_early: bool = True,
) -> ILQRResult:
    """Find locally optimal trajectories by iterative LQR, each from its own initial state and inputs.

    q, qd, u and cost have gradients with respect to the initial state, goals, series, and the parameters of
    the mechanisms of the phases, such as masses and lengths. They are those of the solution, by the implicit
    function theorem (`torchsko.control.ilqr.trajectory_gradient`), and as accurate as the solution: choose a
    small tolerance. Inequalities and bounds that are active stay so. Bounds, placements of held frames,
    contact models that are given, and tensors that costs capture count as constants; pass such tensors as
    goals. There are no second derivatives, none of gains and multipliers, and none under `torch.vmap`.

    A sample with a non-finite trajectory, cost or gradient stops with a warning and does not affect other
    samples. A converged result is a stationary point and may be a maximum: a pendulum that hangs at rest
    without input stays there in a swing-up problem. Start from less symmetric inputs then, such as small
    random ones. A warning names frames that a phase holds away from their placement. With dry friction set
    the creep of the method, see `torchsko.control.Phase`, without which iterations are many.

    Args:
        problem: of `torchsko.control.optimal_control`.
        q: initial configurations, `[*batch, num_q]`.
        qd: initial velocities, `[*batch, num_dof]` [rad/s or m/s].
        u: initial guess of the inputs of all phases, `[*batch, steps, num_u]` [N m or N]; clamped to the
            bounds.
        *goals: in the order of the problem, `[*batch, *shape]`, followed by its series,
            `[*batch, steps + 1, *shape]`.
        states: initial guess of configurations `[*batch, steps + 1, num_q]` and velocities
            `[*batch, steps + 1, num_dof]` for multiple shooting; the first rows are replaced by q and qd.
            They need not be consistent with the inputs. Default: single shooting.
        exact: include second derivatives of dynamics and residuals: Newton's method.
        tolerance: norm of the gradient at which a sample has converged, in units of cost per unit of input.
            It is absolute: choose it by the size of the costs.
        max_iterations: maximum number of iterations.
        stop_early: stop when all samples have converged or failed, and leave finished samples out of the
            computation if all share one mechanism; the host then waits for the device. False: all iterations
            and halvings of alpha run for all samples.

    Returns:
        See `ILQRResult`.

    Raises:
        ShapeError: when a tensor does not fit, or a cost returns neither `[*batch]` nor `[*batch, r]`.
        NonFiniteError: on NaN in the initial state, inputs or states on a CPU.
        TorchskoError: on an option out of range, or an invalid problem. In the backward pass, on a gradient
            of a sample that has not converged; on a GPU, which would have to wait, it is NaN instead.
        SingularError: in the backward pass, at a stationary point that is no strict minimum.

    Example:
        The gradient of the optimal cost with respect to a mass that is pushed to a target:

        >>> import torchsko as ts, torch
        >>> builder = ts.MechanismBuilder("slide").link("block", mass=1.0)
        >>> slide = builder.joint("slide", "prismatic", child="block").build(gravity=(0, 0, 0))
        >>> mass = slide.mass.clone().requires_grad_()
        >>> push = ts.control.Phase(
        ...     slide.replace(mass=mass),
        ...     10,
        ...     0.05,
        ...     lambda mech, q, qd, u: 0.1 * u,
        ...     lambda mech, q, qd: torch.cat([10 * (q - 0.5), qd], -1),
        ... )
        >>> q, u = torch.zeros(1).double(), torch.zeros(10, 1).double()
        >>> found = ts.control.ilqr(ts.control.optimal_control([push]), q, q, u)
        >>> (gradient,) = torch.autograd.grad(found.cost, mass)
        >>> bool(gradient > 0)  # a heavier block costs more
        True
    """
    check_solver(tolerance, max_iterations, exact, stop_early)
    check_problem("ilqr", problem)
    guess = guessed_states(problem, states)
    batch, shapes, tensors = check_start("ilqr", problem, (q, qd, u), goals, guess)
    flat = not problem.is_batched  # a batched mechanism cannot be indexed
    inputs = [_flatten_batch(x, batch, len(shapes[k]), flat) for k, x in tensors.items()]
    count, constant = len(tensors) - len(goals), len(problem.goals)
    q, qd, u, *guess = (*inputs[:2], *(x.movedim(-2, 0) for x in inputs[2:count]))
    targets = [x.expand(len(u) + 1, *x.shape) for x in inputs[count : count + constant]]
    ranks = map(len, problem.series.values())
    series = zip(inputs[count + constant :], ranks, strict=True)
    targets += [x.movedim(x.ndim - 1 - r, 0) for x, r in series]
    with torch.no_grad():
        state = _start(problem, q, qd, u, targets, exact, tolerance, guess)
        state = _iterate(problem, state, targets, tolerance, max_iterations, exact, stop_early)
        gap = state.gap.abs().amax(-1).amax(0)
        duals = state.values, state.multipliers, state.penalty
        cost = state.cost - penalty_cost(problem, *duals)
        violation = complementarity(problem, *duals)
    *trajectory, cost = differentiable_trajectory(problem, state, q, qd, cost, targets)
    series = zip((*trajectory, state.K, state.multipliers), (1, 1, 1, 2, 1), strict=True)
    *trajectory, multipliers = (x.movedim(0, len(x.shape) - 1 - r) for x, r in series)
    scalars = cost, state.gradient, state.converged, state.iterations, gap, violation
    found = (_restore_batch(x, batch, flat) for x in (*trajectory, *scalars, multipliers))
    result = ILQRResult(*found)
    warn_nonfinite(problem, result.q, result.qd, result.cost, result.gradient)
    warn_unreached(problem, result.q)
    return result


def _flatten_batch(x: Tensor, batch: torch.Size, rank: int, flat: bool) -> Tensor:
    shape = x.shape[x.ndim - rank :]
    x = x.expand((*batch, *shape))  # a tuple, since both may be empty
    return x.reshape(batch.numel(), *shape) if flat else x


def _restore_batch(x: Tensor, batch: torch.Size, flat: bool) -> Tensor:
    return x.reshape((*batch, *x.shape[1:])) if flat else x


def _start(
    problem: OptimalControl,
    q: Tensor,
    qd: Tensor,
    u: Tensor,
    goals: list[Tensor],
    exact: bool,
    tolerance: float,
    states: list[Tensor],
) -> SolverState:
    """The trajectory of the inputs, or in multiple shooting the given states with their gaps."""
    K = u.new_zeros(*u.shape, 2 * problem.mech.num_dof)
    zero = torch.zeros_like(q[..., 0])
    weight = torch.full_like(zero, float(exact))
    not_converged = torch.zeros_like(zero, dtype=torch.bool)
    count = torch.zeros_like(zero, dtype=torch.int64)
    qs, qds = (x.expand(len(u) + 1, *x.shape) for x in (q, qd))
    if states:
        qs, qds = (torch.cat([x[None], y[1:]]) for x, y in zip((q, qd), states, strict=True))
    no_gap = torch.cat([qds[1:], qds[1:]], -1) * 0
    values, one = u.new_zeros(*u.shape[:-1], problem.num_rows), torch.ones_like(zero)
    inner = tolerance**0.5 * one
    state = SolverState(
        qs, qds, u, K, zero, zero, zero, weight, not_converged, count, no_gap, zero, values, values,
        one, torch.inf * one, inner, no_gap,
    )  # fmt: skip
    if states:
        gap, u, values, cost = compute_gaps(problem, state, goals)
        return start_penalty(problem, state._replace(gap=gap, u=u, values=values, cost=cost))
    q, qd, u, values, cost = rollout_policy(problem, state, torch.zeros_like(u), K, zero, goals)
    return start_penalty(problem, state._replace(q=q, qd=qd, u=u, values=values, cost=cost))


def _iterate(
    problem: OptimalControl,
    state: SolverState,
    goals: list[Tensor],
    tolerance: float,
    max_iterations: int,
    exact: bool,
    stop_early: bool,
) -> SolverState:
    """Iterate the samples that have neither converged nor become non-finite."""
    batch, part, rows = state, state, None
    for _ in range(max_iterations):
        part = iterate(problem, part, goals, tolerance, exact, stop_early)
        if not stop_early:
            continue
        active = _active(part)
        if problem.is_batched:  # a batched mechanism cannot be indexed
            if not bool(active.any()):
                return part
            continue
        remaining = active.nonzero()[:, 0]
        if 2 * len(remaining) > len(part.cost):
            continue
        batch, rows = _merge(batch, part, rows), remaining if rows is None else rows[remaining]
        if not len(remaining):
            return batch
        part = part.select(remaining)
        goals = [x.index_select(1, remaining) for x in goals]
    part, *_ = evaluate(problem, part, goals, tolerance)
    return _merge(batch, part, rows)


def _active(state: SolverState) -> Tensor:
    """Samples that an iteration may still change; those with a non-finite cost or gradient stay."""
    return ~(state.converged | state.cost.isnan() | ~state.gradient.isfinite())


def _merge(batch: SolverState, part: SolverState, rows: Tensor | None) -> SolverState:
    return part if rows is None else batch.with_rows(rows, part)
