"""Motions that a solver has under way, some of their samples, and what follows from a plan."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.ilqr.problem import OptimalControl
from torchsko.mechanism.joints.configuration import add_step


class SolverState(NamedTuple):
    """Samples under way, time in front where there is one; see `torchsko.control.Optimized`.

    Gaps are `[steps, *batch, 2 num_dof]` where states were given, otherwise `[steps, *batch, 0]`.
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
        """Whether states were given."""
        return self.gap.shape[-1] > 0

    def of(self, rows: Tensor) -> SolverState:
        """Some of the samples of a flat batch, by their numbers."""
        return SolverState(*(x.index_select(k, rows) for k, x in zip(_BATCH, self, strict=True)))

    def with_rows(self, rows: Tensor, part: SolverState) -> SolverState:
        """This one, with other motions in some samples of a flat batch."""
        pairs = zip(_BATCH, self, part, strict=True)
        return SolverState(*(x.index_copy(k, rows, y) for k, x, y in pairs))


_BATCH = (1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0)
"""Where the batch dimension of each part of a flat motion is."""


def rollout_policy(
    problem: OptimalControl,
    motion: SolverState,
    k: Tensor,
    K: Tensor,
    alpha: Tensor,
    goals: list[Tensor],
) -> tuple[Tensor, ...]:
    """Motion and cost under u + alpha k + K x, with what is left of the gaps."""
    q, qd, left, us, costs = motion.q[0], motion.qd[0], 1 - alpha[..., None], [], []
    qs, qds = [q], [qd]
    for t in range(len(motion.u)):
        bar = motion.q[t], motion.qd[t], motion.u[t]
        here = (x[t] for x in goals)
        q, qd, u, cost = problem.feedback_step(q, qd, *bar, k[t], K[t], alpha, *here)
        if motion.shooting:
            turn, speed = (left * motion.gap[t]).tensor_split(2, -1)
            q, qd = add_step(problem.mech, q, turn), qd + speed
        for found, x in zip((qs, qds, us, costs), (q, qd, u, cost), strict=True):
            found.append(x)
    total = torch.stack(costs).sum(0) + problem.cost_final(q, qd, *(x[-1] for x in goals))
    return torch.stack(qs), torch.stack(qds), torch.stack(us), total


def rollout_step_sizes(
    problem: OptimalControl,
    motion: SolverState,
    k: Tensor,
    K: Tensor,
    alpha: Tensor,
    goals: list[Tensor],
    rows: Tensor | None,
) -> tuple[Tensor, ...]:
    """`rollout_policy` of the samples `rows` of a flat batch, others unchanged; None: all."""
    if rows is None or len(rows) == len(alpha):
        return rollout_policy(problem, motion, k, K, alpha, goals)
    k, K, *goals = (x.index_select(1, rows) for x in (k, K, *goals))
    part = rollout_policy(problem, motion.of(rows), k, K, alpha[rows], goals)
    whole = motion.q, motion.qd, motion.u, motion.cost
    return tuple(
        x.index_copy(d, rows, y) for d, x, y in zip((1, 1, 1, 0), whole, part, strict=True)
    )
