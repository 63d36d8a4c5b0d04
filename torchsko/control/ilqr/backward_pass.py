r"""The linear-quadratic problem along a motion, solved backwards in time; what its solution promises.

Where the matrix of the inputs is not positive definite the problem has no least value. It is solved once more
then, within the same iteration: second derivatives of steps are left out, and Hessians of costs that are
numbers keep their eigenvectors but take the absolute values of their eigenvalues. Where the cost bends
downwards a step so goes down the slope, as far as the bend is strong, instead of up to its top.

Reference: Y. Dauphin et al., *Identifying and attacking the saddle point problem in high-dimensional
non-convex optimization*, NeurIPS 2014 (absolute values).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.ilqr.problem import OptimalControl
from torchsko.utils.shapes import matvec


class QuadraticModel(NamedTuple):
    """Expansions along a motion, time in front; see `torchsko.control.ilqr.expansion.ProblemFunctions`.

    Gaps are `[steps, *batch, 2 num_dof]` where states were given, otherwise `[steps, *batch, 0]`; the least
    and the largest change of the inputs `[steps, *batch, num_u]` where they have bounds, otherwise likewise.
    """

    A: Tensor
    B: Tensor
    gradient: Tensor
    hessian: Tensor
    end_gradient: Tensor
    end_hessian: Tensor
    costates: Tensor
    free: Tensor
    low: Tensor
    high: Tensor
    gap: Tensor

    def of(self, rows: Tensor) -> QuadraticModel:
        """That of some of the samples of a flat batch, by their numbers."""
        return QuadraticModel(
            *(x.index_select(k, rows) for k, x in zip(_OF_MODEL, self, strict=True))
        )


class FeedbackPlan(NamedTuple):
    """What solves a model.

    Attributes:
        k: change of the inputs, `[steps, *batch, num_u]`.
        K: feedback, `[steps, *batch, num_u, 2 num_dof]`.
        slope: what the cost changes by at first, per alpha, `[*batch]`.
        curvature: of the cost by alpha, `[*batch]`.
        size: the largest mean of the diagonal of a step's Q_uu, `[*batch]`.
        good: whether all of these are positive definite, `[*batch]`.
    """

    k: Tensor
    K: Tensor
    slope: Tensor
    curvature: Tensor
    size: Tensor
    good: Tensor


def backward_pass(problem: OptimalControl, model: QuadraticModel, mu: Tensor) -> FeedbackPlan:
    """The plan that a model has, under a regularisation `[*batch]`."""
    carry, found, left = [model.end_hessian, model.end_gradient], [], mu * 0
    shooting = model.gap.shape[-1] > 0
    room = () if problem.bounds is None else (model.low, model.high)
    steps = model.A, model.B, model.gradient, model.hessian, *room
    for t in reversed(range(len(model.A))):
        if shooting:
            V, v = carry
            Ve = matvec(V, model.gap[t])
            left = left + (model.gap[t] * (Ve / 2 - v)).sum(-1)
            carry = [V, v - Ve]
        *carry, k, K, slope, curvature, size, good = problem.riccati(
            *carry, *(x[t] for x in steps), mu
        )
        found.append((k, K, slope, curvature, size, good))
    k, K, slope, curvature, size, good = (torch.stack(x[::-1]) for x in zip(*found, strict=True))
    slope, curvature = slope.sum(0), curvature.sum(0)
    if shooting:
        whole = slope + curvature / 2 + left
        slope = _slope(model, k, K)
        curvature = 2 * (whole - slope)
    return FeedbackPlan(k, K, slope, curvature, size.amax(0), good.amin(0) > 0)


def _slope(model: QuadraticModel, k: Tensor, K: Tensor) -> Tensor:
    """What the cost changes by at first, per alpha, as gaps close."""
    A, B, gap, costates = model.A, model.B, model.gap, model.costates
    descent = model.gradient[..., A.shape[-1] :] + matvec(B.mT, costates)
    x, slope = torch.zeros_like(gap[0]), torch.zeros_like(gap[0, ..., 0])
    for t in range(len(A)):
        u = k[t] + matvec(K[t], x)
        slope = slope + (descent[t] * u).sum(-1) - (costates[t] * gap[t]).sum(-1)
        x = matvec(A[t], x) + matvec(B[t], u) - gap[t]
    return slope


def solve_convexified(
    problem: OptimalControl,
    model: QuadraticModel,
    mu: Tensor,
    plan: FeedbackPlan,
    numbers: tuple[bool, bool],
    only_these: bool,
) -> FeedbackPlan:
    """The plan, with that of a convex model in samples where it is no good.

    Args:
        problem: what is solved.
        model: the model, without second derivatives of steps.
        mu: regularisation, `[*batch]`.
        plan: that of the model with all that it has.
        numbers: whether the running and the final cost are; Hessians of residuals are never negative.
        only_these: leave the other samples out of the work; the host then waits for the device.
    """
    rows = None
    if only_these and not problem.mech.batch_shape:  # otherwise samples stay with their robots
        rows = (~plan.good).nonzero()[:, 0]
        model, mu = model.of(rows), mu[rows]
    along, end = numbers
    hessian = _absolute_eigenvalues(model.hessian) if along else model.hessian
    end_hessian = _absolute_eigenvalues(model.end_hessian) if end else model.end_hessian
    other = backward_pass(problem, model._replace(hessian=hessian, end_hessian=end_hessian), mu)
    if rows is not None:
        pairs = zip(_OF_PLAN, plan, other, strict=True)
        return FeedbackPlan(*(x.index_copy(k, rows, y) for k, x, y in pairs))
    return FeedbackPlan(
        *(select_samples(plan.good, x, y) for x, y in zip(plan, other, strict=True))
    )


_OF_MODEL = (1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1)
_OF_PLAN = (1, 1, 0, 0, 0, 0)
"""Where the batch dimension is of each part, when there is one."""


def _absolute_eigenvalues(H: Tensor) -> Tensor:
    """Symmetric matrices with the absolute values of their eigenvalues."""
    finite = H.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    values, vectors = torch.linalg.eigh(torch.where(finite, H, torch.zeros_like(H)))
    return torch.where(finite, (vectors * values.abs()[..., None, :]) @ vectors.mT, H)


def select_samples(which: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The one in samples `[*batch]`, the other elsewhere; time in front, or one number for each."""
    rest = x.ndim - which.ndim - (x.ndim > which.ndim)
    return torch.where(which.reshape(*which.shape, *[1] * rest), x, y)
