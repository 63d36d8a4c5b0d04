"""Walker2d-v5 of Gymnasium: two planar legs walk forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchsko.envs.task import Memory, World
from torchsko.envs.tasks.gymnasium_task import SHORT_WINDOWS, HealthyTask, is_within
from torchsko.mechanism.simulation_state import State


@dataclass(frozen=True)
class Walker2d(HealthyTask):
    """Walker2d-v5. Options and their defaults are those of Gymnasium."""

    name: ClassVar[str] = "Walker2d-v5"
    shac_options: ClassVar[Mapping[str, Any]] = SHORT_WINDOWS
    model: str = "walker2d_v5.xml"
    frame_skip: int = 4
    healthy_z_range: tuple[float, float] = (0.8, 2.0)
    healthy_angle_range: tuple[float, float] = (-1.0, 1.0)

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        return torch.cat([self.seen_position(world, state), state.qd.clamp(-10, 10)])

    def is_healthy(self, state: State) -> Tensor:
        upright = is_within(state.q[2], self.healthy_angle_range)
        return is_within(state.q[1], self.healthy_z_range) & upright
