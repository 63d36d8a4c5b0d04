"""Reacher-v5 of Gymnasium: a planar arm of two links reaches a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, World
from torchsko.envs.tasks.gymnasium_task import GymnasiumTask
from torchsko.mechanism.simulation_state import State
from torchsko.utils.shapes import norm
from torchsko.verbs.frames import frame_pose


@dataclass(frozen=True)
class Reacher(GymnasiumTask):
    """Reacher-v5. Options and their defaults are those of Gymnasium.

    The distance is that of the last stage of the step, as in Gymnasium.
    """

    name: ClassVar[str] = "Reacher-v5"
    model: str = "reacher.xml"
    frame_skip: int = 2
    episode_length: int = 50
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 1.0

    def initial(self, world: World, draw: Draws) -> State:
        radius = 0.2 * draw.uniform().sqrt()  # uniform on the disk
        angle = draw.uniform(0.0, 2 * torch.pi)
        start = self.uniform_start(world, draw, 0.1)
        q = torch.cat([start.q[:2], radius * angle.cos(), radius * angle.sin()])
        return State(q, torch.cat([0.05 * start.qd[:2], 0 * start.qd[2:]]), start.act)

    def memory(self, world: World, state: State, draw: Draws) -> Memory:
        return {"offset": _offset(world, state)}

    def advance(
        self, world: World, state: State, memory: Memory, action: Tensor
    ) -> tuple[State, Memory]:
        after, last = world.step_with_evaluation(state, action)
        return after, {"offset": _offset(world, last.state)}

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        angles = state.q[:2]
        parts = [angles.cos(), angles.sin(), state.q[2:], state.qd[:2], memory["offset"][:2]]
        return torch.cat(parts)

    def reward(self, world: World, step: Step) -> Tensor:
        cost = self.reward_control_weight * step.action.square().sum()
        return -self.reward_dist_weight * norm(step.memory["offset"]) - cost


def _offset(world: World, state: State) -> Tensor:
    """Position of the fingertip relative to the target, `[3]` [m]."""
    tip, target = frame_pose(world.mech, state.q, ["fingertip", "target"]).position
    return tip - target
