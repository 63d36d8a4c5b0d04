"""A quadruped of twelve motors follows velocity commands, on flat ground or on waves.

The robot is written for torchsko: a body of 9 kg and legs of 0.7 kg, about as large as a Unitree Go1. Servos
hold the joints; feet alone touch the ground.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from torchsko.envs.blocks.terrain import height_scan, terrain_heights, waves
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Task, World
from torchsko.envs.tasks.commanded_walk import CommandedWalk
from torchsko.mechanism.simulation_state import State

RADIUS = 0.02
"""Radius of a foot [m]."""

FEET = ("foot_fl", "foot_fr", "foot_rl", "foot_rr")


def model(ground: str, asset: str = "") -> str:
    """The robot above a ground, as MJCF text."""
    legs = ""
    for foot, x, y in zip(FEET, (1, 1, -1, -1), (1, -1, 1, -1), strict=True):
        leg = foot[-2:]
        legs += f"""
      <body name="hip_{leg}" pos="{0.19 * x} {0.05 * y} 0">
        <joint name="abduction_{leg}" axis="1 0 0" range="-0.8 0.8"/>
        <inertial pos="0 {0.02 * y} 0" mass="0.3" diaginertia="3e-4 4e-4 3e-4"/>
        <body name="thigh_{leg}" pos="0 {0.08 * y} 0">
          <joint name="hip_{leg}" axis="0 1 0" range="-0.7 2.5"/>
          <inertial pos="0 0 -0.05" mass="0.3" diaginertia="2e-3 2e-3 3e-4"/>
          <body name="shank_{leg}" pos="0 0 -0.21">
            <joint name="knee_{leg}" axis="0 1 0" range="-2.7 -0.6"/>
            <inertial pos="0 0 -0.1" mass="0.1" diaginertia="8e-4 8e-4 2e-5"/>
            <geom name="{foot}" type="sphere" size="{RADIUS}" pos="0 0 -0.21" mass="0.02" contype="1"/>
            <site name="{foot}" pos="0 0 -0.21"/>
          </body></body></body>"""
    servos = "".join(f'<position name="{joint}_{foot[-2:]}" joint="{joint}_{foot[-2:]}"/>'
                     for foot in FEET for joint in ("abduction", "hip", "knee"))  # fmt: skip
    return f"""<mujoco model="quadruped"><compiler angle="radian"/>
  <option timestep="0.005" integrator="implicitfast"/>{asset}
  <default><geom contype="0" conaffinity="0" friction="0.8"/><joint armature="0.005" damping="0.05"/>
    <position kp="40" kv="1" forcerange="-24 24" ctrlrange="-3 3"/></default>
  <worldbody>{ground}
    <body name="body" pos="0 0 0.3"><freejoint name="root"/>
      <inertial pos="0 0 0" mass="9" diaginertia="0.03 0.11 0.13"/>
      <geom type="box" size="0.2 0.06 0.05" mass="0"/>{legs}
    </body></worldbody><actuator>{servos}</actuator></mujoco>"""


@dataclass(frozen=True)
class Quadruped(CommandedWalk):
    """A quadruped trots on flat ground."""

    name: ClassVar[str] = "QuadrupedFlat"
    base: ClassVar[str] = "body"
    feet: ClassVar[tuple[str, ...]] = FEET
    radius: ClassVar[float] = RADIUS
    standing: ClassVar[tuple[float, ...]] = (0.0, 0.8, -1.5) * 4
    offsets: ClassVar[tuple[float, ...]] = (0.0, 0.5, 0.5, 0.0)
    model: str = field(
        default=model('<geom type="plane" size="50 50 1" conaffinity="1"/>'), repr=False
    )
    frame_skip: int = 4
    action_scale: tuple[float, ...] = (0.3, 0.5, 0.5)
    stand_height: float = 0.29


@dataclass(frozen=True)
class RoughQuadruped(Quadruped):
    """The task on random waves, another ground in each episode, which nine points ahead of the body measure.

    The ground is a square of 12 m. The episode ends half a meter before its border, which few robots reach in
    6 seconds.

    Attributes:
        amplitude: root mean square of the heights [m].
        length: shortest length of a wave [m].
    """

    name: ClassVar[str] = "QuadrupedRough"
    model: str = field(
        default=model(
            '<geom name="ground" type="hfield" hfield="ground" conaffinity="1"/>',
            '<asset><hfield name="ground" nrow="13" ncol="13" size="6 6 1 0.1"/></asset>',
        ),
        repr=False,
    )
    episode_length: int = 300
    amplitude: float = 0.08
    length: float = 3.0

    def parameters(self, world: World, draw: Draws) -> Memory:
        ground = {"contact.heights": waves(world, draw, self.amplitude, self.length)}
        return {**Task.parameters(self, world, draw), **ground}

    def ground_heights(self, world: World, points: Tensor) -> Tensor:
        return terrain_heights(world, points)

    def scan(self, world: World, state: State) -> list[Tensor]:
        points = [[x, y] for x in (0.0, 0.25, 0.5) for y in (-0.15, 0.0, 0.15)]
        found = height_scan(world, state, self.base, state.q.new_tensor(points))
        return [5.0 * (found - self.stand_height)]

    def terminated(self, world: World, state: State, memory: Memory) -> Tensor:
        is_outside = (state.q[:2].abs() > 5.5).any()
        return Quadruped.terminated(self, world, state, memory) | is_outside
