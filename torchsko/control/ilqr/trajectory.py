"""State of the solver, and forward passes under a feedback policy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.ilqr.problem import OptimalControl
from torchsko.mechanism.configuration import add_step


class SolverState(NamedTuple):
    """Current trajectories of all samples, time first; see `torchsko.control.ILQRResult`.

    `gap` is `[steps, *batch, 2 num_dof]` in multiple shooting, otherwise `[steps, *batch, 0]`. `mu` is the
    regularization, `exact` the weight of second derivatives, and `weight` that of gaps in the merit function.
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

    @property
    def shooting(self) -> bool:
        """True if states are variables, as in multiple shooting."""
        return self.gap.shape[-1] > 0

    def select(self, rows: Tensor) -> SolverState:
        """The samples `rows` of a flat batch."""
        return SolverState(
            *(x.index_select(k, rows) for k, x in zip(_BATCH_DIMS, self, strict=True))
        )

    def with_rows(self, rows: Tensor, part: SolverState) -> SolverState:
        """A copy with other trajectories in the samples `rows` of a flat batch."""
        pairs = zip(_BATCH_DIMS, self, part, strict=True)
        return SolverState(*(x.index_copy(k, rows, y) for k, x, y in pairs))


_BATCH_DIMS = (1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0)
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
    """Forward pass under u + alpha k + K x: trajectory, inputs and cost. Gaps shrink to 1 - alpha.

    With `rows` only these samples of a flat batch move; the others keep their trajectories.
    """
    if rows is not None and len(rows) < len(alpha):
        k, K, *goals = (x.index_select(1, rows) for x in (k, K, *goals))
        part = rollout_policy(problem, state.select(rows), k, K, alpha[rows], goals)
        pairs = zip((1, 1, 1, 0), (state.q, state.qd, state.u, state.cost), part, strict=True)
        return tuple(x.index_copy(d, rows, y) for d, x, y in pairs)
    q, qd, gap_factor, us, costs = state.q[0], state.qd[0], 1 - alpha[..., None], [], []
    qs, qds = [q], [qd]
    for t in range(len(state.u)):
        bar = state.q[t], state.qd[t], state.u[t]
        goals_now = (x[t] for x in goals)
        q, qd, u, cost = problem.feedback_step(q, qd, *bar, k[t], K[t], alpha, *goals_now)
        if state.shooting:
            position_gap, velocity_gap = (gap_factor * state.gap[t]).tensor_split(2, -1)
            q, qd = add_step(problem.mech, q, position_gap), qd + velocity_gap
        for series, x in zip((qs, qds, us, costs), (q, qd, u, cost), strict=True):
            series.append(x)
    total = torch.stack(costs).sum(0) + problem.cost_final(q, qd, *(x[-1] for x in goals))
    return torch.stack(qs), torch.stack(qds), torch.stack(us), total
