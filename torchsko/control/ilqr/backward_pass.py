"""Backward pass: solution of the linear-quadratic problem along a trajectory, and its predicted cost change.

Where the matrix of the inputs is not positive definite, the problem is unbounded. It is then solved again
within the same iteration with a convex model: second derivatives of the dynamics are dropped, and Hessians of
scalar costs keep their eigenvectors but take the absolute values of their eigenvalues. A step in a direction
of negative curvature then descends, with a length by the size of the curvature.

Reference: Y. Dauphin et al., *Identifying and attacking the saddle point problem in high-dimensional
non-convex optimization*, NeurIPS 2014 (absolute values).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.repeat import repeat


class QuadraticModel(NamedTuple):
    """Expansions along a trajectory, time first; see `torchsko.control.ilqr.expansion.PhaseFunctions`.

    `gap` is `[steps, *batch, 2 num_dof]`, zero in single shooting. `low` and `high`, the bounds of the change
    of the inputs, are `[steps, *batch, num_u]`, or `[steps, *batch, 0]` without bounds. `descent` is the
    gradient of the cost with respect to the inputs, and `free` 0 for inputs at an active bound, else 1.
    """

    A: Tensor
    B: Tensor
    gradient: Tensor
    hessian: Tensor
    end_gradient: Tensor
    end_hessian: Tensor
    costates: Tensor
    descent: Tensor
    free: Tensor
    low: Tensor
    high: Tensor
    gap: Tensor

    def select(self, rows: Tensor) -> QuadraticModel:
        """The model of the samples `rows` of a flat batch."""
        return QuadraticModel(
            *(x.index_select(k, rows) for k, x in zip(_MODEL_BATCH_DIMS, self, strict=True))
        )


class FeedbackPlan(NamedTuple):
    """Solution of a `QuadraticModel`: a feedback policy, and its predicted cost change.

    Attributes:
        k: change of the inputs, `[steps, *batch, num_u]`.
        K: feedback, `[steps, *batch, num_u, 2 num_dof]`.
        slope: predicted change of the cost, first order in alpha, `[*batch]`.
        curvature: of the cost with respect to alpha, `[*batch]`.
        size: largest mean diagonal of Q_uu over the steps, `[*batch]`.
        positive_definite: whether all Q_uu are positive definite, `[*batch]`.
    """

    k: Tensor
    K: Tensor
    slope: Tensor
    curvature: Tensor
    size: Tensor
    positive_definite: Tensor


def backward_pass(problem: OptimalControl, model: QuadraticModel, mu: Tensor) -> FeedbackPlan:
    """Solve the model with a regularization `[*batch]`.

    The first-order change of the cost is that of the linear model, in which gaps close.
    """
    bounds = () if problem.bounds is None else (model.low, model.high)
    _, (k, K, slope, full_step, size, positive_definite) = repeat(
        problem.backward,
        (model.end_hessian, model.end_gradient, torch.zeros_like(model.end_gradient)),
        (
            model.A, model.B, model.gradient, model.hessian, model.gap, model.costates,
            model.descent, *bounds,
        ),
        (mu,),
        reverse=True,
    )  # fmt: skip
    slope = slope.sum(0)
    curvature = 2 * (full_step.sum(0) - slope)
    return FeedbackPlan(k, K, slope, curvature, size.amax(0), positive_definite.amin(0) > 0)


def solve_convexified(
    problem: OptimalControl,
    model: QuadraticModel,
    mu: Tensor,
    plan: FeedbackPlan,
    scalar_costs: tuple[bool, bool],
    subset: bool,
) -> FeedbackPlan:
    """Replace the plan by that of a convex model in samples where it is not positive definite.

    Args:
        problem: the problem.
        model: the Gauss-Newton model.
        mu: regularization, `[*batch]`.
        plan: solution of the model with second derivatives.
        scalar_costs: whether the running and the final cost are scalar; Gauss-Newton Hessians of residuals
            are never negative.
        subset: compute only the samples concerned; the host then waits for the device.
    """
    rows = None
    if subset and not problem.is_batched:  # a batched mechanism cannot be indexed
        rows = (~plan.positive_definite).nonzero()[:, 0]
        model, mu = model.select(rows), mu[rows]
    running, final = scalar_costs
    hessian = _absolute_eigenvalues(model.hessian) if running else model.hessian
    end_hessian = _absolute_eigenvalues(model.end_hessian) if final else model.end_hessian
    convex = backward_pass(problem, model._replace(hessian=hessian, end_hessian=end_hessian), mu)
    if rows is not None:
        pairs = zip(_PLAN_BATCH_DIMS, plan, convex, strict=True)
        return FeedbackPlan(*(x.index_copy(k, rows, y) for k, x, y in pairs))
    return FeedbackPlan(
        *(select_samples(plan.positive_definite, x, y) for x, y in zip(plan, convex, strict=True))
    )


_MODEL_BATCH_DIMS = (1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1)
_PLAN_BATCH_DIMS = (1, 1, 0, 0, 0, 0)
"""Batch dimension of each field of a flat batch."""


def _absolute_eigenvalues(H: Tensor) -> Tensor:
    """Symmetric matrices with the absolute values of their eigenvalues."""
    finite = H.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    values, vectors = torch.linalg.eigh(torch.where(finite, H, torch.zeros_like(H)))
    return torch.where(finite, (vectors * values.abs()[..., None, :]) @ vectors.mT, H)


def select_samples(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Select x in samples where the mask `[*batch]` is true, else y; time first, or one number per sample."""
    rest = x.ndim - mask.ndim - (x.ndim > mask.ndim)
    return torch.where(mask.reshape(*mask.shape, *[1] * rest), x, y)
