"""The flange of a seven-dof arm reaches a point, and stays there.

The robot is `torchsko.robots.panda` with servos on its joints, without contact, and without gravity, which a
controller compensates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.actuators.actuators import Actuators
from torchsko.envs.blocks.actions import scaled
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, Task, World
from torchsko.io.loading.files import load
from torchsko.mechanism.file_data.actuator import Actuator
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.robots import panda
from torchsko.utils.shapes import norm
from torchsko.verbs.frames import frame_pose


@dataclass(frozen=True)
class PandaReach(Task):
    """Actions of 1 move the targets of the joints by ``action_scale`` within a control step of 20 ms."""

    name: ClassVar[str] = "PandaReach"
    model: str | Path = panda
    frame_skip: int = 10
    integrator: str | None = "implicitfast"
    episode_length: int = 150
    kp: float = 300.0
    kv: float = 40.0
    action_scale: float = 0.04

    def mechanism(self, dtype: torch.dtype, device: torch.device | str) -> Mechanism:
        return load(self.model, gravity=(0.0, 0.0, 0.0), dtype=dtype, device=device)

    def actuators(self, mech: Mechanism) -> Actuators:
        servos = [Actuator.position(x, x, kp=self.kp, kv=self.kv) for x in mech.joint_names]
        return Actuators.of(mech, servos)

    def action_bounds(self, world: World) -> Tensor:
        return world.mech.mass.new_tensor([[-1.0, 1.0]] * 7)

    def initial(self, world: World, draw: Draws) -> State:
        q = world.mech.middle() + draw.uniform(-0.3, 0.3, 7)
        return State(q, torch.zeros_like(q))

    def memory(self, world: World, state: State, draw: Draws) -> Memory:
        parts = [draw.uniform(*x) for x in ((0.3, 0.6), (-0.4, 0.4), (0.2, 0.7))]
        return {"goal": torch.cat(parts), "target": state.q}

    def advance(
        self, world: World, state: State, memory: Memory, action: Tensor
    ) -> tuple[State, Memory]:
        target = scaled(action, memory["target"], self.action_scale)
        target = torch.minimum(torch.maximum(target, world.mech.lower), world.mech.upper)
        return world.step(state, target), {"goal": memory["goal"], "target": target}

    def error(self, world: World, state: State, memory: Memory) -> Tensor:
        """Position of the goal relative to the flange, `[3]` [m]."""
        return memory["goal"] - frame_pose(world.mech, state.q, "flange").position

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        offset = memory["target"] - state.q
        return torch.cat([state.q, 0.3 * state.qd, offset, self.error(world, state, memory)])

    def reward(self, world: World, step: Step) -> Tensor:
        distance = norm(self.error(world, step.after, step.memory))
        near = (-distance.square() / 0.02**2).exp()
        cost = 0.01 * step.action.square().sum() + 1e-3 * step.after.qd.square().sum()
        return near - distance - cost
