"""Multipliers and penalties of inequalities; see `torchsko.control.ilqr.inequalities`.

Each sample updates its multipliers when its gradient is small enough for them. The penalty grows where the
violation did not shrink to a quarter since the last update.

Reference: E. Birgin, J. Martinez, *Practical augmented Lagrangian methods for constrained optimization*, SIAM
2014, Algorithm 4.1 and section 12.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.trajectory import SolverState, next_multipliers, penalty_cost

MIN_PENALTY, MAX_PENALTY = 1e-6, 10.0
"""Bounds of the first penalty, in units of cost per square of a value."""

PENALTY_FACTOR, MIN_REDUCTION = 10.0, 0.25
"""Factor of the penalty where the violation exceeds this fraction of the one before."""

INNER_FACTOR = 0.1
"""Factor of the gradient at which multipliers are updated, after each update."""


def start_penalty(problem: OptimalControl, state: SolverState) -> SolverState:
    """The state with the first penalty of each sample, at which cost and violation are comparable."""
    if not problem.num_rows:
        return state
    missing = problem.project(-state.values).square().sum(-1).sum(0)
    cost = state.cost - penalty_cost(problem, state.values, state.multipliers, state.penalty)
    penalty = 2 * cost.abs() / torch.where(missing > 0, missing, torch.ones_like(missing))
    penalty = torch.clamp(penalty, MIN_PENALTY, MAX_PENALTY)
    penalized = cost + penalty_cost(problem, state.values, state.multipliers, penalty)
    return state._replace(penalty=penalty, cost=penalized)


def complementarity(
    problem: OptimalControl, values: Tensor, multipliers: Tensor, penalty: Tensor
) -> Tensor:
    """Largest violation of inequalities or of their complementarity, `[*batch]`."""
    if not problem.num_rows:
        return torch.zeros_like(penalty)
    y = next_multipliers(problem, values, multipliers, penalty)
    return (y - multipliers).abs().amax(-1).amax(0) / penalty


def update_multipliers(
    problem: OptimalControl, state: SolverState, tolerance: float
) -> tuple[SolverState, Tensor]:
    """The state with new multipliers in samples whose gradient is small enough, and a mask of them."""
    if not problem.num_rows:
        return state, torch.zeros_like(state.converged)
    closed = (state.gap.abs() <= tolerance).all(-1).all(0)
    updated = (state.gradient <= state.inner) & closed & ~state.converged
    old = state.values, state.multipliers, state.penalty
    violation = complementarity(problem, *old)
    y = next_multipliers(problem, *old)
    multipliers = torch.where(updated[..., None], y, state.multipliers)
    grows = updated & (violation > MIN_REDUCTION * state.violation)
    penalty = torch.where(grows, PENALTY_FACTOR * state.penalty, state.penalty)
    new = penalty_cost(problem, state.values, multipliers, penalty)
    cost = torch.where(updated, state.cost - penalty_cost(problem, *old) + new, state.cost)
    inner = torch.clamp(INNER_FACTOR * state.inner, min=tolerance)
    state = state._replace(
        multipliers=multipliers,
        penalty=penalty,
        cost=cost,
        violation=torch.where(updated, violation, state.violation),
        inner=torch.where(updated, inner, state.inner),
    )
    return state, updated
