"""Cart-pole swing-up, with the reward of dm_control.

The robot is written for torchsko with dm_control's dimensions: a cart of 1 kg on a rail of 3.6 m, and a
pole of 0.1 kg and 1 m. DEPARTS: the start is uniform in the angle.

Reference: Tassa et al. 2018, "DeepMind Control Suite", arXiv 1801.00690.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.envs.blocks.rewards import tolerance
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, Task, World
from torchsko.mechanism.simulation_state import State

MODEL = """<mujoco model="cartpole"><compiler autolimits="true"/><option timestep="0.01"/>
  <worldbody><body name="cart" pos="0 0 1">
    <joint name="slider" type="slide" axis="1 0 0" range="-1.8 1.8" solreflimit=".08 1" damping="5e-4"/>
    <geom type="box" size="0.2 0.15 0.1" mass="1" contype="0" conaffinity="0"/>
    <body name="pole"><joint name="hinge" axis="0 1 0" damping="2e-6"/>
      <geom type="capsule" fromto="0 0 0 0 0 1" size="0.045" mass="0.1" contype="0" conaffinity="0"/></body>
  </body></worldbody>
  <actuator><motor name="slide" joint="slider" gear="10" ctrlrange="-1 1"/></actuator></mujoco>"""


@dataclass(frozen=True)
class CartpoleSwingup(Task):
    """A cart swings a pole up from below, and balances it in the middle of the rail."""

    name: ClassVar[str] = "CartpoleSwingup"
    model: str = field(default=MODEL, repr=False)
    start_angle: float = 0.1

    def initial(self, world: World, draw: Draws) -> State:
        x, angle = draw.uniform(-0.1, 0.1), torch.pi + draw.uniform(-1, 1) * self.start_angle
        return State(torch.cat([x, angle]), draw.uniform(-0.01, 0.01, 2))

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        x, angle = state.q
        return torch.stack([x, angle.cos(), angle.sin(), *state.qd])

    def reward(self, world: World, step: Step) -> Tensor:
        x, angle = step.after.q
        upright = (angle.cos() + 1) / 2
        centered = (1 + tolerance(x, 0, 0, margin=2)) / 2
        small = tolerance(step.action[0], 0, 0, margin=1, at_margin=0, kind="quadratic")
        slow = (1 + tolerance(step.after.qd[1], 0, 0, margin=5)) / 2
        return upright * centered * (4 + small) / 5 * slow
