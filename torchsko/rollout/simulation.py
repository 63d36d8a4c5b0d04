"""Stepping of a rollout: in eager mode, or by kernels of single steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.actuation.implicit_forces import ImplicitForce
from torchsko.linalg.unpivoted import solve_without_pivots
from torchsko.mechanism.coordinates import among_all_dofs
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism, fused_methods_of
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.binomial import Binomial, next_checkpoint
from torchsko.rollout.controls import Forces, Policy
from torchsko.rollout.early_termination import EarlyTermination, mask_forces, select_running
from torchsko.rollout.external import Wrenches, wrenches_at
from torchsko.rollout.limit_springs import LimitSprings
from torchsko.rollout.recompute import recompute_in_backward
from torchsko.rollout.series import Series
from torchsko.rollout.step import Integrator, Step
from torchsko.utils.shapes import matvec
from torchsko.verbs.dynamics import forward_dynamics, mass_matrix


@dataclass(frozen=True, eq=False)
class Simulation:
    """All data of one rollout.

    `fast` is the fused mechanism, or `robot` without kernels. `lengths` are the numbers of steps of each
    sample if they differ, and `termination` adds the initial state to them; `t0` is the start time [s].
    """

    fast: MechanismLike
    robot: Mechanism
    forces: Forces
    dt: float
    method: str | Step
    step: Step
    limits: LimitSprings | None
    every: int = 1
    truncate: int | None = None
    f_ext: Tensor | Series | Wrenches | None = None
    lengths: Tensor | None = None
    termination: EarlyTermination | None = None
    t0: float = 0.0

    def unbound(self) -> Simulation:
        """A copy for `run`, with series of forces split into steps."""
        f_ext = Series.of(self.f_ext, -3) if isinstance(self.f_ext, Tensor) else self.f_ext
        return replace(self, forces=self.forces.unbound(), f_ext=f_ext)

    def run(
        self, q: Tensor, qd: Tensor, steps: int, checkpoint: int | Binomial | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All states, and the last memory. States are joined once, since joining doubles their memory."""
        qs, qds, memory = [q[..., None, :]], [qd[..., None, :]], self.forces.memory(q, qd)
        simulation = self.from_state(q, qd, memory)
        window = self.truncate or max(steps, 1)
        stride = window if isinstance(checkpoint, Binomial) else checkpoint or 1
        edges = sorted({*range(0, steps, stride), *range(0, steps, window), steps})
        for first, last in pairwise(edges):
            if self.truncate and first and first % window == 0:
                q, qd, memory = q.detach(), qd.detach(), memory.detach()
            span = (first, last, q, qd, memory)
            if isinstance(checkpoint, Binomial):
                q, qd, memory, *states = simulation.binomial_segment(checkpoint.states, *span)
            elif checkpoint is None:
                q, qd, memory, *states = simulation.segment(*span)
            else:
                after = recompute_in_backward(Simulation.segment, simulation, *span)
                q, qd, memory, *states = after
            qs.append(states[0])
            qds.append(states[1])
        concatenate = torch.cat(qs, -2)
        qs.clear()
        return concatenate, torch.cat(qds, -2), memory

    def from_state(self, q: Tensor, qd: Tensor, memory: Tensor) -> Simulation:
        """A copy whose ended samples are evaluated at this state."""
        if self.lengths is None:
            return self
        rest = (q.detach(), qd.detach(), memory.detach())
        return replace(self, termination=EarlyTermination(self.lengths, rest))

    @property
    def is_closed(self) -> bool:
        """True if steps depend on the mechanism's parameters and series only, not on functions."""
        return (
            self.fast is self.robot
            and _has_constants_only(self.step)
            and self.limits is None
            and not callable(self.f_ext)
            and not isinstance(self.dt, Tensor)
            and isinstance(self.forces.source, Tensor)
        )

    def segment(
        self, first: int, last: int, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, ...]:
        """State and memory after a range of steps, and the states `[*batch, last - first, ...]` within it.

        The final state is a separate tensor, since the next segment keeps its start: a view would keep all
        states of this one. The other states are one tensor: many small ones would fragment the heap.
        """
        qs, qds = [], []
        for k in range(first, last):
            q, qd, memory = self.step_once(k, q, qd, memory)
            if (k + 1) % self.every:
                continue
            # Views are taken here, so that gradients accumulate step by step.
            qs.append(q[..., None, :])
            qds.append(qd[..., None, :])
        return q, qd, memory, _joined(qs, q), _joined(qds, qd)

    def binomial_segment(
        self, states: int, first: int, last: int, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, ...]:
        """A segment with a number of stored states, by the binomial schedule."""
        if last - first < 2:
            return self.segment(first, last, q, qd, memory)
        middle = first + next_checkpoint(last - first, states)
        run = partial(_binomial_segment, states)
        *after, qs, qds = recompute_in_backward(run, self, first, middle, q, qd, memory)
        *end, qs_rest, qds_rest = self.binomial_segment(max(states - 1, 0), middle, last, *after)
        return *end, torch.cat([qs, qs_rest], -2), torch.cat([qds, qds_rest], -2)

    def step_once(
        self, k: int, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """State and memory after one step; unchanged in ended samples."""
        f_ext, t = self.f_ext, self.t0 + k * self.dt
        wrenches = f_ext.at(k) if isinstance(f_ext, Series) else f_ext
        if self.termination is None:
            control, memory = self.forces.at_step(k, t, q, qd, memory)
            return *self.advance(t, q, qd, control, wrenches), memory
        running, before = self.termination.running(k), (q, qd, memory)
        q, qd, memory = select_running(running, before, self.termination.rest)
        control, memory = self.forces.at_step(k, t, q, qd, memory)
        control, wrenches = mask_forces(running, control), mask_forces(running, wrenches, 2)
        end = self.advance(t, q, qd, control, wrenches)
        return select_running(running, (*end, memory), before)

    def advance(
        self,
        t: float,
        q: Tensor,
        qd: Tensor,
        control: Tensor | Policy | ImplicitForce,
        wrenches: Tensor | Wrenches | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The state one step later."""
        fast, robot, push = self._with_damping(q, qd, control)
        coupled = None
        if isinstance(control, ImplicitForce):
            coupled = control if control.rows is not None else None
            control = control.push
        constant = isinstance(control, Tensor) and not callable(wrenches)
        single = constant or (isinstance(self.step, Integrator) and self.step.single_evaluation)
        if (
            single
            and coupled is None
            and isinstance(self.method, str)
            and "step" in fused_methods_of(fast)
        ):
            tau = _total_force(control, t, q, qd, push)
            f_ext = wrenches_at(wrenches, t, q, qd)
            return cast(Any, fast).step(q, qd, tau, self.dt, *f_ext, method=self.method)

        def accelerate(
            mech: Mechanism, t: float, q: Tensor, qd: Tensor, force: Tensor | None = None
        ) -> Tensor:
            tau = _total_force(control, t, q, qd, push, force)
            # An integrator may change the mechanism; there are no kernels for that one.
            evaluated = fast if mech is robot else mech
            qdd = forward_dynamics(evaluated, q, qd, tau, *wrenches_at(wrenches, t, q, qd))
            return qdd if coupled is None else _implicit_rows(coupled, mech, q, qd, qdd, self.dt)

        return self.step(robot, accelerate, t, q, qd, self.dt)

    def _with_damping(
        self, q: Tensor, qd: Tensor, control: Tensor | Policy | ImplicitForce
    ) -> tuple[MechanismLike, Mechanism, Tensor | None]:
        """Kernels and mechanism with the damping of limits and implicit forces; and the force of limits."""
        damping, push = self.robot.damping, None
        if isinstance(control, ImplicitForce):
            damping = damping + control.damping
        if self.limits is not None:
            limit_damping, push = self.limits.forces(self.robot, q, qd, self.dt)
            damping = damping + among_all_dofs(self.robot, limit_damping)
        if damping is self.robot.damping:
            return self.fast, self.robot, None
        fast = cast(Any, self.fast).replace(damping=damping)
        return fast, as_mechanism(fast), push


def _has_constants_only(step: Step) -> bool:
    """True if a step is an integrator without tensors, which might require a gradient."""
    return isinstance(step, Integrator) and not any(
        isinstance(x, Tensor) for x in vars(step).values()
    )


def _binomial_segment(states: int, simulation: Simulation, *span: Any) -> tuple[Tensor, ...]:
    return simulation.binomial_segment(states, *span)


def _total_force(
    control: Tensor | Policy, t: float, q: Tensor, qd: Tensor, *forces: Tensor | None
) -> Tensor:
    """The force of a control at a state, plus further forces."""
    tau = control if isinstance(control, Tensor) else control(t, q, qd)
    for force in forces:
        tau = tau if force is None else tau + force
    return tau


def _implicit_rows(
    force: ImplicitForce, mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, dt: float | Tensor
) -> Tensor:
    """Add damping of coupled joints to an acceleration: (M + h R* d R) change = -R* d R (qd + h qdd)."""
    R, d = cast(Tensor, force.rows), cast(Tensor, force.row_damping)
    h = dt[..., None] if isinstance(dt, Tensor) else dt
    D = R.mT @ (d[..., None] * R)
    loss = matvec(D, qd + dt * qdd)
    return qdd - solve_without_pivots(mass_matrix(mech, q) + h * D, loss, scalar=mech.scalar)


def _joined(states: list[Tensor], like: Tensor) -> Tensor:
    if not states:
        return like[..., None, :][..., :0, :]
    return states[0] if len(states) == 1 else torch.cat(states, -2)
