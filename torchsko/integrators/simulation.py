"""Stepping of a rollout: in eager mode, or by kernels of single steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.actuators.implicit_forces import ImplicitForce
from torchsko.actuators.law import LawInputs, Named
from torchsko.actuators.sampled_control import SampledControl
from torchsko.bridge.kinematics import Kinematics
from torchsko.integrators.binomial import Binomial, next_checkpoint
from torchsko.integrators.contact_integrator import ResolvedContactStep
from torchsko.integrators.controls import Forces, JointForce, StateLaw, StepForce
from torchsko.integrators.early_termination import (
    EarlyTermination,
    borrow_running,
    mask_forces,
    select_running,
)
from torchsko.integrators.external import CheckedWrenches, StepWrenches, wrenches_at
from torchsko.integrators.limit_springs import LimitSprings
from torchsko.integrators.recompute import recompute_in_backward
from torchsko.integrators.series import Series
from torchsko.integrators.step import Dynamics, Integrator, RowDamping, Step, StepWithResults
from torchsko.mechanism.coordinates import scatter_dofs
from torchsko.mechanism.dispatch import MechanismLike, fused_methods_of
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec
from torchsko.verbs.dynamics import forward_dynamics


@dataclass(frozen=True, eq=False)
class Simulation:
    """All data of one rollout.

    `fast` is the fused mechanism, or `robot` without kernels. `lengths` are the numbers of steps of each
    sample if they differ, and `termination` adds the initial state to them; `t0` is the start time [s].
    `records_forces` adds the joint forces of laws and controllers to the results of steps, and `inputs` are
    tensors that laws take by name; `rows` are those as of each step, and the step takes `step_names` of them.
    """

    fast: MechanismLike
    robot: Mechanism
    forces: Forces
    dt: float
    method: str | Step | StepWithResults
    step: Step | StepWithResults
    limits: LimitSprings | None
    every: int = 1
    truncate: int | None = None
    f_ext: Tensor | Series | CheckedWrenches | None = None
    lengths: Tensor | None = None
    termination: EarlyTermination | None = None
    t0: float = 0.0
    inputs: LawInputs = field(default_factory=lambda: LawInputs({}, {}))
    records_forces: bool = False
    rows: Mapping[str, Tensor | Series] = field(default_factory=dict)
    step_names: tuple[str, ...] = ()

    def unbound(self) -> Simulation:
        """A copy for `run`, with series of forces split into steps, and the data of a contact step."""
        f_ext = Series.of(self.f_ext, -3) if isinstance(self.f_ext, Tensor) else self.f_ext
        lead, inputs = len(self.forces.batch), self.inputs
        series = {name: Series.of(x, lead) for name, x in inputs.series.items()}
        rows = {**inputs.params, **series}
        forces = self.forces.unbound().resolved()
        return replace(self, forces=forces, f_ext=f_ext, rows=rows)

    def run(
        self, q: Tensor, qd: Tensor, steps: int, checkpoint: int | Binomial | None
    ) -> tuple[list[Tensor], Tensor]:
        """All states and results, and the last memory. They are joined once, since joining doubles memory."""
        memory = self.forces.memory(q, qd)
        parts = [[q[..., None, :]], [qd[..., None, :]], *([[]] if self.records_forces else [])]
        simulation = self.from_state(q, qd, memory)
        window = self.truncate or max(steps, 1)
        stride = window if isinstance(checkpoint, Binomial) else checkpoint or 1
        edges = sorted({*range(0, steps, stride), *range(0, steps, window), steps})
        for first, last in pairwise(edges):
            if self.truncate and first and first % window == 0:
                q, qd, memory = q.detach(), qd.detach(), memory.detach()
            span = (first, last, q, qd, memory)
            if isinstance(checkpoint, Binomial):
                q, qd, memory, *series = simulation.binomial_segment(checkpoint.states, *span)
            elif checkpoint is None:
                q, qd, memory, *series = simulation.segment(*span)
            else:
                after = recompute_in_backward(Simulation.segment, simulation, *span)
                q, qd, memory, *series = after
            parts += [[] for _ in series[len(parts) :]]
            for part, found in zip(parts, series, strict=True):
                part.append(found)
        joined, lead = [], q.dim() - 1
        for part in parts:
            joined.append(_joined(part, qd, lead))
            part.clear()
        return joined, memory

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
            and self.forces.contact_step is None
        )

    def _series(self) -> list[Tensor | Series]:
        """Tensors and series on which steps depend besides the state and the mechanism."""
        of_step = [self.rows[name] for name in self.step_names]
        found = (self.forces.rows, self.f_ext, *of_step)
        return [x for x in found if isinstance(x, Tensor | Series)]

    def inputs_of(self, first: int, last: int) -> list[Tensor]:
        """Tensors on which a range of steps depends besides the state."""
        rows = [
            row
            for x in self._series()
            for row in (x.part(first, last) if isinstance(x, Series) else (x,))
        ]
        return [*(getattr(self.robot, name) for name in PARAMETERS), *rows]

    def with_inputs(self, first: int, last: int, inputs: Sequence[Tensor]) -> Simulation:
        """The simulation for a range of steps with other tensors in place of `inputs_of`."""
        rest = iter(inputs)
        robot = replace(self.robot, **{name: next(rest) for name in PARAMETERS})

        def part(x: Any) -> Any:
            if isinstance(x, Series):
                return Series(tuple(next(rest) for _ in x.part(first, last)), first)
            return next(rest) if isinstance(x, Tensor) else x

        forces = replace(self.forces, mech=robot, rows=part(self.forces.rows))
        f_ext = part(self.f_ext)
        of_step = {name: part(self.rows[name]) for name in self.step_names}
        rows = {**self.rows, **of_step}
        return replace(self, fast=robot, robot=robot, forces=forces, f_ext=f_ext, rows=rows)

    def segment(
        self, first: int, last: int, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, ...]:
        """State and memory after a range of steps, and states and results `[*batch, last - first, ...]`.

        The final state is a separate tensor, since the next segment keeps its start: a view would keep all
        states of this one. The other states are one tensor: many small ones would fragment the heap.
        """
        parts: list[list[Tensor]] = [[], []]
        applied: list[Tensor] = []
        lead = q.dim() - 1
        for k in range(first, last):
            q, qd, memory, *applied = self.step_once(k, q, qd, memory)
            if (k + 1) % self.every:
                continue
            parts += [[] for _ in applied[len(parts) - 2 :]]
            # Views are taken here, so that gradients accumulate step by step.
            for part, x in zip(parts, (q, qd, *applied), strict=True):
                part.append(x.unsqueeze(lead))
        like = (q, qd, *applied)
        parts += [[] for _ in like[len(parts) :]]
        return q, qd, memory, *(_joined(x, y, lead) for x, y in zip(parts, like, strict=True))

    def binomial_segment(
        self, states: int, first: int, last: int, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, ...]:
        """A segment with a number of stored states, by the binomial schedule."""
        if last - first < 2:
            return self.segment(first, last, q, qd, memory)
        middle = first + next_checkpoint(last - first, states)
        run = partial(_binomial_segment, states)
        found = recompute_in_backward(run, self, first, middle, q, qd, memory)
        end = self.binomial_segment(max(states - 1, 0), middle, last, *found[:3])
        pairs = zip(found[3:], end[3:], strict=True)
        return *end[:3], *(torch.cat(pair, q.dim() - 1) for pair in pairs)

    def step_once(self, k: int, q: Tensor, qd: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
        """State, memory and results after one step; the state is unchanged in ended samples."""
        f_ext, ends, t = self.f_ext, self.termination, self.t0 + k * self.dt
        rows = {name: x.at(k) if isinstance(x, Series) else x for name, x in self.rows.items()}
        wrenches = f_ext.at(k) if isinstance(f_ext, Series) else f_ext
        if ends is None:
            if isinstance(wrenches, CheckedWrenches):
                wrenches = wrenches.with_inputs(rows)
            control, memory = self.forces.at_step(k, t, q, qd, memory, rows)
            return self.advance(t, q, qd, memory, control, wrenches, rows)
        running, before = ends.running(k), (q, qd, memory)
        t = self.t0 if ends.have_ended(k) else t
        q, qd, memory = select_running(running, before, ends.rest)
        of_laws = dict(zip(rows, borrow_running(running, *rows.values()), strict=True))
        if isinstance(wrenches, CheckedWrenches):
            wrenches = wrenches.with_inputs(of_laws)
        state = (q, qd, memory)
        if callable(self.forces.source):
            state = borrow_running(running, *state)
        control, memory = self.forces.at_step(k, t, state[0], state[1], state[2], of_laws)
        control, wrenches = mask_forces(running, control), mask_forces(running, wrenches, 2)
        after = self.advance(t, q, qd, memory, control, wrenches, rows)
        return *select_running(running, after[:3], before), *after[3:]

    def advance(
        self,
        t: float,
        q: Tensor,
        qd: Tensor,
        memory: Tensor,
        control: StepForce,
        f_ext: StepWrenches,
        rows: Named,
    ) -> tuple[Tensor, ...]:
        """State and memory one step later, the joint forces if recorded, and further results of the step."""
        if isinstance(control, SampledControl):
            return self._advance_with_contact(t, q, qd, control, f_ext, rows)
        q, qd, *results = self._advance_and_force(t, q, qd, control, f_ext, rows)
        return q, qd, memory, *results

    def _advance_with_contact(
        self,
        t: float,
        q: Tensor,
        qd: Tensor,
        control: SampledControl,
        f_ext: StepWrenches,
        rows: Named,
    ) -> tuple[Tensor, ...]:
        """`advance` for a `torchsko.ContactStep`."""
        parameters = {name: rows[name] for name in self.step_names}
        wrenches = wrenches_at(f_ext, t, q, qd)
        step = cast(ResolvedContactStep, self.forces.contact_step)
        result = step.advance(self.robot, control, q, qd, self.dt, wrenches, parameters)
        after = result.state
        applied = (result.applied.expand_as(qd),) if self.records_forces else ()
        activations = (after.act,) if control.activation.shape[-1] else ()
        results = *applied, result.forces(), after.residual, *activations
        return after.q, after.qd, control.memory(after.act), *results

    def _advance_and_force(
        self, t: float, q: Tensor, qd: Tensor, control: JointForce, f_ext: StepWrenches, rows: Named
    ) -> tuple[Tensor, ...]:
        """The state one step later, the joint forces if recorded, and further results of the step."""
        if not self.records_forces:
            return self._advance(t, q, qd, control, f_ext, rows)
        if isinstance(control, ImplicitForce):
            q, qd, *results = self._advance(t, q, qd, control, f_ext, rows)
            return q, qd, _force_at_end(control, self.robot, q, qd).expand_as(qd), *results
        start = qd
        if not isinstance(control, Tensor):
            # An evaluation for the record alone would be one more than the integrator needs.
            single = cast(Integrator, self.step).single_evaluation
            control = control(t, q, qd) if single else FirstForce(control)
        q, qd, *results = self._advance(t, q, qd, control, f_ext, rows)
        applied = control.value if isinstance(control, FirstForce) else control
        return q, qd, applied.expand_as(start), *results

    def _advance(
        self, t: float, q: Tensor, qd: Tensor, control: JointForce, f_ext: StepWrenches, rows: Named
    ) -> tuple[Tensor, ...]:
        fast, (robot, damping, push) = self.fast, self._with_damping(q, qd, control)
        coupled = None
        if isinstance(control, ImplicitForce):
            if control.rows is not None:
                coupled = RowDamping(control.rows, cast(Tensor, control.row_damping), self.dt)
            control = control.push
        constant = isinstance(control, Tensor) and not callable(f_ext)
        single = constant or (isinstance(self.step, Integrator) and self.step.single_evaluation)
        if (
            single
            and coupled is None
            and isinstance(self.method, str)
            and "advance" in fused_methods_of(fast)
        ):
            tau = _total_force(control, t, q, qd, push)
            kernels, arguments = cast(Any, fast), (q, qd, tau, self.dt)
            external = wrenches_at(f_ext, t, q, qd)
            if damping is None:
                return kernels.advance_tensors(*arguments, external, method=self.method)
            return kernels.advance_damped(*arguments, external, damping, method=self.method)

        def acceleration(
            mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None
        ) -> Tensor:
            # An integrator may change the mechanism; there are no kernels for that one.
            return forward_dynamics(fast if mech is self.robot else mech, q, qd, tau, f_ext)

        dynamics = Dynamics(
            lambda t, q, qd: _total_force(control, t, q, qd, push),
            partial(wrenches_at, f_ext),
            acceleration,
            row_damping=coupled,
        )
        taken = {name: rows[name] for name in self.step_names}
        return self.step(robot, dynamics, t, q, qd, self.dt, **taken)

    def _with_damping(
        self, q: Tensor, qd: Tensor, control: JointForce
    ) -> tuple[Mechanism, Tensor | None, Tensor | None]:
        """The mechanism with the damping of limits and implicit forces, if any; and the force of limits."""
        damping, push = self.robot.damping, None
        if isinstance(control, ImplicitForce):
            damping = damping + control.damping
        if self.limits is not None:
            limit_damping, push = self.limits.forces(self.robot, q, qd, self.dt)
            damping = damping + scatter_dofs(self.robot, limit_damping)
        if damping is self.robot.damping:
            return self.robot, None, None
        return self.robot.replace(damping=damping), damping, push


class FirstForce:
    """A law of joint forces over one step that records its first value."""

    value: Tensor

    def __init__(self, law: StateLaw) -> None:
        self._law = law

    def __call__(self, t: float, q: Tensor, qd: Tensor) -> Tensor:
        """The value of the law."""
        tau = self._law(t, q, qd)
        if not hasattr(self, "value"):
            self.value = tau
        return tau


def _has_constants_only(step: Step | StepWithResults) -> bool:
    """True if a step is an integrator without objects, whose tensors might require a gradient."""
    return isinstance(step, Integrator) and all(map(_is_constant, vars(step).values()))


def _is_constant(x: object) -> bool:
    if isinstance(x, tuple):
        return all(map(_is_constant, x))
    return isinstance(x, int | float | None)


def _binomial_segment(states: int, simulation: Simulation, *span: Any) -> tuple[Tensor, ...]:
    return simulation.binomial_segment(states, *span)


def _total_force(
    control: Tensor | StateLaw, t: float, q: Tensor, qd: Tensor, push: Tensor | None
) -> Tensor:
    """The force of a control at a state, plus that of limits."""
    tau = control if isinstance(control, Tensor) else control(t, q, qd)
    return tau if push is None else tau + push


def _force_at_end(force: ImplicitForce, mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """An implicit force at the velocity after the step."""
    state = Kinematics.of(mech, q, qd)
    tau = force.push - state.independent_forces(force.damping * state.tree_qd)
    if force.rows is None:
        return tau
    rates = cast(Tensor, force.row_damping) * matvec(force.rows, qd)
    return tau - matvec(force.rows.mT, rates)


def _joined(states: list[Tensor], like: Tensor, lead: int) -> Tensor:
    if not states:
        return like.unsqueeze(lead).narrow(lead, 0, 0)
    return states[0] if len(states) == 1 else torch.cat(states, lead)
