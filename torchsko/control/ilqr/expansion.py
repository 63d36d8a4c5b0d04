"""Expansions of costs and dynamics along a trajectory: the functions that kernels of a problem compute.

Near a trajectory z = [d; w; u] stands for the configuration integrate(q, d), the velocity w and the input u;
see `torchsko.control.ilqr.problem`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.integrators.linearize import evaluate_step, jacobians, linearize_step, perturbed_step
from torchsko.integrators.step import Step
from torchsko.mechanism.configuration import add_step, subtract
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec
from torchsko.verbs.dynamics import refuse_singular

Cost = Callable[..., Tensor]
"""Maps tensors with any batch dimensions to a scalar cost `[*batch]`, or to residuals `[*batch, r]`."""


@dataclass(frozen=True, eq=False)
class ProblemFunctions:
    """The functions that the solver calls, for tensors with any batch dimensions."""

    running: Cost
    final: Cost
    dofs: tuple[int, ...]
    dt: float | Tensor
    step: Step
    bounds: tuple[Tensor, Tensor] | None

    def expand(
        self, mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor, *goals: Tensor
    ) -> tuple[Tensor, ...]:
        """A, B, and the gradient and Hessian of the running cost with respect to z."""
        refuse_singular(mech)
        A, B = linearize_step(mech, q, qd, self.forces(mech, u), self.dt, self.step)
        columns = [B[..., k] for k in self.dofs]
        gradient, hessian = _expansion(self._running(mech, q, goals), qd, u)
        return A, torch.stack(columns, -1), gradient, hessian

    def curvature(
        self, mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor, costate: Tensor, *goals: Tensor
    ) -> Tensor:
        """Second-order terms that `expand` omits: of residuals, and of the dynamics times the costate."""
        step = perturbed_step(mech, q, qd, self.forces(mech, u), self.dt, self.step)
        cost = self._running(mech, q, goals)

        def weighted_step(d: Tensor, w: Tensor, u: Tensor) -> Tensor:
            return (costate * step(d, w, self.forces(mech, u))).sum(-1)

        return _hessian(weighted_step, qd, u) + _second_order_residual(cost, qd, u)

    def expand_final(
        self, mech: Mechanism, q: Tensor, qd: Tensor, *goals: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian of the final cost with respect to [d; w]."""
        return _expansion(self._final(mech, q, goals), qd, qd[..., :0])

    def final_curvature(self, mech: Mechanism, q: Tensor, qd: Tensor, *goals: Tensor) -> Tensor:
        """Second-order terms that the Gauss-Newton Hessian of the final cost omits."""
        return _second_order_residual(self._final(mech, q, goals), qd, qd[..., :0])

    def cost_final(self, mech: Mechanism, q: Tensor, qd: Tensor, *goals: Tensor) -> Tensor:
        """The final cost, `[*batch]`."""
        return _scalar(check_cost_value("final", self.final(mech, q, qd, *goals), qd), qd)

    def feedback_step(
        self, mech: Mechanism, q: Tensor, qd: Tensor, q_bar: Tensor, qd_bar: Tensor, u: Tensor,
        k: Tensor, K: Tensor, alpha: Tensor, *goals: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """A step under u + alpha k + K x, x being the deviation from (q_bar, qd_bar); also u and its cost."""
        x = torch.cat([subtract(mech, q_bar, q), qd - qd_bar], -1)
        u = u + alpha[..., None] * k + matvec(K, x)
        if self.bounds is not None:
            u = torch.minimum(torch.maximum(u, self.bounds[0]), self.bounds[1])
        cost = _scalar(check_cost_value("running", self.running(mech, q, qd, u, *goals), qd), qd)
        return *evaluate_step(mech, q, qd, self.forces(mech, u), self.dt, self.step), u, cost

    def forces(self, mech: Mechanism, u: Tensor) -> Tensor:
        """Joint forces from inputs, `[*batch, num_dof]`."""
        if self.dofs == tuple(range(mech.num_dof)):
            return u
        index = {dof: k for k, dof in enumerate(self.dofs)}
        zero = torch.zeros_like(u[..., 0])
        columns = [u[..., index[k]] if k in index else zero for k in range(mech.num_dof)]
        return torch.stack(columns, -1)

    def scalar_costs(
        self, mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor, *goals: Tensor
    ) -> tuple[bool, bool]:
        """True if the running and the final cost are scalar instead of residuals."""
        running, final = self.running(mech, q, qd, u, *goals), self.final(mech, q, qd, *goals)
        return running.ndim < qd.ndim, final.ndim < qd.ndim

    def _running(self, mech: Mechanism, q: Tensor, goals: Sequence[Tensor]) -> Cost:
        return lambda d, w, u: check_cost_value(
            "running", self.running(mech, add_step(mech, q, d), w, u, *goals), w
        )

    def _final(self, mech: Mechanism, q: Tensor, goals: Sequence[Tensor]) -> Cost:
        return lambda d, w, u: check_cost_value(
            "final", self.final(mech, add_step(mech, q, d), w, *goals), w
        )


def check_cost_value(name: str, cost: Any, qd: Tensor) -> Tensor:
    """Check that a cost function returned one cost, or one row of residuals, for each sample."""
    batch = qd.shape[:-1]
    if not isinstance(cost, Tensor):
        raise ShapeError(
            f"the cost {name!r} returned {type(cost).__name__}.",
            "A cost is a tensor: a number for each sample, or residuals.",
            "Return a tensor such as u.square().sum(-1), or 0 * qd.sum(-1) for no cost.",
        )
    if cost.shape not in (batch, (*batch, *cost.shape[-1:])):
        raise ShapeError(
            f"the cost {name!r} returned the shape {list(cost.shape)}, for velocities {list(qd.shape)}.",
            f"A cost is a number for each sample, {list(batch)}, or residuals, {[*batch, 'r']}.",
            "Sum over the last dimension only: u.square().sum(-1), not u.square().sum().",
        )
    return cost


def _scalar(cost: Tensor, qd: Tensor) -> Tensor:
    """A scalar cost, or half the squared norm of residuals, `[*batch]`."""
    return cost if cost.ndim < qd.ndim else cost.square().sum(-1) / 2


def _expansion(cost: Cost, qd: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian with respect to z at d = 0; Gauss-Newton for residuals."""
    value = cost(torch.zeros_like(qd), qd, u)
    if value.ndim < qd.ndim:
        return _gradient(cost)(torch.zeros_like(qd), qd, u), _hessian(cost, qd, u)
    J = torch.cat(jacobians(cost, torch.zeros_like(qd), qd, u), -1)
    return matvec(J.mT, value), J.mT @ J


def _second_order_residual(cost: Cost, qd: Tensor, u: Tensor) -> Tensor:
    """Hessian of r* r(z) with constant r, which Gauss-Newton omits; zero for a scalar cost."""
    value = cost(torch.zeros_like(qd), qd, u)
    if value.ndim < qd.ndim:
        size = 2 * qd.shape[-1] + u.shape[-1]
        return qd.new_zeros(*qd.shape[:-1], size, size)
    return _hessian(lambda d, w, u: (value * cost(d, w, u)).sum(-1), qd, u)


def _gradient(cost: Cost) -> Cost:
    def gradient(d: Tensor, w: Tensor, u: Tensor) -> Tensor:
        value, pull = torch.func.vjp(cost, d, w, u)[:2]
        return torch.cat(pull(torch.ones_like(value)), -1)

    return gradient


def _hessian(cost: Cost, qd: Tensor, u: Tensor) -> Tensor:
    return torch.cat(jacobians(_gradient(cost), torch.zeros_like(qd), qd, u), -1)
