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

from torchsko.control.ilqr.inequalities import Inequalities
from torchsko.control.ilqr.phase_dynamics import Change, Perturbed, PhaseDynamics, StepResult
from torchsko.control.normal_numbers import normal_numbers
from torchsko.errors import ShapeError
from torchsko.integrators.linearize import jacobians
from torchsko.mechanism.configuration import add_step, subtract
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec
from torchsko.verbs.dynamics import refuse_singular

Cost = Callable[..., Tensor]
"""Maps tensors with any batch dimensions to a scalar cost `[*batch]`, or to residuals `[*batch, r]`."""


@dataclass(frozen=True, eq=False)
class PhaseFunctions:
    """Functions of the steps of a phase, for tensors with any batch dimensions.

    Goals are the further arguments of the costs. The last `num_goals` tensors of `step` are those of them
    that are constant in time. With inequalities, multipliers `[*batch, rows]` and a penalty `[*batch]` follow
    the goals of `expand` and `curvature`.
    """

    running: Cost
    final: Cost | None
    dynamics: PhaseDynamics
    dofs: tuple[int, ...]
    bounds: tuple[Tensor, Tensor] | None
    num_goals: int
    inequalities: Inequalities | None

    def expand(
        self, mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor, *goals: Tensor
    ) -> tuple[Tensor, ...]:
        """A, B, and the gradient and Hessian of the running cost with respect to z."""
        refuse_singular(mech)
        nearby = self.dynamics.first_order(mech, q, qd, self.joint_forces(mech, u))
        change = self._of_inputs(mech, nearby)
        zero = torch.zeros_like(qd)
        to_q, to_qd, to_u = jacobians(lambda *z: change(*z).state, zero, qd, u)
        goals, duals = self._split(goals)
        gradient, hessian = _expansion(self._running(mech, q, change, goals), qd, u)
        if self.inequalities is not None:
            values = self._values(mech, q, change, goals)
            s, J = values(zero, qd, u), torch.cat(jacobians(values, zero, qd, u), -1)
            y, rate = self._multipliers(s, *duals)
            gradient, hessian = gradient - matvec(J.mT, y), hessian - J.mT @ rate @ J
        return torch.cat([to_q, to_qd], -1), to_u, gradient, hessian

    def curvature(
        self, mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor, costate: Tensor, *goals: Tensor
    ) -> Tensor:
        """Second-order terms that `expand` omits.

        They are those of residuals, of the dynamics times the costate, and of constraint forces and impacts
        in the cost.
        """
        change = self._of_inputs(mech, self.dynamics.exact(mech, q, qd, self.joint_forces(mech, u)))
        goals, duals = self._split(goals)
        cost, y = self._running(mech, q, change, goals), None
        value = cost(torch.zeros_like(qd), qd, u)
        values = self._values(mech, q, change, goals)
        if self.inequalities is not None:
            y, _ = self._multipliers(values(torch.zeros_like(qd), qd, u), *duals)
        slopes: tuple[Tensor, ...] = ()
        if value.ndim < qd.ndim and self.dynamics.enters_costs:
            slopes = self._slopes(mech, q, change(torch.zeros_like(qd), qd, u), u, goals)

        def weighted(d: Tensor, w: Tensor, u: Tensor) -> Tensor:
            found = change(d, w, u)
            total = (costate * found.state).sum(-1)
            if y is not None:
                total = total - (y * values(d, w, u)).sum(-1)
            if value.ndim == qd.ndim:
                return total + (value * cost(d, w, u)).sum(-1)
            for slope, x in zip(slopes, found[1:], strict=False):
                total = total + (slope * x).sum(-1)
            return total

        return _hessian(weighted, qd, u)

    def expand_final(
        self, mech: Mechanism, q: Tensor, qd: Tensor, *goals: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian of the final cost with respect to [d; w]."""
        return _expansion(self._final(mech, q, goals), qd, qd[..., :0])

    def final_curvature(self, mech: Mechanism, q: Tensor, qd: Tensor, *goals: Tensor) -> Tensor:
        """Second-order terms that the Gauss-Newton Hessian of the final cost omits."""
        cost = self._final(mech, q, goals)
        value = cost(torch.zeros_like(qd), qd, qd[..., :0])
        if value.ndim < qd.ndim:
            size = 2 * qd.shape[-1]
            return qd.new_zeros(*qd.shape[:-1], size, size)
        return _hessian(lambda d, w, u: (value * cost(d, w, u)).sum(-1), qd, qd[..., :0])

    def cost_final(self, mech: Mechanism, q: Tensor, qd: Tensor, *goals: Tensor) -> Tensor:
        """The final cost, `[*batch]`."""
        cost = self._final(mech, q, goals)(torch.zeros_like(qd), qd, qd[..., :0])
        return _scalar(cost, qd)

    def step(
        self, mech: Mechanism, q: Tensor, qd: Tensor, q_bar: Tensor, qd_bar: Tensor, u: Tensor,
        k: Tensor, K: Tensor, gap: Tensor, *rest: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """A step under u + alpha k + K x, x being the deviation from (q_bar, qd_bar).

        `rest` holds the series, alpha and the goals that are constant in time.

        Returns:
            The next state, of which 1 - alpha of the gap remains; this state again, u, the cost without
            inequalities, and the values of these `[*batch, rows]`.
        """
        count = len(rest) - self.num_goals - 1
        alpha, goals = rest[count], (*rest[count + 1 :], *rest[:count])
        x = torch.cat([subtract(mech, q_bar, q), qd - qd_bar], -1)
        u = self._within_bounds(u + alpha[..., None] * k + matvec(K, x))
        found, at, cost = self._advance(mech, q, qd, u, goals)
        q_gap, qd_gap = ((1 - alpha[..., None]) * gap).tensor_split(2, -1)
        end = add_step(mech, found.q, q_gap), found.qd + qd_gap
        if self.inequalities is None:
            return *end, *end, u, cost
        return (
            *end,
            *end,
            u,
            cost,
            self.inequalities.values(*self._arguments(mech, q, at, u, goals)),
        )

    def conditions(
        self, mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor, end: Tensor, *goals: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Terms of the Lagrangian of a step: the cost, the deviation from `end`, and the inequalities."""
        found, at, cost = self._advance(mech, q, qd, u, goals)
        values = cost[..., None][..., :0]
        if self.inequalities is not None:
            values = self.inequalities.values(*self._arguments(mech, q, at, u, goals))
        return cost, torch.cat([subtract(mech, end, found.q), found.qd], -1), values

    def value_jacobian(
        self, mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor, *goals: Tensor
    ) -> Tensor:
        """Derivative of the inequalities with respect to z, `[*batch, rows, 2 num_dof + num_u]`."""
        if self.inequalities is None:
            return torch.cat([qd, qd, u], -1)[..., None, :][..., :0, :]
        nearby = self.dynamics.first_order(mech, q, qd, self.joint_forces(mech, u))
        values = self._values(mech, q, self._of_inputs(mech, nearby), goals)
        return torch.cat(jacobians(values, torch.zeros_like(qd), qd, u), -1)

    def sample(
        self, mech: Mechanism, q: Tensor, qd: Tensor, cost: Tensor, random: Tensor, u: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """A step under a random input of mean u, for `torchsko.control.mppi`.

        `rest` holds the series, the standard deviations `[*batch, num_u]` and the goals that are constant in
        time. `random` is the state of `torchsko.control.normal_numbers`.

        Returns:
            The next state, the cost including that of this step, the next state of the random numbers, and u.
        """
        count = len(rest) - self.num_goals - 1
        deviation, goals = rest[count], (*rest[count + 1 :], *rest[:count])
        noise, random = normal_numbers(random, u.shape[-1])
        u = self._within_bounds(u + deviation * noise)
        found, _, of_step = self._advance(mech, q, qd, u, goals)
        return found.q, found.qd, cost + of_step, random, u

    def _within_bounds(self, u: Tensor) -> Tensor:
        if self.bounds is None:
            return u
        return torch.minimum(torch.maximum(u, self.bounds[0]), self.bounds[1])

    def _advance(
        self, mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor, goals: Sequence[Tensor]
    ) -> tuple[StepResult, Change, Tensor]:
        """A step, what costs depend on, and the running cost `[*batch]`."""
        found = self.dynamics.advance(mech, q, qd, self.joint_forces(mech, u))
        at = Change(found.qd, found.start, found.forces)
        return found, at, _scalar(self._cost(mech, q, at, u, goals), qd)

    def joint_forces(self, mech: Mechanism, u: Tensor) -> Tensor:
        """Joint forces from inputs, `[*batch, num_dof]`."""
        if self.dofs == tuple(range(mech.num_dof)):
            return u
        index = {dof: k for k, dof in enumerate(self.dofs)}
        zero = torch.zeros_like(u[..., 0])
        columns = [u[..., index[k]] if k in index else zero for k in range(mech.num_dof)]
        return torch.stack(columns, -1)

    def are_scalar(
        self, mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor, *goals: Tensor
    ) -> tuple[bool, bool]:
        """True if the running and the final cost are scalar instead of residuals."""
        at = Change(qd, qd, qd[..., :0])
        if self.dynamics.enters_costs:
            found = self.dynamics.advance(mech, q, qd, self.joint_forces(mech, u))
            at = Change(qd, found.start, found.forces)
        final = None if self.final is None else self.final(mech, q, qd, *goals)
        running = self._cost(mech, q, at, u, goals)
        return running.ndim < qd.ndim, final is not None and final.ndim < qd.ndim

    def _of_inputs(self, mech: Mechanism, nearby: Perturbed) -> Perturbed:
        """The perturbed step as a function of inputs instead of joint forces."""
        return lambda d, w, u: nearby(d, w, self.joint_forces(mech, u))

    def _cost(
        self, mech: Mechanism, q: Tensor, at: Change, u: Tensor, goals: Sequence[Tensor]
    ) -> Tensor:
        """The running cost after an impact, under constraint forces."""
        cost = self.running(*self._arguments(mech, q, at, u, goals))
        return check_cost_value("running", cost, at.start)

    def _arguments(
        self, mech: Mechanism, q: Tensor, at: Change, u: Tensor, goals: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """Arguments of the running cost and of the inequalities."""
        forces = (at.forces,) if self.dynamics.has_forces else ()
        return mech, q, at.start, u, *forces, *goals

    def _values(
        self, mech: Mechanism, q: Tensor, change: Perturbed, goals: Sequence[Tensor]
    ) -> Cost:
        """The values of the inequalities as a function of z."""

        def values(d: Tensor, w: Tensor, u: Tensor) -> Tensor:
            assert self.inequalities is not None
            at = self._after(change, d, w, u)
            return self.inequalities.values(
                *self._arguments(mech, add_step(mech, q, d), at, u, goals)
            )

        return values

    def _split(self, goals: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The goals, and the multipliers and the penalty of the inequalities."""
        count = len(goals) - (0 if self.inequalities is None else 2)
        return tuple(goals[:count]), tuple(goals[count:])

    def _multipliers(
        self, s: Tensor, multipliers: Tensor, penalty: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The next multipliers y, and their derivative to the values."""
        assert self.inequalities is not None
        project, rho = self.inequalities.project, penalty[..., None]
        (rate,) = jacobians(lambda s: project(multipliers - rho * s), s)
        return project(multipliers - rho * s), rate

    def _after(self, change: Perturbed, d: Tensor, w: Tensor, u: Tensor) -> Change:
        """The perturbed step, as far as costs depend on it."""
        return change(d, w, u) if self.dynamics.enters_costs else Change(w, w, w[..., :0])

    def _running(
        self, mech: Mechanism, q: Tensor, change: Perturbed, goals: Sequence[Tensor]
    ) -> Cost:
        """The running cost as a function of z."""

        def cost(d: Tensor, w: Tensor, u: Tensor) -> Tensor:
            return self._cost(mech, add_step(mech, q, d), self._after(change, d, w, u), u, goals)

        return cost

    def _slopes(
        self, mech: Mechanism, q: Tensor, at: Change, u: Tensor, goals: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Gradients of a scalar running cost to the velocity after an impact and to the forces."""

        def cost(start: Tensor, forces: Tensor) -> Tensor:
            return self._cost(mech, q, Change(at.state, start, forces), u, goals)

        value, pull = torch.func.vjp(cost, at.start, at.forces)[:2]
        return pull(torch.ones_like(value))

    def _final(self, mech: Mechanism, q: Tensor, goals: Sequence[Tensor]) -> Cost:
        assert self.final is not None
        final = self.final
        return lambda d, w, u: check_cost_value(
            "final", final(mech, add_step(mech, q, d), w, *goals), w
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


def _gradient(cost: Cost) -> Cost:
    def gradient(d: Tensor, w: Tensor, u: Tensor) -> Tensor:
        value, pull = torch.func.vjp(cost, d, w, u)[:2]
        return torch.cat(pull(torch.ones_like(value)), -1)

    return gradient


def _hessian(cost: Cost, qd: Tensor, u: Tensor) -> Tensor:
    return torch.cat(jacobians(_gradient(cost), torch.zeros_like(qd), qd, u), -1)
