"""Actuators as a control of `torchsko.rollout`: activations are what it remembers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from torchsko.actuation.actuators import Actuators, actuate
from torchsko.mechanism.verb import MechanismLike


@dataclass(frozen=True, eq=False)
class ActuatedControl:
    """Controls through actuators: a `Controller` for `torchsko.rollout`.

    The forces are those at the start of a step, held over it; activations go on by the step, as in MuJoCo.

    Attributes:
        mech: the mechanism.
        actuators: of it.
        ctrl: controls `[*batch, n]`, the same for every step, or a function of time [s], q and qd.
        activation: at the start, `[*batch, m]`; zero when left out.
    """

    mech: MechanismLike
    actuators: Actuators
    ctrl: Tensor | Callable[[float, Tensor, Tensor], Tensor]
    activation: Tensor | None = None

    def start(self, q: Tensor, qd: Tensor) -> Tensor:
        """The activations at the start, `[*batch, m]`."""
        count = len(self.actuators.activation_names)
        zero = qd.new_zeros(*qd.shape[:-1], count)
        return zero if self.activation is None else zero + self.activation

    def act(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Joint forces `[*batch, num_dof]`, and the activations at t + dt."""
        ctrl = self.ctrl if isinstance(self.ctrl, Tensor) else self.ctrl(t, q, qd)
        tau, rate = actuate(self.mech, self.actuators, q, qd, memory, ctrl=ctrl, dt=dt)
        return tau, self.actuators.next_activation(memory, rate, dt)
