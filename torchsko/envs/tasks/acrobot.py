"""Acrobot swing-up, with the reward of dm_control.

The robot is written for torchsko: two links of 1 m and 1 kg, with a motor at the elbow. DEPARTS: masses and
damping differ from dm_control's file.

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
from torchsko.utils.shapes import norm
from torchsko.verbs.frames import frame_pose

MODEL = """<mujoco model="acrobot"><option timestep="0.01" integrator="RK4"/>
  <default><joint axis="0 1 0" damping="0.05"/><geom contype="0" conaffinity="0" mass="1"/></default>
  <worldbody><body name="upper" pos="0 0 2"><joint name="shoulder"/>
    <geom type="capsule" fromto="0 0 0 0 0 1" size="0.05"/>
    <body name="lower" pos="0 0 1"><joint name="elbow"/>
      <geom type="capsule" fromto="0 0 0 0 0 1" size="0.049"/><site name="tip" pos="0 0 1"/></body>
  </body></worldbody>
  <actuator><motor joint="elbow" gear="2" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>"""


@dataclass(frozen=True)
class AcrobotSwingup(Task):
    """The elbow swings the tip of two links to the point above the shoulder."""

    name: ClassVar[str] = "AcrobotSwingup"
    model: str = field(default=MODEL, repr=False)
    margin: float = 1.0

    def initial(self, world: World, draw: Draws) -> State:
        q = draw.uniform(-torch.pi, torch.pi, 2)
        return State(q, torch.zeros_like(q))

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        angles = torch.stack([state.q[0], state.q.sum()])
        return torch.cat([angles.cos(), angles.sin(), state.qd])

    def reward(self, world: World, step: Step) -> Tensor:
        tip = frame_pose(world.mech, step.after.q, "tip").position
        distance = norm(tip - tip.new_tensor([0.0, 0.0, 4.0]))
        return tolerance(distance, 0, 0.2, margin=self.margin)
