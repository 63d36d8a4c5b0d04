"""InvertedPendulum-v5 of Gymnasium: a cart balances a pole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, World
from torchsko.envs.tasks.gymnasium_task import GymnasiumTask
from torchsko.mechanism.simulation_state import State


@dataclass(frozen=True)
class InvertedPendulum(GymnasiumTask):
    """InvertedPendulum-v5. Options and their defaults are those of Gymnasium."""

    name: ClassVar[str] = "InvertedPendulum-v5"
    model: str = "inverted_pendulum.xml"
    frame_skip: int = 2
    reset_noise_scale: float = 0.01

    def initial(self, world: World, draw: Draws) -> State:
        return self.uniform_start(world, draw, self.reset_noise_scale)

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        return torch.cat([state.q, state.qd])

    def reward(self, world: World, step: Step) -> Tensor:
        falls = self.terminated(world, step.after, step.memory)
        return torch.where(falls, 0.0, torch.ones_like(step.after.q[0]))

    def terminated(self, world: World, state: State, memory: Memory) -> Tensor:
        return state.q[1].abs() > 0.2
