"""Base class of controllers: control laws with a memory, sampled once per time step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from torchsko.actuation.implicit_forces import ImplicitForce


class Controller(ABC):
    """A control law with a memory (an integral, a hidden state) whose forces are constant over each step."""

    @abstractmethod
    def initial_memory(self, q: Tensor, qd: Tensor) -> Tensor:
        """The memory at the start of a rollout, `[*batch, ...]`."""

    @abstractmethod
    def act(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Joint forces `[*batch, num_dof]` from t [s] to t + dt, and the memory at t + dt."""

    @property
    def acts_implicitly(self) -> bool:
        """True if `act_implicitly` replaces `act`."""
        return False

    def act_implicitly(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[ImplicitForce, Tensor]:
        """Joint forces that depend on the velocity at t + dt, as damping does, and the memory there."""
        raise NotImplementedError
