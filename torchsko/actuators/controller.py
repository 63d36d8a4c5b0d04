"""Base class of controllers: control laws with a memory, sampled once per time step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchsko.actuators.implicit_forces import ImplicitForce
from torchsko.actuators.law import Named


class Controller(ABC):
    """A control law with a memory (an integral, a hidden state) whose forces are constant over each step.

    `act` may take the mechanism of the rollout as first argument, ``act(mech, t, dt, q, qd, memory)``, and
    tensors of ``params=`` and ``series=`` by name.
    """

    @abstractmethod
    def initial_memory(self, q: Tensor, qd: Tensor) -> Tensor:
        """The memory at the start of a rollout, `[*batch, ...]`."""

    @abstractmethod
    def act(self, *arguments: Any, **inputs: Any) -> tuple[Tensor, Tensor]:
        """Joint forces `[*batch, num_dof]` from t [s] to t + dt, and the memory at t + dt.

        Its arguments are ``(t, dt, q, qd, memory)``.
        """

    @property
    def acts_implicitly(self) -> bool:
        """True if `act_implicitly` replaces `act`."""
        return False

    def act_implicitly(self, *arguments: Any, **inputs: Any) -> tuple[ImplicitForce, Tensor]:
        """Joint forces that depend on the velocity at t + dt, as damping does, and the memory there."""
        raise NotImplementedError

    def inputs(self, steps: int, dt: float | Tensor, batch: Sequence[int]) -> tuple[Named, Named]:
        """Tensors that `act` takes by name besides those of the rollout: parameters, and series of steps.

        Args:
            steps: number of steps of the rollout.
            dt: time step [s].
            batch: batch dimensions of the state.
        """
        return {}, {}
