"""Hopper-v5 of Gymnasium: a planar leg hops forward."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, World
from torchsko.envs.tasks.gymnasium_task import GymnasiumTask, is_within
from torchsko.mechanism.simulation_state import State


@dataclass(frozen=True)
class Hopper(GymnasiumTask):
    """Hopper-v5. Options and their defaults are those of Gymnasium."""

    name: ClassVar[str] = "Hopper-v5"
    model: str = "hopper.xml"
    frame_skip: int = 4
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 1e-3
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_state_range: tuple[float, float] = (-100.0, 100.0)
    healthy_z_range: tuple[float, float] = (0.7, inf)
    healthy_angle_range: tuple[float, float] = (-0.2, 0.2)
    reset_noise_scale: float = 5e-3
    exclude_current_positions_from_observation: bool = True

    def initial(self, world: World, draw: Draws) -> State:
        return self.uniform_start(world, draw, self.reset_noise_scale)

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        first = int(self.exclude_current_positions_from_observation)
        return torch.cat([state.q[first:], state.qd.clamp(-10, 10)])

    def is_healthy(self, state: State) -> Tensor:
        others = torch.cat([state.q[2:], state.qd])
        healthy = is_within(others, self.healthy_state_range).all()
        healthy = healthy & is_within(state.q[1], self.healthy_z_range)
        return healthy & is_within(state.q[2], self.healthy_angle_range)

    def reward(self, world: World, step: Step) -> Tensor:
        speed = (step.after.q[0] - step.before.q[0]) / world.dt
        cost = self.ctrl_cost_weight * step.action.square().sum()
        healthy = torch.where(self.is_healthy(step.after), self.healthy_reward, 0.0)
        return self.forward_reward_weight * speed + healthy - cost

    def terminated(self, world: World, state: State, memory: Memory) -> Tensor:
        return ~self.is_healthy(state) & self.terminate_when_unhealthy
