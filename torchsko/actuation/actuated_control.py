"""Actuators as a control of `torchsko.rollout`: it remembers activations, and controls on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchsko.actuation.actuator_forces import actuate, actuate_with_slopes
from torchsko.actuation.actuators import Actuators
from torchsko.actuation.delay import Delay
from torchsko.actuation.implicit_forces import ImplicitController, ImplicitForce, implicit_force
from torchsko.actuation.tendons import Tendons
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism


@dataclass(frozen=True, eq=False)
class ActuatedControl(ImplicitController):
    """Controls through actuators: a `Controller` for `torchsko.rollout`.

    Activations go on by the step, as in MuJoCo. What is implicit acts at the state after the step, to first
    order, and is then stable however stiff it is; "velocity" steps as MuJoCo's "implicitfast" does.

    Attributes:
        mech: the mechanism.
        actuators: of it.
        ctrl: controls `[*batch, n]`, the same for every step, or a function of time [s], q and qd.
        activation: at the start, `[*batch, m]`; zero when left out.
        implicit: None: forces are those at the start of a step. "velocity": their damping acts at the
            velocity after it. "position": their stiffness, too. For the methods "semi_implicit_euler" and
            "implicit".
        tendons: whose springs and dampers act, too.
        delay: of the controls.
    """

    mech: MechanismLike
    actuators: Actuators
    ctrl: Tensor | Callable[[float, Tensor, Tensor], Tensor]
    activation: Tensor | None = None
    implicit: Literal["velocity", "position"] | None = None
    tendons: Tendons | None = None
    delay: Delay | None = None

    def start(self, q: Tensor, qd: Tensor) -> Tensor:
        """The activations at the start, and the controls before it, `[*batch, m + what is on its way]`."""
        count = len(self.actuators.activation_names)
        zero = qd.new_zeros(*qd.shape[:-1], count)
        memory = zero if self.activation is None else zero + self.activation
        if self.delay is None:
            return memory
        return torch.cat([memory, self.delay.start(qd, len(self.actuators.names))], -1)

    def act(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Joint forces `[*batch, num_dof]`, and the memory at t + dt."""
        activation, ctrl, sent = self._inputs(t, dt, q, qd, memory)
        tau, rate = actuate(self.mech, self.actuators, q, qd, activation, ctrl=ctrl, dt=dt)
        if self.tendons is not None:
            tau = tau + self.tendons.force(self.mech, q, qd)
        return tau, self._after(activation, rate, dt, sent)

    @property
    def is_implicit(self) -> bool:
        """Whether forces act at the state after a step."""
        return self.implicit is not None

    def answer(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[ImplicitForce, Tensor]:
        """How the forces answer the velocity after the step, and the memory at t + dt."""
        mech = as_mechanism(self.mech)
        activation, ctrl, sent = self._inputs(t, dt, q, qd, memory)
        tau, rate, slopes = actuate_with_slopes(mech, self.actuators, q, qd, activation, ctrl, dt)
        if self.tendons is not None:
            tau = tau + self.tendons.force(mech, q, qd)
            slopes = slopes.beside(self.tendons.slopes(mech, q))
        answer = implicit_force(mech, tau, slopes, qd, dt, self.implicit == "position")
        return answer, self._after(activation, rate, dt, sent)

    def _inputs(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Activations, the controls that arrive, and those then on their way."""
        ctrl = self.ctrl if isinstance(self.ctrl, Tensor) else self.ctrl(t, q, qd)
        if self.delay is None:
            return memory, ctrl, None
        count = len(self.actuators.activation_names)
        arrived, sent = self.delay.through(ctrl, memory[..., count:], dt)
        return memory[..., :count], arrived, sent

    def _after(self, activation: Tensor, rate: Tensor, dt: float, sent: Tensor | None) -> Tensor:
        after = self.actuators.next_activation(activation, rate, dt)
        return after if sent is None else torch.cat([after, sent], -1)
