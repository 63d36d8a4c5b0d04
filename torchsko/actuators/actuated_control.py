"""Actuators as a controller of `torchsko.rollout`, with activations and delayed controls as memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchsko.actuators.actuator_forces import ActuatorState, check_width
from torchsko.actuators.actuators import Actuators
from torchsko.actuators.controller import Controller
from torchsko.actuators.delay import Delay
from torchsko.actuators.implicit_forces import ImplicitForce, implicit_force
from torchsko.actuators.law import Named, as_step_series, law_of
from torchsko.actuators.sampled_control import SampledControl
from torchsko.actuators.tendons import Tendons
from torchsko.bridge.kinematics import Kinematics
from torchsko.errors import ShapeError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import is_expandable

CTRL = "ctrl"
"""Name of the controls among the tensors of a rollout."""


@dataclass(frozen=True, eq=False)
class ActuatedControl(Controller):
    """Controls through actuators: a `Controller` for `torchsko.rollout`.

    Activations advance once per step, as in MuJoCo. Implicit forces act at the state after the step, to first
    order, and are stable for any stiffness; "velocity" corresponds to MuJoCo's "implicitfast".

    Attributes:
        actuators: of the mechanism of the rollout.
        ctrl: controls `[*batch, n]`, constant over all steps, a series `[*batch, steps, n]`, or a function of
            time [s], q and qd with the arguments of a control of `torchsko.rollout`.
        activation: at the start, `[*batch, m]`; default zero.
        implicit: None: forces are those at the start of a step. "velocity": their damping acts at the
            velocity after the step. "position": their stiffness as well. For the methods
            "semi_implicit_euler" and "implicit"; a `torchsko.ContactStep` has an integrator instead.
        tendons: tendons whose springs and dampers act as well. In a `torchsko.ContactStep` they act in place
            of those of the robot file.
        delay: of the controls.
    """

    actuators: Actuators
    ctrl: Tensor | Callable[..., Tensor]
    activation: Tensor | None = None
    implicit: Literal["velocity", "position"] | None = None
    tendons: Tendons | None = None
    delay: Delay | None = None

    def initial_memory(self, q: Tensor, qd: Tensor) -> Tensor:
        """Activations and delayed controls at the start, `[*batch, m + delayed controls]`."""
        count = len(self.actuators.activation_names)
        zero = qd.new_zeros(*qd.shape[:-1], count)
        memory = zero if self.activation is None else zero + self.activation
        if self.delay is None:
            return memory
        return torch.cat([memory, self.delay.initial_queue(qd, len(self.actuators.names))], -1)

    def inputs(self, steps: int, dt: float | Tensor, batch: Sequence[int]) -> tuple[Named, Named]:
        """Controls that are a tensor, as parameter or series."""
        if self.delay is not None:
            self.delay.check_step(dt)
        if not isinstance(self.ctrl, Tensor):
            return {}, {}
        n = len(self.actuators.names)
        check_width("ctrl", self.ctrl, n)
        series = as_step_series("ctrl", self.ctrl, (n,), steps, batch)
        if not is_expandable(tuple(series.shape[:-2]), tuple(batch)):
            raise ShapeError(
                f"ctrl has shape {list(self.ctrl.shape)}, the state has the batch {list(batch)}.",
                "A rollout keeps its batch shape.",
                "Expand q and qd to the batch of ctrl before the rollout.",
            )
        return {}, {CTRL: series.expand(*batch, *series.shape[-2:])}

    def act(
        self,
        mech: Mechanism,
        t: float,
        dt: float,
        q: Tensor,
        qd: Tensor,
        memory: Tensor,
        **inputs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Joint forces `[*batch, num_dof]`, and the memory at t + dt."""
        _, tau, memory = self._evaluate(mech, t, dt, q, qd, memory, inputs)
        return tau, memory

    @property
    def acts_implicitly(self) -> bool:
        """True if forces act at the state after a step."""
        return self.implicit is not None

    def act_implicitly(
        self,
        mech: Mechanism,
        t: float,
        dt: float,
        q: Tensor,
        qd: Tensor,
        memory: Tensor,
        **inputs: Tensor,
    ) -> tuple[ImplicitForce, Tensor]:
        """Joint forces that depend on the velocity at t + dt, and the memory there."""
        state, tau, memory = self._evaluate(mech, t, dt, q, qd, memory, inputs)
        slopes = state.slopes()
        if self.tendons is not None:
            slopes = slopes.concatenate(self.tendons.slopes(state.kinematics))
        return implicit_force(mech, tau, slopes, qd, dt, self.implicit == "position"), memory

    def sample(
        self, mech: Mechanism, t: float, q: Tensor, qd: Tensor, memory: Tensor, inputs: Named
    ) -> SampledControl:
        """Controls that arrive at the actuators at t, for a step that evaluates the actuators."""
        if isinstance(self.ctrl, Tensor):
            ctrl = inputs[CTRL]
        else:
            example = "a function such as lambda t, q, qd: target"
            law = law_of("ctrl", self.ctrl, tuple(inputs), "controls of the actuators", example)
            ctrl = law(mech, t, q, qd, inputs)
        activation, queue = memory, memory[..., :0]
        if self.delay is not None:
            count = len(self.actuators.activation_names)
            activation, queue = memory[..., :count], memory[..., count:]
            ctrl, queue = self.delay.advance(ctrl, queue)
        return SampledControl(ctrl, self.actuators, activation, queue, self.tendons)

    def _evaluate(
        self,
        mech: Mechanism,
        t: float,
        dt: float,
        q: Tensor,
        qd: Tensor,
        memory: Tensor,
        inputs: Named,
    ) -> tuple[ActuatorState, Tensor, Tensor]:
        """The actuators, joint forces of actuators and tendons, and the memory at t + dt."""
        sampled = self.sample(mech, t, q, qd, memory, inputs)
        activation, ctrl = sampled.activation, sampled.ctrl
        state = Kinematics.of(mech, q, qd)
        at = ActuatorState.at(state, self.actuators, activation, ctrl, dt)
        tau = at.gen_force
        if self.tendons is not None:
            tau = tau + self.tendons.gen_force(state)
        after = self.actuators.next_activation(activation, at.rate, dt)
        return at, tau, sampled.memory(after)
