"""Hopper-v5 of Gymnasium: a planar leg hops forward."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.envs.task import Memory, World
from torchsko.envs.tasks.gymnasium_task import HealthyTask, is_within
from torchsko.mechanism.simulation_state import State


@dataclass(frozen=True)
class Hopper(HealthyTask):
    """Hopper-v5. Options and their defaults are those of Gymnasium."""

    name: ClassVar[str] = "Hopper-v5"
    model: str = "hopper.xml"
    frame_skip: int = 4
    healthy_state_range: tuple[float, float] = (-100.0, 100.0)
    healthy_z_range: tuple[float, float] = (0.7, inf)
    healthy_angle_range: tuple[float, float] = (-0.2, 0.2)

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        return torch.cat([self.seen_position(world, state), state.qd.clamp(-10, 10)])

    def is_healthy(self, state: State) -> Tensor:
        others = torch.cat([state.q[2:], state.qd])
        healthy = is_within(others, self.healthy_state_range).all()
        healthy = healthy & is_within(state.q[1], self.healthy_z_range)
        return healthy & is_within(state.q[2], self.healthy_angle_range)
