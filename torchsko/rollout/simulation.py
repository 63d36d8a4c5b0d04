"""How a rollout steps: by tensors one step at a time, by kernels of steps, or by one kernel of them all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import gcd
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.actuation.answer import Answer
from torchsko.elimination import solve_without_pivots
from torchsko.errors import FusedError
from torchsko.mechanism.coordinates import among_all_dofs
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.verb import MechanismLike, as_mechanism, kernels_of
from torchsko.rollout.again import without_tape
from torchsko.rollout.binomial import Binomial, split
from torchsko.rollout.control import Controller, Effort, Forces, Policy
from torchsko.rollout.external import Wrenches, wrenches_at, wrenches_over
from torchsko.rollout.limits import LimitSprings
from torchsko.rollout.series import Series
from torchsko.rollout.step import Step
from torchsko.verbs.dynamics import forward_dynamics, mass_matrix

SAMPLED_ONCE = ("semi_implicit_euler", "implicit")
"""Methods that ask for the forces once, at the start of the step."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """What one rollout steps: the mechanism, and the kernels given for it (or itself), forces, method."""

    given: MechanismLike
    robot: Mechanism
    forces: Forces
    dt: float
    method: str | Step
    step: Step
    limits: LimitSprings | None
    every: int = 1
    truncate: int | None = None
    f_ext: Series | Wrenches | None = None

    def by_steps(self) -> Simulation:
        """The same, ready for `run`: forces given as a series are taken apart."""
        return replace(self, forces=self.forces.by_steps())

    def run(
        self, q: Tensor, qd: Tensor, steps: int, checkpoint: int | Binomial | None
    ) -> tuple[Tensor, Tensor]:
        """All states, joined only once: what is joined exists twice while it is."""
        qs, qds, memory = [q[..., None, :]], [qd[..., None, :]], self.forces.memory(q, qd)
        window = self.truncate or max(steps, 1)
        stride = window if isinstance(checkpoint, Binomial) else checkpoint or 1
        edges = sorted({*range(0, steps, stride), *range(0, steps, window), steps})
        for first, last in pairwise(edges):
            if self.truncate and first and first % window == 0:
                q, qd, memory = q.detach(), qd.detach(), memory.detach()
            span = (first, last, q, qd, memory)
            if isinstance(checkpoint, Binomial):
                q, qd, memory, *states = self.halved(checkpoint.states, *span)
            else:
                kept = checkpoint is None
                run = self.segment if kept else partial(without_tape, Simulation.segment, self)
                q, qd, memory, *states = run(*span)
            qs.append(states[0])
            qds.append(states[1])
        joined = torch.cat(qs, -2)
        qs.clear()
        return joined, torch.cat(qds, -2)

    @property
    def known(self) -> bool:
        """Whether all that steps read are the mechanism's parameters and series: no function decides."""
        named = self.given is self.robot and isinstance(self.method, str) and self.limits is None
        fixed = named and not callable(self.f_ext) and not isinstance(self.dt, Tensor)
        return fixed and isinstance(self.forces.source, Tensor)

    def has_a_kernel(self, steps: int) -> bool:
        """Whether all steps are one kernel by themselves: what no function decides on."""
        plain = self.limits is None and self.f_ext is None and self.truncate is None
        known = isinstance(self.method, str) and plain and steps > 1
        given = known and isinstance(self.forces.source, Tensor)
        return (
            given and "trajectory" in kernels_of(self.given) and not torch.compiler.is_compiling()
        )

    def run_at_once(
        self, q: Tensor, qd: Tensor, steps: int, checkpoint: int | Binomial | None
    ) -> tuple[Tensor, Tensor]:
        """All states, from one kernel; of those that a checkpoint keeps for it every so many are given."""
        if self.f_ext is not None or self.truncate is not None:
            raise FusedError(_BY_STEPS)
        forces, given, every = self.forces, cast(Any, self.given), self.every
        if isinstance(checkpoint, int):
            every = gcd(checkpoint, every)
        series = forces.series()
        if series is not None and isinstance(self.method, str) and self.limits is None:
            choices = {"method": self.method, "every": every}
            qs, qds = given.trajectory(q, qd, series, steps, self.dt, **choices)
        elif isinstance(forces.source, Tensor):  # limits, or a step of the user's own
            raise FusedError(_NOT_GIVEN)
        else:
            step = ControlledStep(
                forces.source, forces.effort, self.dt, self.method, self.step, self.limits
            )
            qs, qds = given.driven(step, q, qd, forces.memory(q, qd), steps, every)
        if every == self.every:
            return qs, qds
        rows = slice(0, steps // self.every * self.every // every + 1, self.every // every)
        return qs[..., rows, :], qds[..., rows, :]

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
            control, memory = self.forces.over(k, q, qd, memory)
            q, qd = self.advance(k * self.dt, q, qd, control, wrenches_over(self.f_ext, k))
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
        middle = first + split(last - first, states)
        run = partial(_halved, states)
        *after, qs, qds = without_tape(run, self, first, middle, q, qd, memory)
        *end, more, further = self.halved(max(states - 1, 0), middle, last, *after)
        return *end, torch.cat([qs, more], -2), torch.cat([qds, further], -2)

    def advance(
        self,
        t: float,
        q: Tensor,
        qd: Tensor,
        control: Tensor | Policy | Answer,
        wrenches: Tensor | Wrenches | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The state one step later."""
        given, robot, push = self._opposed(q, qd, control)
        rows = None
        if isinstance(control, Answer):
            rows = control if control.rows is not None else None
            control = control.push
        fixed = isinstance(control, Tensor) and not callable(wrenches)
        held = fixed or self.method in SAMPLED_ONCE
        if held and rows is None and isinstance(self.method, str) and "step" in kernels_of(given):
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
        self, q: Tensor, qd: Tensor, control: Tensor | Policy | Answer
    ) -> tuple[MechanismLike, Mechanism, Tensor | None]:
        """What steps from this state: as given, and its numbers; and the force of the limits.

        What limits and a control oppose to the velocity after the step is damping of its joints.
        """
        damping, push = self.robot.damping, None
        if isinstance(control, Answer):
            damping = damping + control.damping
        if self.limits is not None:
            more, push = self.limits.act(self.robot, q, qd, self.dt)
            damping = damping + among_all_dofs(self.robot, more)
        if damping is self.robot.damping:
            return self.given, self.robot, None
        given = cast(Any, self.given).replace(damping=damping)
        return given, as_mechanism(given), push


@dataclass(frozen=True, eq=False)
class ControlledStep:
    """A step under a control, of one sample: what a kernel repeats.

    Attributes:
        source: the control.
        effort: see `rollout`.
        dt: time step [s].
        method: see `rollout`.
        step: of the method.
        limits: see `rollout`.
    """

    source: Policy | Controller
    effort: Effort
    dt: float
    method: str | Step
    step: Step
    limits: LimitSprings | None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for steps that do the same: those under one control, with the same choices."""
        return self.source, self.effort, self.dt, self.method, self.limits

    def __call__(
        self, mech: Mechanism, q: Tensor, qd: Tensor, memory: Tensor, t: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The next state and memory."""
        forces = Forces(mech, self.source, torch.Size(), self.dt, self.effort)
        once = Simulation(mech, mech, forces, self.dt, self.method, self.step, self.limits)
        control, memory = forces.asked(t, q, qd, memory)
        return *once.advance(cast(float, t), q, qd, control), memory


def _halved(states: int, simulation: Simulation, *span: Any) -> tuple[Tensor, ...]:
    return simulation.halved(states, *span)


_NOT_GIVEN = (
    "fused=True was given with forces as a tensor, and limits or a method of your own.\n"
    "Which kernel that is depends on a function.\n"
    "Pass the control as a function, such as lambda t, q, qd: tau, or leave fused out."
)

_BY_STEPS = (
    "fused=True was given with f_ext= or truncate=.\n"
    "These act on single steps; a kernel of all steps knows neither.\n"
    "Leave fused out: each step is a kernel then."
)


def _sampled(
    control: Tensor | Policy, t: float, q: Tensor, qd: Tensor, *others: Tensor | None
) -> Tensor:
    """The forces of a control at a state, and others added."""
    tau = control if isinstance(control, Tensor) else control(t, q, qd)
    for force in others:
        tau = tau if force is None else tau + force
    return tau


def _answered(
    answer: Answer, mech: Mechanism, q: Tensor, qd: Tensor, free: Tensor, dt: float | Tensor
) -> Tensor:
    """The acceleration with rows that answer, of that without: (M + h R* d R) (qdd - free) = -R* d R v'."""
    R, d = cast(Tensor, answer.rows), cast(Tensor, answer.row_damping)
    h = dt[..., None] if isinstance(dt, Tensor) else dt
    D = R.mT @ (d[..., None] * R)
    loss = (D @ (qd + dt * free)[..., None])[..., 0]
    return free - solve_without_pivots(mass_matrix(mech, q) + h * D, loss, scalar=mech.scalar)


def _joined(states: list[Tensor], like: Tensor) -> Tensor:
    if not states:
        return like[..., None, :][..., :0, :]
    return states[0] if len(states) == 1 else torch.cat(states, -2)
