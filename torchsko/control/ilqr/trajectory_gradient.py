r"""Gradients of optimal trajectories, by the implicit function theorem at the optimality conditions.

With tangent steps and inputs z = (x, u), costates p, and multipliers y of the inequalities s in the cones K,
a solution is a stationary point of

.. math::
    L(z, p, y, \theta) = J + \textstyle\sum_t p_{t+1}^* (f(z_t) - x_{t+1}) - \sum_t y_t^* s(z_t), \qquad
    y = P(y - \rho s),

with the projection P onto K, in which inputs at an active bound stay. With the derivatives A of the dynamics,
C of s and :math:`P'` of the projection, the gradient for a cotangent c of z is

.. math::
    -\partial_\theta (w^* L_z + \pi^* L_p + \eta^* L_y), \qquad
    L_{zz} w + A^* \pi - C^* \eta = c, \quad A w = 0, \quad P' C w + (1 - P') \eta / \rho = 0.

The linear system has the form of the problem itself, with exact second derivatives. The Riccati recursion of
:math:`L_{zz} + \rho C^* P' C` solves it up to errors of :math:`\eta`, and corrections follow until w is
constant. The gradient of the optimal cost is :math:`\partial_\theta L`.

Reference: B. Amos, I. Jimenez, J. Sacks, B. Boots, J. Z. Kolter, *Differentiable MPC for end-to-end planning
and control*, NeurIPS 2018 (the linear-quadratic problem of the gradient); W. Jin, Z. Wang, Z. Yang, S. Mou,
*Pontryagin differentiable programming*, NeurIPS 2020 (second derivatives of the dynamics).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchsko.control.ilqr.iteration import free_inputs
from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.repeat import repeat
from torchsko.control.ilqr.trajectory import SolverState, next_multipliers
from torchsko.errors import SingularError, TorchskoError
from torchsko.integrators.linearize import jacobians
from torchsko.mechanism.configuration import add_step
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import matvec
from torchsko.verbs.mechanism_inputs import fixed_fields, parameters_of, split_mechanism

PENALTY_FACTOR = 10.0
"""Penalty of the linear system, in penalties at the end of the iterations."""

MAX_CORRECTIONS = 100
"""Corrections of the linear system before it counts as singular."""


def differentiable_trajectory(
    problem: OptimalControl,
    state: SolverState,
    q: Tensor,
    qd: Tensor,
    cost: Tensor,
    goals: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The trajectory, its inputs and its cost, with gradients.

    Args:
        problem: the problem.
        state: the solution.
        q: initial configuration, `[*batch, num_q]`.
        qd: initial velocity, `[*batch, num_dof]`.
        cost: of the solution, `[*batch]`.
        goals: goals and series, time first.

    Returns:
        Configurations, velocities and inputs, time first, and the cost.
    """
    parameters = [x for mech in _mechanisms(problem) for x in parameters_of(mech)]
    return _Trajectory.apply(problem, state, cost, q, qd, *goals, *parameters)


class _Trajectory(torch.autograd.Function):
    """Autograd function of a solution."""

    @staticmethod
    def forward(
        problem: OptimalControl, state: SolverState, cost: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in (state.q, state.qd, state.u, cost))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.problem, ctx.state, _, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        """Under vmap a solution has no gradients."""
        dims = in_dims[1].q, in_dims[1].qd, in_dims[1].u, in_dims[2]
        return _Trajectory.forward(*arguments), dims

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        state, needed = ctx.state, ctx.needs_input_grad[3:]
        q_bar, qd_bar, u_bar, cost_bar = _checked_cotangents(state, grad_outputs)
        mech = ctx.problem.mech
        pull = torch.func.vjp(lambda d: add_step(mech, state.q, d), torch.zeros_like(state.qd))[1]
        cotangent = torch.cat([*pull(q_bar), qd_bar], -1)
        inputs = [
            x.detach().requires_grad_(flag)
            for x, flag in zip(ctx.saved_tensors, needed, strict=True)
        ]
        system = _LinearSystem.of(ctx.problem, state, inputs[2 : 2 + _num_goals(ctx.problem)])
        adjoint = system.solve(torch.cat([cotangent[:-1], u_bar], -1), cotangent[-1])
        with torch.enable_grad():
            total = _weighted_conditions(ctx.problem, state, inputs, adjoint, cost_bar)
            total = total + (q_bar[0] * inputs[0]).sum() + (qd_bar[0] * inputs[1]).sum()
        chosen = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(total, chosen, allow_unused=True, materialize_grads=True))
        return None, None, None, *(next(found) if flag else None for flag in needed)


def _mechanisms(problem: OptimalControl) -> list[Mechanism]:
    """The mechanisms of the segments, each once."""
    return list({id(s.mech): s.mech for s in problem.segments}.values())


def _num_goals(problem: OptimalControl) -> int:
    return len(problem.goals) + len(problem.series)


def _checked_cotangents(state: SolverState, cotangents: Sequence[Tensor]) -> list[Tensor]:
    """Refuse cotangents of samples that have not converged; NaN where values cannot be read for free."""
    q_bar, qd_bar, u_bar, cost_bar = cotangents
    moving = [(x != 0).any(-1).any(0) for x in (q_bar, qd_bar, u_bar)]
    wrong = (moving[0] | moving[1] | moving[2] | (cost_bar != 0)) & ~state.converged
    values = concrete_values(wrong)
    if values is not None and values.any():
        sample = tuple(values.nonzero()[k][0] for k in range(values.ndim))
        gradient, gap = (float(x[sample]) for x in (state.gradient, state.gap.abs().amax((0, -1))))
        raise TorchskoError(
            f"ilqr has no gradient in {int(values.sum())} of {values.size} samples: sample "
            f"{[int(k) for k in sample]} has not converged, with a gradient of {gradient:.1e} and a "
            f"gap of {gap:.1e}.",
            "The implicit function theorem holds at stationary points of the cost.",
            "Raise max_iterations or tolerance=, or leave samples out of the loss by found.converged.",
        )
    return [torch.where(wrong if x.ndim == wrong.ndim else wrong[..., None], torch.nan, x)
            for x in cotangents]  # fmt: skip


class _Adjoint(NamedTuple):
    """Solution of the linear system, time first; see the notation above.

    Attributes:
        w: of the steps, `[steps, *batch, 2 num_dof + num_u]`.
        end: of the last state, `[*batch, 2 num_dof]`.
        pi: after each step, `[steps, *batch, 2 num_dof]`.
        eta: `[steps, *batch, rows]`.
    """

    w: Tensor
    end: Tensor
    pi: Tensor
    eta: Tensor


class _LinearSystem(NamedTuple):
    """The linear system at a solution, time first.

    Attributes:
        problem: the problem.
        A, B: derivatives of the steps.
        H, end_hessian: second derivatives of the Lagrangian, those of the steps and at the end.
        C: derivatives of the inequalities.
        P: derivatives of the projection.
        rho: penalty, `[*batch]`.
        free: 0 for inputs at an active bound, else 1.
    """

    problem: OptimalControl
    A: Tensor
    B: Tensor
    H: Tensor
    end_hessian: Tensor
    C: Tensor
    P: Tensor
    rho: Tensor
    free: Tensor

    @staticmethod
    def of(problem: OptimalControl, state: SolverState, goals: Sequence[Tensor]) -> _LinearSystem:
        """The system of a solution."""
        goals = [x.detach() for x in goals]
        at, p = (state.q, state.qd, state.u), state.costates
        y = next_multipliers(problem, state.values, state.multipliers, state.penalty)
        duals = y, torch.zeros_like(state.penalty)  # without a penalty the expansion is that of L
        A, B, gradient, H, _, end_hessian = problem.expand(*at, *duals, goals)
        curvature, end_curvature = problem.curvature(*at, p, *duals, goals)
        x = A.shape[-1]
        free = free_inputs(problem, state.u, gradient[..., x:] + matvec(B.mT, p))
        rho = PENALTY_FACTOR * state.penalty
        (P,) = jacobians(problem.project, y - rho[..., None] * state.values)
        C = problem.value_jacobian(*at, goals)
        return _LinearSystem(
            problem, A, B, H + curvature, end_hessian + end_curvature, C, P, rho, free
        )

    def solve(self, c: Tensor, end_c: Tensor) -> _Adjoint:
        """The solution for cotangents of the steps and of the last state.

        Raises:
            SingularError: when corrections do not converge.
        """
        rho, x = self.rho[..., None], self.A.shape[-1]
        w, end, eta = torch.zeros_like(c), torch.zeros_like(end_c), torch.zeros_like(self.C[..., 0])
        penalized = self.H + rho[..., None] * self.C.mT @ self.P @ self.C
        change = size = torch.zeros_like(self.rho)
        for _ in range(MAX_CORRECTIONS):
            _, slope = self._costates(w, end, eta, c, end_c)
            missing = -matvec(self.P @ self.C, w) - (eta - matvec(self.P, eta)) / rho
            gradient = torch.nn.functional.pad(slope, (x, 0)) - rho * matvec(self.C.mT, missing)
            step, end_step = self._descend(penalized, gradient)
            w, end = w + step, end + end_step
            eta = eta + rho * (missing - matvec(self.P @ self.C, step))
            change, size = (_largest(*pair) for pair in ((step, end_step), (w, end)))
            if not bool((change > torch.finfo(c.dtype).eps ** 0.75 * size).any()):
                break
        self._check(change, size)
        pi, _ = self._costates(w, end, eta, c, end_c)
        return _Adjoint(w, end, pi, eta)

    def _costates(
        self, w: Tensor, end: Tensor, eta: Tensor, c: Tensor, end_c: Tensor
    ) -> tuple[Tensor, ...]:
        """Pi after each step, and the residual of the inputs."""
        gradient = matvec(self.H, w) - c - matvec(self.C.mT, eta)
        end_gradient = matvec(self.end_hessian, end) - end_c
        series = self.A, self.B, gradient
        return repeat(self.problem.costates, (end_gradient,), series, (), reverse=True)[1]

    def _descend(self, hessian: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Minimum of the linear-quadratic problem of free inputs: the change of steps and of the end."""
        x, none = self.A.shape[-1], torch.zeros_like(self.A[..., 0])
        mask = torch.nn.functional.pad(self.free, (x, 0), value=1.0)
        hessian = mask[..., None] * hessian * mask[..., None, :] + torch.diag_embed(1 - mask)
        gradient, B = mask * gradient, self.B * self.free[..., None, :]
        infinite = torch.full_like(self.free, torch.inf)
        bounds = () if self.problem.bounds is None else (-infinite, infinite)
        _, (k, K, *_) = repeat(
            self.problem.backward,
            (self.end_hessian, none[0], none[0]),
            (self.A, B, gradient, hessian, none, none, 0 * self.free, *bounds),
            (torch.zeros_like(self.rho),),
            reverse=True,
        )

        def step(x: Tensor, A: Tensor, B: Tensor, k: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
            u = k + matvec(K, x)
            return matvec(A, x) + matvec(B, u), torch.cat([x, u], -1)

        (end,), (steps,) = repeat(step, (none[0],), (self.A, B, k, K), ())
        return steps, end

    def _check(self, change: Tensor, size: Tensor) -> None:
        """Refuse a solution that still changes by more than the square root of rounding."""
        wrong = concrete_values(~(change <= torch.finfo(change.dtype).eps ** 0.5 * size))
        if wrong is None or not wrong.any():
            return
        sample = tuple(int(k[0]) for k in wrong.nonzero())
        raise SingularError(
            f"the linear system of gradients of ilqr does not converge in sample {list(sample)}: it "
            f"changes by {float(change[sample]):.1e} at the size {float(size[sample]):.1e}.",
            "The trajectory is no strict minimum, so its derivatives are not unique.",
            "Add a small cost of all inputs, and solve with exact=True from inputs that are not symmetric.",
        )


def _largest(steps: Tensor, end: Tensor) -> Tensor:
    """Largest entry of each sample, `[*batch]`."""
    return torch.maximum(steps.abs().amax((0, -1)), end.abs().amax(-1))


def _weighted_conditions(
    problem: OptimalControl,
    state: SolverState,
    inputs: Sequence[Tensor],
    adjoint: _Adjoint,
    cost_bar: Tensor,
) -> Tensor:
    """A number whose derivatives to the inputs are the gradients.

    It is the Lagrangian times the cotangent of the cost, less the optimality conditions times the adjoint.
    """
    count = 2 + _num_goals(problem)
    q, qd, goals, parameters = inputs[0], inputs[1], inputs[2:count], tuple(inputs[count:])
    robots: dict[int, Mechanism] = {}
    for mech in _mechanisms(problem):
        robots[id(mech)], parameters = split_mechanism(fixed_fields(mech), parameters)
    qs, qds = torch.cat([q[None], state.q[1:]]), torch.cat([qd[None], state.qd[1:]])
    y = next_multipliers(problem, state.values, state.multipliers, state.penalty)
    total = torch.zeros_like(cost_bar).sum()
    x = torch.cat([adjoint.w[..., : 2 * problem.mech.num_dof], adjoint.end[None]])
    for s in problem.segments:
        mech, rows, parts = robots[id(s.mech)], s.rows, s.functions
        z = tuple(
            torch.zeros_like(v, requires_grad=True) for v in (qds[rows], qds[rows], state.u[rows])
        )
        at = add_step(mech, qs[rows], z[0]), qds[rows] + z[1], state.u[rows] + z[2]
        after = state.q[s.start + 1 : s.stop + 1]
        cost, end, values = parts.conditions(mech, *at, after, *(g[rows] for g in goals))
        duals, eta = (v[rows][..., : values.shape[-1]] for v in (y, adjoint.eta))
        lagrangian = cost + (state.costates[rows] * end).sum(-1) - (duals * values).sum(-1)
        total = total + _directional(lagrangian, z, adjoint.w[rows], cost_bar)
        total = total - (adjoint.pi[rows] * end).sum() + (eta * values).sum()
        if s.has_final:
            z = tuple(torch.zeros_like(qds[s.stop], requires_grad=True) for _ in range(2))
            at = add_step(mech, state.q[s.stop], z[0]), state.qd[s.stop] + z[1]
            cost = parts.cost_final(mech, *at, *(g[s.stop] for g in goals))
            total = total + _directional(cost, z, x[s.stop], cost_bar)
    return total


def _directional(value: Tensor, z: Sequence[Tensor], direction: Tensor, cost_bar: Tensor) -> Tensor:
    """The value times the cotangent of the cost, less its derivative along a direction of z, summed."""
    slopes = torch.autograd.grad(
        value.sum(), z, create_graph=True, allow_unused=True, materialize_grads=True
    )
    return (cost_bar * value).sum() - (torch.cat(slopes, -1) * direction).sum()
