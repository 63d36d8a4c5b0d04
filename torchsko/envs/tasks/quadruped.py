"""A quadruped of twelve motors follows velocity commands, on flat ground or on waves.

The robot is written for torchsko: a body of 9 kg and legs of 0.7 kg, about as large as a Unitree Go1. Servos
hold the joints; feet alone touch the ground. The reward follows Rudin et al. 2021, "Learning to walk
in minutes using massively parallel deep reinforcement learning", table 4, in smooth form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.envs.blocks.actions import scaled
from torchsko.envs.blocks.disturbances import occasional, push
from torchsko.envs.blocks.observations import air_time, base_velocity, projected_gravity
from torchsko.envs.blocks.terrain import height_scan, terrain_heights, waves
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, Task, World
from torchsko.mechanism.simulation_state import State
from torchsko.verbs.frames import frame_pose

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
  <option timestep="0.004" integrator="implicitfast"/>{asset}
  <default><geom contype="0" conaffinity="0" friction="0.8"/><joint armature="0.005" damping="0.05"/>
    <position kp="40" kv="1" forcerange="-24 24" ctrlrange="-3 3"/></default>
  <worldbody>{ground}
    <body name="body" pos="0 0 0.3"><freejoint name="root"/>
      <inertial pos="0 0 0" mass="9" diaginertia="0.03 0.11 0.13"/>
      <geom type="box" size="0.2 0.06 0.05" mass="0"/>{legs}
    </body></worldbody><actuator>{servos}</actuator></mujoco>"""


@dataclass(frozen=True)
class Quadruped(Task):
    """Twelve joint targets follow commands of forward, sideward and turning velocity on flat ground.

    An action of 1 moves a target by ``action_scale`` from the standing pose. Commands change every
    ``command_time`` seconds on average; every tenth one is to stand. Noise and pushes are off by default.
    """

    name: ClassVar[str] = "QuadrupedFlat"
    base: ClassVar[str] = "body"
    feet: ClassVar[tuple[str, ...]] = FEET
    radius: ClassVar[float] = RADIUS
    standing: ClassVar[tuple[float, ...]] = (0.0, 0.8, -1.5) * 4
    """Joint angles of the standing pose [rad]."""
    num_sensed: ClassVar[int] = 33
    """Observations with noise: those of sensors."""
    model: str = field(
        default=model('<geom type="plane" size="50 50 1" conaffinity="1"/>'), repr=False
    )
    frame_skip: int = 5
    command_range: tuple[float, float, float] = (1.0, 0.4, 1.0)
    command_time: float = 8.0
    action_scale: tuple[float, float, float] = (0.3, 0.5, 0.5)
    observation_noise: float = 0.0
    push_force: float = 0.0
    push_time: float = 4.0
    stand_height: float = 0.29

    def action_bounds(self, world: World) -> Tensor:
        return world.mech.mass.new_tensor([[-1.0, 1.0]] * 12)

    def disturbances(self, draw: Draws) -> Memory:
        scale = draw.uniform() > 0.1
        command = torch.cat([draw.uniform(-x, x) for x in self.command_range]) * scale
        drawn = {"command": command, "chance": draw.uniform()}
        if self.observation_noise:
            drawn["noise"] = draw.normal(self.num_sensed)
        if self.push_force:
            angle = draw.uniform(0.0, 2 * torch.pi)
            drawn["push"] = torch.cat([angle.cos(), angle.sin(), 0 * angle])
            drawn["push_chance"] = draw.uniform()
        return drawn

    def stand(self, world: World) -> Tensor:
        """Joint targets of the standing pose, `[12]` [rad]."""
        return world.mech.mass.new_tensor(self.standing)

    def initial(self, world: World, draw: Draws) -> State:
        joints = self.stand(world) + draw.uniform(-0.1, 0.1, 12)
        q = torch.cat([world.mech.initial()[:7], joints])
        feet = frame_pose(world.mech, q, self.feet).position
        drop = (feet[:, 2] - self.ground_heights(world, feet)).amin() - self.radius
        q = torch.cat([q[:2], q[2:3] - drop, q[3:]])
        return State(q, draw.uniform(-0.05, 0.05, 18))

    def memory(self, world: World, state: State, draw: Draws) -> Memory:
        nothing = state.q.new_zeros(12)
        command = world.disturbances["command"]
        feet = {"air_time": state.q.new_zeros(4), "landed": state.q.new_zeros(4)}
        return {"command": command, "action": nothing, "action_before": nothing, **feet}

    def advance(
        self, world: World, state: State, memory: Memory, action: Tensor
    ) -> tuple[State, Memory]:
        scale = self.stand(world).new_tensor(self.action_scale * 4)
        ctrl = scaled(action, self.stand(world), scale)
        random = world.disturbances
        f_ext = None
        if self.push_force:
            is_pushed = random["push_chance"] < world.dt / self.push_time
            f_ext = push(world, state, self.base, self.push_force * random["push"] * is_pushed)
        after = world.step(state, ctrl, f_ext)
        feet = frame_pose(world.mech, after.q, self.feet).position
        touches = feet[:, 2] - self.ground_heights(world, feet) < self.radius + 2e-3
        time, landed = air_time(memory["air_time"], touches, world.dt)
        chance = world.dt / self.command_time
        command = occasional(chance, random["chance"], random["command"], memory["command"])
        actions = {"action": action, "action_before": memory["action"]}
        return after, {"command": command, "air_time": time, "landed": landed, **actions}

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        omega, v = base_velocity(world, state, self.base)
        down = projected_gravity(world, state, self.base)
        joints = [state.q[7:] - self.stand(world), 0.1 * state.qd[6:]]
        sensed = torch.cat([v, 0.3 * omega, down, *joints])
        if self.observation_noise:
            sensed = sensed + self.observation_noise * world.disturbances["noise"]
        return torch.cat([sensed, memory["command"], memory["action"], *self.scan(world, state)])

    def reward(self, world: World, step: Step) -> Tensor:
        memory, command = step.memory, step.memory["command"]
        omega, v = base_velocity(world, step.after, self.base)
        down = projected_gravity(world, step.after, self.base)
        error = (v[:2] - command[:2]).square().sum()
        follows = (-error / 0.25).exp() + 0.5 * (-(omega[2] - command[2]).square() / 0.25).exp()
        steady = v[2].square() + 0.05 * omega[:2].square().sum() + 2.0 * down[:2].square().sum()
        smooth = 0.01 * (memory["action"] - memory["action_before"]).square().sum()
        pose = 0.05 * (step.after.q[7:] - self.stand(world)).square().sum()
        height = self.height(world, step.after) - self.stand_height
        steps = 0.5 * ((memory["landed"] - 0.2) * (memory["landed"] > 0)).sum()
        return follows - 0.5 * steady - smooth - pose - 5.0 * height.square() + steps

    def terminated(self, world: World, state: State, memory: Memory) -> Tensor:
        falls = projected_gravity(world, state, self.base)[2] > -0.5
        return falls | (self.height(world, state) < 0.12)

    def height(self, world: World, state: State) -> Tensor:
        """Height of the body above the ground, `[]` [m]."""
        position = frame_pose(world.mech, state.q, self.base).position
        return position[2] - self.ground_heights(world, position[None])[0]

    def ground_heights(self, world: World, points: Tensor) -> Tensor:
        """Heights of the ground below points, `[k]` [m]."""
        return torch.zeros_like(points[:, 2])

    def scan(self, world: World, state: State) -> list[Tensor]:
        """Observations of the ground."""
        return []


@dataclass(frozen=True)
class RoughQuadruped(Quadruped):
    """The task on random waves, another ground in each episode, which nine points ahead of the body measure.

    The ground is a square of 12 m; the episode ends half a meter before its border.
    """

    name: ClassVar[str] = "QuadrupedRough"
    model: str = field(
        default=model(
            '<geom name="ground" type="hfield" hfield="ground" conaffinity="1"/>',
            '<asset><hfield name="ground" nrow="13" ncol="13" size="6 6 1 0.1"/></asset>',
        ),
        repr=False,
    )
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
