"""Planar cheetah, walker and hopper, with the rewards of dm_control.

The robots are written for torchsko: capsules of 1000 kg/m^3 on a plane, about as large as dm_control's.
DEPARTS: masses, gears and ranges differ from dm_control's files, and links touch the ground, but not one
another.

Reference: Tassa et al. 2018, "DeepMind Control Suite", arXiv 1801.00690.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.envs.blocks.rewards import tolerance
from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import Memory, Step, Task, World
from torchsko.mechanism.simulation_state import State
from torchsko.verbs.frames import frame_pose
from torchsko.verbs.momenta import com_velocity

ROOT = """<joint name="x" type="slide" axis="1 0 0" armature="0" damping="0" stiffness="0"/>
      <joint name="z" type="slide" axis="0 0 1" armature="0" damping="0" stiffness="0"/>
      <joint name="pitch" axis="0 1 0" armature="0" damping="0" stiffness="0"/>"""


def link(name: str, position: str, size: str, bounds: str, end: str, inner: str = "") -> str:
    """A link below a hinge about y: a capsule to a point, with further links."""
    return f"""<body name="{name}" pos="{position}"><joint name="{name}" axis="0 1 0" range="{bounds}"/>
      <geom name="{name}" type="capsule" fromto="0 0 0 {end}" size="{size}"/>{inner}</body>"""


def model(name: str, height: float, torso: str, legs: str, gears: dict[str, float]) -> str:
    """A planar robot on a plane, as MJCF text."""
    motors = "".join(f'<motor joint="{k}" gear="{x}"/>' for k, x in gears.items())
    return f"""<mujoco model="{name}"><compiler angle="degree" autolimits="true"/>
  <option timestep="0.005"/>
  <default><joint armature="0.01" damping="1" solimplimit="0 .99 .01"/>
    <geom contype="1" conaffinity="0" friction="0.9" density="1000"/>
    <motor ctrllimited="true" ctrlrange="-1 1"/></default>
  <worldbody><geom name="floor" type="plane" size="100 1 1" contype="0" conaffinity="1"/>
    <body name="torso" pos="0 0 {height}">{ROOT}
      {torso}{legs}
    </body></worldbody><actuator>{motors}</actuator></mujoco>"""


@dataclass(frozen=True)
class Runner(Task):
    """Base class: the speed of the center of mass, up to ``speed``, times what else the task rewards."""

    frame_skip: int = 4
    speed: float = 8.0
    start_noise: float = 0.05

    def initial(self, world: World, draw: Draws) -> State:
        q = world.mech.initial()
        noise = draw.uniform(-self.start_noise, self.start_noise, len(q))
        return State(torch.cat([q[:2], (q + noise)[2:]]), 0 * q)

    def observe(self, world: World, state: State, memory: Memory) -> Tensor:
        return torch.cat([state.q[1:], state.qd])

    def reward(self, world: World, step: Step) -> Tensor:
        speed = com_velocity(world.mech, step.after.q, step.after.qd)[0]
        runs = tolerance(speed, self.speed, inf, margin=self.speed, at_margin=0, kind="linear")
        return runs * self.posture(world, step.after)

    def posture(self, world: World, state: State) -> Tensor:
        """Factor of the reward for the posture, `[]`."""
        return torch.ones_like(state.q[0])

    def stands(self, world: World, state: State, height: float) -> Tensor:
        """1 if the torso is above a height, `[]`."""
        z = frame_pose(world.mech, state.q, "torso").position[2]
        return tolerance(z, height, inf, margin=height / 2)


def _leg(side: str, x: float) -> str:
    shin = link(f"{side}_shin", "0 0 -0.3", "0.046", "-70 50", "0 0 -0.3",
                link(f"{side}_foot", "0 0 -0.3", "0.046", "-30 30", "0.12 0 -0.05"))  # fmt: skip
    return link(f"{side}_thigh", f"{x} 0 0", "0.046", "-50 60", "0 0 -0.3", shin)


def _gears(scale: tuple[float, float, float]) -> dict[str, float]:
    parts = zip(("thigh", "shin", "foot"), scale, strict=True)
    return {f"{side}_{part}": x for part, x in parts for side in ("back", "front")}


@dataclass(frozen=True)
class CheetahRun(Runner):
    """A cheetah of two legs runs at 10 m/s."""

    name: ClassVar[str] = "CheetahRun"
    model: str = field(
        default=model(
            "cheetah", 0.72, '<geom type="capsule" fromto="-0.5 0 0 0.5 0 0" size="0.046"/>',
            _leg("back", -0.5) + _leg("front", 0.5), _gears((100.0, 80.0, 50.0)),
        ),
        repr=False,
    )  # fmt: skip
    speed: float = 10.0


@dataclass(frozen=True)
class WalkerWalk(Runner):
    """A biped walks upright at 1 m/s."""

    name: ClassVar[str] = "WalkerWalk"
    model: str = field(
        default=model(
            "walker", 0.72, '<geom type="capsule" fromto="0 0 0.05 0 0 0.5" size="0.07"/>',
            _leg("back", 0.0) + _leg("front", 0.0), _gears((100.0, 60.0, 25.0)),
        ),
        repr=False,
    )  # fmt: skip
    speed: float = 1.0

    def posture(self, world: World, state: State) -> Tensor:
        upright = (1 + state.q[2].cos()) / 2
        return (3 * self.stands(world, state, 0.65) + upright) / 4


@dataclass(frozen=True)
class HopperHop(Runner):
    """A leg hops at 2 m/s."""

    name: ClassVar[str] = "HopperHop"
    model: str = field(
        default=model(
            "hopper", 0.72, '<geom type="capsule" fromto="0 0 0.05 0 0 0.35" size="0.06"/>',
            _leg("only", 0.0), {"only_thigh": 60.0, "only_shin": 60.0, "only_foot": 30.0},
        ),
        repr=False,
    )  # fmt: skip
    speed: float = 2.0

    def posture(self, world: World, state: State) -> Tensor:
        return self.stands(world, state, 0.6)
