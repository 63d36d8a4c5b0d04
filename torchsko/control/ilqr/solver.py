r"""Optimal control of batches of motions: iterative LQR, and Newton's method.

Each iteration expands steps and costs along the motion (`torchsko.control.ilqr.problem`), solves the
linear-quadratic problem that they make, and follows its feedback on the robot itself, under

.. math:: u_t + \alpha k_t + K_t x_t,

with the first alpha of 1, 1/2, 1/4, ... that lowers the cost by a share of what that problem promised. Where
the problem has no least value it is made convex (`torchsko.control.ilqr.backward_pass`). With bounds it
is solved
twice where inputs come to them, within them and without, and the motion of less cost counts
(`torchsko.control.ilqr.iteration`).
Costates

.. math:: p_t = l_x + A^* p_{t+1}, \qquad g_t = l_u + B^* p_{t+1}

give the gradient g of the cost by all inputs, exactly; its norm says when a sample has converged. Inputs at a
bound that the gradient pushes against stay there, and do not count. With `exact`, the costates weigh the
second derivatives of the steps, and iterations are Newton's; a sample whose matrix is then not positive
definite, or whose step is too long, takes them with less weight.

From inputs alone a motion is shot once, from its start to its end. States that are given besides are kept in
the first place (multiple shooting): gaps between the end of a step and the next state close by the share
alpha, so a motion that falls over before its inputs hold it may begin upright.

Every sample has its own alpha, regularisation and end. Nothing waits for the device, unless `stop_early`, or
for eigenvalues where costs are numbers.

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

from torchsko.control.ilqr.iteration import compute_gaps, evaluate, iterate
from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.start_checks import check_solver, check_start, warn_nonfinite
from torchsko.control.ilqr.trajectory import SolverState, rollout_policy


class ILQRResult(NamedTuple):
    """What iterations found.

    Attributes:
        q: configurations, `[*batch, steps + 1, num_q]`.
        qd: velocities, `[*batch, steps + 1, num_dof]`.
        u: inputs, `[*batch, steps, num_u]`.
        gains: feedback K of the last iteration, `[*batch, steps, num_u, 2 num_dof]`, zero where there was
            none; the control is u + K x, with x the difference to (q, qd) in tangent coordinates. Of a
            sample that converged while iterations were left, they are those of the motion found.
        cost: `[*batch]`.
        gradient: its norm by all inputs, those held by a bound left out, `[*batch]`.
        converged: whether that is below the tolerance, and gaps are, `[*batch]`.
        iterations: steps taken until then, int64 `[*batch]`.
        gap: the largest between a step and the next state, `[*batch]`; zero unless states were given.
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
    """Motions of least cost, each from its own start: the nearest way down from the inputs given.

    A sample whose motion, cost or gradient is not finite goes no further, and a warning names it; the
    others know nothing of it. Results carry no derivatives. What has converged is stationary, no
    more: a start where the gradient vanishes stays as it is, be it the worst (a pendulum that hangs still,
    under no forces, in a swing-up).
    Begin with inputs that are not so symmetric then, such as small random ones. With dry friction give the
    problem a creep, without which iterations are many.

    Args:
        problem: of `torchsko.control.optimal_control`.
        q: configurations at the start, `[*batch, num_q]`.
        qd: velocities there, `[*batch, num_dof]` [rad/s or m/s].
        u: inputs to begin with, `[*batch, steps, num_u]` [N m or N]; beyond a bound they begin at it.
        *goals: as the problem names them, `[*batch, *shape]`; after them its series,
            `[*batch, steps + 1, *shape]`, which a later plan shifts as it does the states.
        states: configurations `[*batch, steps + 1, num_q]` and velocities `[*batch, steps + 1, num_dof]` to
            begin with, that need not follow from the inputs. Their first rows count for nothing: the motion
            begins at q and qd. None: those of the inputs.
        exact: second derivatives of steps and residuals count, too: Newton's method.
        tolerance: norm of the gradient at which a sample has converged, in the units of the cost per unit
            of input. It is no share of anything: for costs far from one choose it by their size.
        max_iterations: their largest number.
        stop_early: end when all samples have converged, or go no further, and leave out those where all
            share one mechanism; the host then waits for the device. False: every sample takes all
            iterations, each with all halvings of alpha; those not wanted change nothing.

    Returns:
        See `ILQRResult`.

    Raises:
        ShapeError: when a tensor does not fit, or a cost gives neither `[*batch]` nor `[*batch, r]`.
        NonFiniteError: on NaN in a start, inputs or states on a CPU.
        TorchskoError: on numbers out of range, or something that is no problem.
    """
    check_solver(tolerance, max_iterations, exact, stop_early)
    batch, shapes, tensors = check_start(problem, q, qd, u, goals, states)
    with torch.no_grad():
        flat = not problem.mech.batch_shape  # otherwise samples stay with their robots
        laid = [_flatten_batch(x, batch, len(shapes[k]), flat) for k, x in tensors.items()]
        count = len(tensors) - len(goals)
        found = [*laid[:2], *(x.movedim(-2, 0) for x in laid[2:count])]
        held, steps = len(problem.goals), len(found[2])
        targets = [x.expand(steps + 1, *x.shape) for x in laid[count : count + held]]
        ranks = map(len, problem.series.values())
        targets += [
            x.movedim(x.ndim - 1 - r, 0) for x, r in zip(laid[count + held :], ranks, strict=True)
        ]
        motion = _start(problem, found[0], found[1], found[2], targets, exact, found[3:])
        motion = _iterate(problem, motion, targets, tolerance, max_iterations, exact, stop_early)
        gap = torch.nn.functional.pad(motion.gap, (0, 1)).abs().amax(-1).amax(0)
    q, qd, u, K = (
        x.movedim(0, len(x.shape) - 1 - r) for x, r in zip(motion[:4], (1, 1, 1, 2), strict=True)
    )
    marks = motion.cost, motion.gradient, motion.converged, motion.iterations, gap
    found = ILQRResult(*(_restore_batch(x, batch, flat) for x in (q, qd, u, K, *marks)))
    warn_nonfinite(problem, found.q, found.qd, found.cost, found.gradient)
    return found


def _flatten_batch(x: Tensor, batch: torch.Size, rank: int, flat: bool) -> Tensor:
    shape = x.shape[x.ndim - rank :]
    x = x.expand((*batch, *shape))  # of no dimensions, too
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
    states: list[Tensor],
) -> SolverState:
    """The motion of the inputs given, or the states given with their gaps."""
    K = u.new_zeros(*u.shape, 2 * problem.mech.num_dof)
    zero = torch.zeros_like(q[..., 0])
    weight = torch.full_like(zero, float(exact))
    none = torch.zeros_like(zero, dtype=torch.bool)
    count = torch.zeros_like(zero, dtype=torch.int64)
    qs, qds = (x.expand(len(u) + 1, *x.shape) for x in (q, qd))
    if states:
        qs, qds = (torch.cat([x[None], y[1:]]) for x, y in zip((q, qd), states, strict=True))
    motion = SolverState(qs, qds, u, K, zero, zero, zero, weight, none, count, u[..., :0], zero)
    if states:
        gap, u, cost = compute_gaps(problem, motion, goals)
        return motion._replace(gap=gap, u=u, cost=cost)
    q, qd, u, cost = rollout_policy(problem, motion, torch.zeros_like(u), K, zero, goals)
    return motion._replace(q=q, qd=qd, u=u, cost=cost)


def _iterate(
    problem: OptimalControl,
    motion: SolverState,
    goals: list[Tensor],
    tolerance: float,
    max_iterations: int,
    exact: bool,
    stop_early: bool,
) -> SolverState:
    """Iterations, of what has neither converged nor left the numbers where that may be looked at."""
    whole, part, rows = motion, motion, None
    for _ in range(max_iterations):
        part = iterate(problem, part, goals, tolerance, exact, stop_early)
        if not stop_early:
            continue
        going = _active(part)
        if problem.mech.batch_shape:  # samples stay with their robots
            if not bool(going.any()):
                return part
            continue
        left = going.nonzero()[:, 0]
        if 2 * len(left) > len(part.cost):
            continue
        whole, rows = _merge(whole, part, rows), left if rows is None else rows[left]
        if not len(left):
            return whole
        part = part.of(left)
        goals = [x.index_select(1, left) for x in goals]
    part, *_ = evaluate(problem, part, goals, tolerance)
    return _merge(whole, part, rows)


def _active(motion: SolverState) -> Tensor:
    """Samples that an iteration may still change: those of no number as cost or gradient never do."""
    return ~(motion.converged | motion.cost.isnan() | ~motion.gradient.isfinite())


def _merge(whole: SolverState, part: SolverState, rows: Tensor | None) -> SolverState:
    return part if rows is None else whole.with_rows(rows, part)
