"""State of the solver, and forward passes under a feedback policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.ilqr.problem import OptimalControl, Segment
from torchsko.control.ilqr.repeat import repeat
from torchsko.mechanism.configuration import subtract


class SolverState(NamedTuple):
    """Current trajectories of all samples, time first; see `torchsko.control.ILQRResult`.

    `gap` is `[steps, *batch, 2 num_dof]`, zero in single shooting. `mu` is the regularization, `exact` the
    weight of second derivatives, and `weight` that of gaps in the merit function. `values` and `multipliers`
    of inequalities are `[steps, *batch, rows]`; `penalty`, the last `violation` and the gradient `inner` at
    which multipliers are updated are `[*batch]`. The cost contains the penalties of inequalities. The
    costates after each step, `[steps, *batch, 2 num_dof]`, are those of the last evaluation.
    """

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
    gap: Tensor
    weight: Tensor
    values: Tensor
    multipliers: Tensor
    penalty: Tensor
    violation: Tensor
    inner: Tensor
    costates: Tensor

    def select(self, rows: Tensor) -> SolverState:
        """The samples `rows` of a flat batch."""
        return SolverState(
            *(x.index_select(k, rows) for k, x in zip(_BATCH_DIMS, self, strict=True))
        )

    def with_rows(self, rows: Tensor, part: SolverState) -> SolverState:
        """A copy with other trajectories in the samples `rows` of a flat batch."""
        pairs = zip(_BATCH_DIMS, self, part, strict=True)
        return SolverState(*(x.index_copy(k, rows, y) for k, x, y in pairs))


_BATCH_DIMS = (1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1)
"""Batch dimension of each field of a flat batch."""


def rollout_policy(
    problem: OptimalControl,
    state: SolverState,
    k: Tensor,
    K: Tensor,
    alpha: Tensor,
    goals: list[Tensor],
    rows: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Forward pass under u + alpha k + K x: trajectory, inputs, values and cost. Gaps shrink to 1 - alpha.

    With `rows` only these samples of a flat batch move; the others keep their trajectories.
    """
    if rows is not None and len(rows) < len(alpha):
        k, K, *goals = (x.index_select(1, rows) for x in (k, K, *goals))
        part = rollout_policy(problem, state.select(rows), k, K, alpha[rows], goals)
        before = state.q, state.qd, state.u, state.values, state.cost
        pairs = zip((1, 1, 1, 1, 0), before, part, strict=True)
        return tuple(x.index_copy(d, rows, y) for d, x, y in pairs)
    q, qd, parts, total = state.q[0], state.qd[0], [], torch.zeros_like(state.cost)
    for segment in problem.segments:
        span = segment.rows
        series = state.q[span], state.qd[span], state.u[span], k[span], K[span], state.gap[span]
        count = len(problem.goals)
        constant, timed = [x[0] for x in goals[:count]], [x[span] for x in goals[count:]]
        (q, qd), part = repeat(segment.step, (q, qd), (*series, *timed), (alpha, *constant))
        parts.append((*part[:3], _padded(problem, part[3:])))
        total = total + part[3].sum(0) + final_cost(segment, q, qd, goals)
    qs, qds, us, values = (torch.cat(x) for x in zip(*parts, strict=True))
    total = total + penalty_cost(problem, values, state.multipliers, state.penalty)
    return torch.cat([state.q[:1], qs]), torch.cat([state.qd[:1], qds]), us, values, total


def _padded(problem: OptimalControl, found: Sequence[Tensor]) -> Tensor:
    """Values of inequalities of a segment from its costs and values, with zeros for missing rows."""
    values = found[1] if len(found) > 1 else found[0][..., None][..., :0]
    return torch.nn.functional.pad(values, (0, problem.num_rows - values.shape[-1]))


def next_multipliers(
    problem: OptimalControl, values: Tensor, multipliers: Tensor, penalty: Tensor
) -> Tensor:
    """The estimate y of multipliers; see `torchsko.control.ilqr.inequalities`."""
    return problem.project(multipliers - penalty[..., None] * values)


def penalty_cost(
    problem: OptimalControl, values: Tensor, multipliers: Tensor, penalty: Tensor
) -> Tensor:
    """Cost of inequalities in the augmented Lagrangian, `[*batch]`."""
    if not problem.num_rows:
        return torch.zeros_like(penalty)
    y = next_multipliers(problem, values, multipliers, penalty)
    return (y.square() - multipliers.square()).sum(-1).sum(0) / (2 * penalty)


def final_cost(segment: Segment, q: Tensor, qd: Tensor, goals: Sequence[Tensor]) -> Tensor:
    """The final cost at the end of a segment, or zero, `[*batch]`."""
    if not segment.has_final:
        return torch.zeros_like(qd[..., 0])
    return segment.cost_final(q, qd, *(x[segment.stop] for x in goals))


def compute_gaps(
    problem: OptimalControl, state: SolverState, goals: list[Tensor]
) -> tuple[Tensor, ...]:
    """Gaps between the end of each step and the next state, inputs within bounds, values, and the cost."""
    count, parts, total = len(problem.goals), [], torch.zeros_like(state.cost)
    for segment in problem.segments:
        rows, after = segment.rows, slice(segment.start + 1, segment.stop + 1)
        q, qd, u, K, gap = (x[rows] for x in (state.q, state.qd, state.u, state.K, state.gap))
        none, extra = torch.zeros_like(u), [x[rows] for x in goals]
        end, rate, _, _, u, *costs = segment.step(
            q, qd, q, qd, u, none, K, gap, *extra[count:], none[..., 0], *extra[:count]
        )
        q_after, qd_after = state.q[after], state.qd[after]
        gap = torch.cat([subtract(problem.mech, end, q_after), qd_after - rate], -1)
        parts.append((gap, u, _padded(problem, costs)))
        total = total + costs[0].sum(0) + final_cost(segment, q_after[-1], qd_after[-1], goals)
    gap, u, values = (torch.cat(x) for x in zip(*parts, strict=True))
    total = total + penalty_cost(problem, values, state.multipliers, state.penalty)
    return gap, u, values, total
