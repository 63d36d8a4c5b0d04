"""How a rollout steps: by tensors one step at a time, or by kernels of steps."""

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
from torchsko.rollout.adaptive_steps import AdaptiveRungeKutta
from torchsko.rollout.binomial import Binomial, next_checkpoint
from torchsko.rollout.controls import Forces, Policy
from torchsko.rollout.early_termination import EarlyTermination, mask_forces, select_running
from torchsko.rollout.external import Wrenches, wrenches_at
from torchsko.rollout.implicit import ImplicitEuler
from torchsko.rollout.integrators import NewmarkBeta, RungeKutta, SemiImplicitEuler
from torchsko.rollout.limit_springs import LimitSprings
from torchsko.rollout.midpoint import ImplicitMidpoint, Variational
from torchsko.rollout.recompute import recompute_in_backward
from torchsko.rollout.series import Series
from torchsko.rollout.step import Step
from torchsko.utils.shapes import matvec
from torchsko.verbs.dynamics import forward_dynamics, mass_matrix

SAMPLED_ONCE = ("semi_implicit_euler", "implicit")
"""Methods that ask for the forces once, at the start of the step."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """What one rollout steps: the mechanism, and the kernels given for it (or itself), forces, method.

    `lengths` are steps of each sample, where they differ, and `ends` what follows from these and the start;
    `t0` is the time there [s].
    """

    given: MechanismLike
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
    ends: EarlyTermination | None = None
    t0: float = 0.0

    def by_steps(self) -> Simulation:
        """The same, ready for `run`: forces given as series are taken apart."""
        f_ext = Series.of(self.f_ext, -3) if isinstance(self.f_ext, Tensor) else self.f_ext
        return replace(self, forces=self.forces.by_steps(), f_ext=f_ext)

    def run(
        self, q: Tensor, qd: Tensor, steps: int, checkpoint: int | Binomial | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All states, joined only once, what is joined exists twice while it is; and the last memory."""
        qs, qds, memory = [q[..., None, :]], [qd[..., None, :]], self.forces.memory(q, qd)
        own = self.ending(q, qd, memory)
        window = self.truncate or max(steps, 1)
        stride = window if isinstance(checkpoint, Binomial) else checkpoint or 1
        edges = sorted({*range(0, steps, stride), *range(0, steps, window), steps})
        for first, last in pairwise(edges):
            if self.truncate and first and first % window == 0:
                q, qd, memory = q.detach(), qd.detach(), memory.detach()
            span = (first, last, q, qd, memory)
            if isinstance(checkpoint, Binomial):
                q, qd, memory, *states = own.halved(checkpoint.states, *span)
            else:
                kept = checkpoint is None
                run = (
                    own.segment if kept else partial(recompute_in_backward, Simulation.segment, own)
                )
                q, qd, memory, *states = run(*span)
            qs.append(states[0])
            qds.append(states[1])
        joined = torch.cat(qs, -2)
        qs.clear()
        return joined, torch.cat(qds, -2), memory

    def ending(self, q: Tensor, qd: Tensor, memory: Tensor) -> Simulation:
        """The same from a state on; it is what samples see that have ended."""
        if self.lengths is None:
            return self
        rest = (q.detach(), qd.detach(), memory.detach())
        return replace(self, ends=EarlyTermination(self.lengths, rest))

    @property
    def known(self) -> bool:
        """Whether all that steps read are the mechanism's parameters and series: no function decides."""
        named = self.given is self.robot and _is_of_numbers(self.step) and self.limits is None
        fixed = named and not callable(self.f_ext) and not isinstance(self.dt, Tensor)
        return fixed and isinstance(self.forces.source, Tensor)

    def segment(
        self, first: int, last: int, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, ...]:
        """State and memory after some steps, and the states `[*batch, last - first, ...]` on the way.

        The state comes apart from the others, since the next segment keeps what it starts from: as a view
        it would keep all of this one's. The others come as one tensor: many small ones that stay are
        strewn over the heap, where the large ones that come and go then find no room.
        """
        qs, qds = [], []
        for k in range(first, last):
            q, qd, memory = self.one(k, q, qd, memory)
            if (k + 1) % self.every:
                continue
            # At once, not when all are joined: gradients add up in the order of these views, step by step.
            qs.append(q[..., None, :])
            qds.append(qd[..., None, :])
        return q, qd, memory, _joined(qs, q), _joined(qds, qd)

    def halved(
        self, states: int, first: int, last: int, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, ...]:
        """A segment of which so many states are kept, where the binomial schedule says."""
        if last - first < 2:
            return self.segment(first, last, q, qd, memory)
        middle = first + next_checkpoint(last - first, states)
        run = partial(_halved, states)
        *after, qs, qds = recompute_in_backward(run, self, first, middle, q, qd, memory)
        *end, more, further = self.halved(max(states - 1, 0), middle, last, *after)
        return *end, torch.cat([qs, more], -2), torch.cat([qds, further], -2)

    def one(self, k: int, q: Tensor, qd: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """State and memory after one step; of samples that have ended, as they were."""
        f_ext, t = self.f_ext, self.t0 + k * self.dt
        wrenches = f_ext.at(k) if isinstance(f_ext, Series) else f_ext
        if self.ends is None:
            control, memory = self.forces.over(k, t, q, qd, memory)
            return *self.advance(t, q, qd, control, wrenches), memory
        going, before = self.ends.going(k), (q, qd, memory)
        q, qd, memory = select_running(going, before, self.ends.rest)
        control, memory = self.forces.over(k, t, q, qd, memory)
        end = self.advance(t, q, qd, mask_forces(going, control), mask_forces(going, wrenches, 2))
        return select_running(going, (*end, memory), before)

    def advance(
        self,
        t: float,
        q: Tensor,
        qd: Tensor,
        control: Tensor | Policy | ImplicitForce,
        wrenches: Tensor | Wrenches | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The state one step later."""
        given, robot, push = self._opposed(q, qd, control)
        rows = None
        if isinstance(control, ImplicitForce):
            rows = control if control.rows is not None else None
            control = control.push
        fixed = isinstance(control, Tensor) and not callable(wrenches)
        held = fixed or self.method in SAMPLED_ONCE
        if (
            held
            and rows is None
            and isinstance(self.method, str)
            and "step" in fused_methods_of(given)
        ):
            tau = _sampled(control, t, q, qd, push)
            others = wrenches_at(wrenches, t, q, qd)
            return cast(Any, given).step(q, qd, tau, self.dt, *others, method=self.method)

        def accelerate(
            mech: Mechanism, t: float, q: Tensor, qd: Tensor, force: Tensor | None = None
        ) -> Tensor:
            tau = _sampled(control, t, q, qd, push, force)
            # A step may ask for another mechanism, of which there are no kernels.
            at = given if mech is robot else mech
            free = forward_dynamics(at, q, qd, tau, *wrenches_at(wrenches, t, q, qd))
            return free if rows is None else _answered(rows, mech, q, qd, free, self.dt)

        return self.step(robot, accelerate, t, q, qd, self.dt)

    def _opposed(
        self, q: Tensor, qd: Tensor, control: Tensor | Policy | ImplicitForce
    ) -> tuple[MechanismLike, Mechanism, Tensor | None]:
        """What steps from this state: as given, and its numbers; and the force of the limits.

        What limits and a control oppose to the velocity after the step is damping of its joints.
        """
        damping, push = self.robot.damping, None
        if isinstance(control, ImplicitForce):
            damping = damping + control.damping
        if self.limits is not None:
            more, push = self.limits.act(self.robot, q, qd, self.dt)
            damping = damping + among_all_dofs(self.robot, more)
        if damping is self.robot.damping:
            return self.given, self.robot, None
        given = cast(Any, self.given).replace(damping=damping)
        return given, as_mechanism(given), push


_OF_NUMBERS = (
    *(SemiImplicitEuler, ImplicitEuler, NewmarkBeta, RungeKutta),
    *(AdaptiveRungeKutta, ImplicitMidpoint, Variational),
)
"""Steps that read nothing but their arguments and their own numbers."""


def _is_of_numbers(step: Step) -> bool:
    """Whether a step is one of these, and none of its numbers a tensor, which might want a gradient."""
    held = type(step) in _OF_NUMBERS and vars(step).values()
    return bool(held) and not any(isinstance(x, Tensor) for x in held)


def _halved(states: int, simulation: Simulation, *span: Any) -> tuple[Tensor, ...]:
    return simulation.halved(states, *span)


def _sampled(
    control: Tensor | Policy, t: float, q: Tensor, qd: Tensor, *others: Tensor | None
) -> Tensor:
    """The forces of a control at a state, and others added."""
    tau = control if isinstance(control, Tensor) else control(t, q, qd)
    for force in others:
        tau = tau if force is None else tau + force
    return tau


def _answered(
    answer: ImplicitForce, mech: Mechanism, q: Tensor, qd: Tensor, free: Tensor, dt: float | Tensor
) -> Tensor:
    """The acceleration with rows that answer, of that without: (M + h R* d R) (qdd - free) = -R* d R v'."""
    R, d = cast(Tensor, answer.rows), cast(Tensor, answer.row_damping)
    h = dt[..., None] if isinstance(dt, Tensor) else dt
    D = R.mT @ (d[..., None] * R)
    loss = matvec(D, qd + dt * free)
    return free - solve_without_pivots(mass_matrix(mech, q) + h * D, loss, scalar=mech.scalar)


def _joined(states: list[Tensor], like: Tensor) -> Tensor:
    if not states:
        return like[..., None, :][..., :0, :]
    return states[0] if len(states) == 1 else torch.cat(states, -2)
