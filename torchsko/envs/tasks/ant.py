"""Ant-v5 of Gymnasium: a robot of four legs walks forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchsko.envs.mujoco_data import Links
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, World
from torchsko.envs.tasks.gymnasium_task import SHORT_WINDOWS, HealthyTask
from torchsko.mechanism.simulation_state import State
from torchsko.verbs.frames import frame_pose


@dataclass(frozen=True)
class Ant(HealthyTask):
    """Ant-v5. Options and their defaults are those of Gymnasium.

    Contact forces and the position in the reward are those of the last stage of the step, as in Gymnasium.
    """

    name: ClassVar[str] = "Ant-v5"
    shac_options: ClassVar[Mapping[str, Any]] = SHORT_WINDOWS
    num_hidden: ClassVar[int] = 2
    model: str = "ant.xml"
    frame_skip: int = 5
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    main_body: str = "torso"
    healthy_z_range: tuple[float, float] = (0.2, 1.0)
    contact_force_range: tuple[float, float] = (-1.0, 1.0)
    reset_noise_scale: float = 0.1
    include_cfrc_ext_in_observation: bool = True

    def initial(self, world: World, draw: Draws) -> State:
        return self.normal_start(world, draw, self.reset_noise_scale)

    def memory(self, world: World, state: State, draw: Draws) -> Memory:
        x = frame_pose(world.mech, state.q, self.main_body).position[0]
        forces = state.q.new_zeros(len(world.mech.file_metadata.links), 6)
        return {"x": x, "x_before": x, "contact_forces": forces}

    def advance(
        self, world: World, state: State, memory: Memory, action: Tensor
    ) -> tuple[State, Memory]:
        after, last = world.step_with_evaluation(state, action)
        x = frame_pose(world.mech, last.state.q, self.main_body).position[0]
        forces = Links.at(last).contact_forces().clamp(*self.contact_force_range)
        return after, {"x": x, "x_before": memory["x"], "contact_forces": forces}

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        parts = [self.seen_position(world, state), world.qvel(state)]
        if self.include_cfrc_ext_in_observation:
            parts.append(memory["contact_forces"].flatten())
        return torch.cat(parts)

    def is_healthy(self, state: State) -> Tensor:
        low, high = self.healthy_z_range
        return (low <= state.q[2]) & (state.q[2] <= high)

    def speed(self, world: World, step: Step) -> Tensor:
        return (step.memory["x"] - step.memory["x_before"]) / world.dt

    def cost(self, step: Step) -> Tensor:
        forces = step.memory["contact_forces"]
        return self.control_cost(step) + self.contact_cost_weight * forces.square().sum()
