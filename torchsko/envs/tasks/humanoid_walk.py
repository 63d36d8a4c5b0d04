"""A humanoid of twelve motors in its legs walks at commanded velocities on flat ground.

The robot is written for torchsko: 48 kg, 1.5 m high. Trunk, head and arms are one body. Servos hold
six joints of each leg; the corners of the feet alone touch the ground.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.envs.task import Memory, World
from torchsko.envs.tasks.commanded_walk import CommandedWalk

FEET = ("foot_left", "foot_right")
JOINTS = ("hip_roll", "hip_yaw", "hip_pitch", "knee", "ankle_pitch", "ankle_roll")


def _leg(side: str, y: int) -> str:
    corners = "".join(
        f'<geom type="sphere" size="0.01" pos="{x} {z} -0.04" mass="0" contype="1"/>'
        for x in (-0.06, 0.14) for z in (-0.045, 0.045)
    )  # fmt: skip
    return f"""
      <body name="pelvis_{side}" pos="0 {0.09 * y} 0">
        <joint name="hip_roll_{side}" axis="1 0 0" range="-0.5 0.5"/>
        <inertial pos="0 0 0" mass="1" diaginertia="2e-3 2e-3 2e-3"/>
        <body name="hip_{side}"><joint name="hip_yaw_{side}" axis="0 0 1" range="-0.7 0.7"/>
          <inertial pos="0 0 0" mass="1" diaginertia="2e-3 2e-3 2e-3"/>
          <body name="thigh_{side}"><joint name="hip_pitch_{side}" axis="0 1 0" range="-1.6 0.7"/>
            <geom type="capsule" fromto="0 0 0 0 0 -0.38" size="0.06" mass="4.5"/>
            <body name="shin_{side}" pos="0 0 -0.38">
              <joint name="knee_{side}" axis="0 1 0" range="0 2.2"/>
              <geom type="capsule" fromto="0 0 0 0 0 -0.38" size="0.045" mass="2.5"/>
              <body name="ankle_{side}" pos="0 0 -0.38">
                <joint name="ankle_pitch_{side}" axis="0 1 0" range="-0.9 0.7"/>
                <inertial pos="0 0 0" mass="0.3" diaginertia="5e-4 5e-4 5e-4"/>
                <body name="sole_{side}"><joint name="ankle_roll_{side}" axis="1 0 0" range="-0.4 0.4"/>
                  <geom type="box" size="0.11 0.05 0.02" pos="0.04 0 -0.03" mass="0.7"/>{corners}
                  <site name="foot_{side}" pos="0.02 0 -0.05"/>
                </body></body></body></body></body></body>"""


def _model() -> str:
    """The robot above a plane, as MJCF text."""
    servos = "".join(
        f'<position name="{joint}_{side}" joint="{joint}_{side}"/>'
        for side in ("left", "right") for joint in JOINTS
    )  # fmt: skip
    return f"""<mujoco model="humanoid"><compiler angle="radian"/>
  <option timestep="0.005" integrator="implicitfast"/>
  <default><geom contype="0" conaffinity="0" friction="0.9"/><joint armature="0.05" damping="1"/>
    <position kp="500" kv="10" forcerange="-200 200" ctrlrange="-3 3"/></default>
  <worldbody><geom type="plane" size="50 50 1" conaffinity="1"/>
    <body name="trunk" pos="0 0 0.8"><freejoint name="root"/>
      <geom type="box" size="0.08 0.13 0.06" mass="8"/>
      <geom type="box" size="0.09 0.15 0.2" pos="0 0 0.3" mass="12"/>
      <geom type="sphere" size="0.1" pos="0 0 0.6" mass="3"/>
      <geom type="capsule" fromto="0 0.2 0.45 0 0.25 0" size="0.04" mass="2.5"/>
      <geom type="capsule" fromto="0 -0.2 0.45 0 -0.25 0" size="0.04" mass="2.5"/>
      {_leg("left", 1)}{_leg("right", -1)}
    </body></worldbody><actuator>{servos}</actuator></mujoco>"""


@dataclass(frozen=True)
class HumanoidWalk(CommandedWalk):
    """A humanoid walks. Actions change a gait that steps in place: legs bend in turn, and hips sway.

    Attributes:
        bend: of the knee of a lifted leg [rad].
        sway: amplitude of the hip roll angles [rad].
    """

    name: ClassVar[str] = "HumanoidWalk"
    base: ClassVar[str] = "trunk"
    feet: ClassVar[tuple[str, ...]] = FEET
    radius: ClassVar[float] = 0.0
    standing: ClassVar[tuple[float, ...]] = (0.0, 0.0, -0.44, 0.7, -0.35, 0.0) * 2
    offsets: ClassVar[tuple[float, ...]] = (0.0, 0.5)
    model: str = field(default=_model(), repr=False)
    frame_skip: int = 4
    command_range: tuple[float, float, float] = (0.8, 0.2, 0.5)
    action_scale: tuple[float, ...] = (0.2, 0.2, 0.5, 0.5, 0.4, 0.2)
    start_noise: float = 0.03
    stand_height: float = 0.76
    period: float = 0.7
    swing_height: float = 0.05
    bend: float = 0.3
    sway: float = 0.1

    def reference(self, world: World, memory: Memory) -> Tensor:
        up = self.swing(memory) / self.swing_height  # of the left and the right foot, from 0 to 1
        bend, sway = self.bend * up, self.sway * (up[0] - up[1]).expand(2)
        changes = [sway, 0 * bend, -bend / 2, bend, -bend / 2, -sway]
        return self.stand(world) + torch.stack(changes, -1).flatten()
