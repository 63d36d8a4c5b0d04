"""Actuators as a controller of `torchsko.rollout`, with activations and delayed controls as memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchsko.actuation.actuator_forces import actuate, actuate_with_slopes
from torchsko.actuation.actuators import Actuators
from torchsko.actuation.controller import Controller
from torchsko.actuation.delay import Delay
from torchsko.actuation.implicit_forces import ImplicitForce, implicit_force
from torchsko.actuation.tendons import Tendons
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism


@dataclass(frozen=True, eq=False)
class ActuatedControl(Controller):
    """Controls through actuators: a `Controller` for `torchsko.rollout`.

    Activations advance once per step, as in MuJoCo. Implicit forces act at the state after the step, to first
    order, and are stable for any stiffness; "velocity" corresponds to MuJoCo's "implicitfast".

    Attributes:
        mech: the mechanism.
        actuators: of the mechanism.
        ctrl: controls `[*batch, n]`, constant over all steps, or a function of time [s], q and qd.
        activation: at the start, `[*batch, m]`; default zero.
        implicit: None: forces are those at the start of a step. "velocity": their damping acts at the
            velocity after the step. "position": their stiffness as well. For the methods
            "semi_implicit_euler" and "implicit".
        tendons: tendons whose springs and dampers act as well.
        delay: of the controls.
    """

    mech: MechanismLike
    actuators: Actuators
    ctrl: Tensor | Callable[[float, Tensor, Tensor], Tensor]
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

    def act(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Joint forces `[*batch, num_dof]`, and the memory at t + dt."""
        activation, ctrl, queue = self._inputs(t, dt, q, qd, memory)
        tau, rate = actuate(self.mech, self.actuators, q, qd, activation, ctrl=ctrl, dt=dt)
        if self.tendons is not None:
            tau = tau + self.tendons.force(self.mech, q, qd)
        return tau, self._next_memory(activation, rate, dt, queue)

    @property
    def acts_implicitly(self) -> bool:
        """True if forces act at the state after a step."""
        return self.implicit is not None

    def act_implicitly(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[ImplicitForce, Tensor]:
        """Joint forces that depend on the velocity at t + dt, and the memory there."""
        mech = as_mechanism(self.mech)
        activation, ctrl, queue = self._inputs(t, dt, q, qd, memory)
        tau, rate, slopes = actuate_with_slopes(mech, self.actuators, q, qd, activation, ctrl, dt)
        if self.tendons is not None:
            tau = tau + self.tendons.force(mech, q, qd)
            slopes = slopes.concatenate(self.tendons.slopes(mech, q))
        force = implicit_force(mech, tau, slopes, qd, dt, self.implicit == "position")
        return force, self._next_memory(activation, rate, dt, queue)

    def _inputs(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Activations, the delayed controls that arrive, and those then in the queue."""
        ctrl = self.ctrl if isinstance(self.ctrl, Tensor) else self.ctrl(t, q, qd)
        if self.delay is None:
            return memory, ctrl, None
        count = len(self.actuators.activation_names)
        arrived, queue = self.delay.advance(ctrl, memory[..., count:], dt)
        return memory[..., :count], arrived, queue

    def _next_memory(
        self, activation: Tensor, rate: Tensor, dt: float, queue: Tensor | None
    ) -> Tensor:
        activation = self.actuators.next_activation(activation, rate, dt)
        return activation if queue is None else torch.cat([activation, queue], -1)
