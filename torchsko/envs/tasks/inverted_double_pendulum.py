"""InvertedDoublePendulum-v5 of Gymnasium: a cart balances two poles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.contact.contact_step import Evaluation
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, World
from torchsko.envs.tasks.gymnasium_task import GymnasiumTask
from torchsko.mechanism.simulation_state import State
from torchsko.verbs.frames import frame_pose


@dataclass(frozen=True)
class InvertedDoublePendulum(GymnasiumTask):
    """InvertedDoublePendulum-v5. Options and their defaults are those of Gymnasium.

    The position of the tip and the force on the cart at the limits of the rail are those of the last stage of
    the step, as in Gymnasium.
    """

    name: ClassVar[str] = "InvertedDoublePendulum-v5"
    model: str = "inverted_double_pendulum.xml"
    frame_skip: int = 5
    healthy_reward: float = 10.0
    reset_noise_scale: float = 0.1

    def initial(self, world: World, draw: Draws) -> State:
        return self.normal_start(world, draw, self.reset_noise_scale)

    def memory(self, world: World, state: State, draw: Draws) -> Memory:
        return _measured(world, world.evaluate(state))

    def advance(
        self, world: World, state: State, memory: Memory, action: Tensor
    ) -> tuple[State, Memory]:
        after, last = world.step_with_evaluation(state, action)
        return after, _measured(world, last)

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        q, qd = state.q, state.qd
        parts = [q[:1], q[1:].sin(), q[1:].cos(), qd.clamp(-10, 10), memory["force"].clamp(-10, 10)]
        return torch.cat(parts)

    def reward(self, world: World, step: Step) -> Tensor:
        x, _, y = step.memory["tip"]
        _, v1, v2 = step.after.qd
        distance = 0.01 * x.square() + (y - 2).square()
        alive = torch.where(y <= 1, 0.0, torch.full_like(y, self.healthy_reward))
        return alive - distance - 1e-3 * v1.square() - 5e-3 * v2.square()

    def terminated(self, world: World, state: State, memory: Memory) -> Tensor:
        return memory["tip"][2] <= 1


def _measured(world: World, last: Evaluation) -> Memory:
    """Position of the tip, and force of the rail on the cart."""
    tip = frame_pose(world.mech, last.state.q, "tip").position
    return {"tip": tip, "force": last.constraint_force[:1]}
