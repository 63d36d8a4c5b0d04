"""The task of `QuadrupedFlat` for robots of the installed package example-robot-data.

DEPARTS: servos with the effort limits of the file drive the joints, which have the inertia of a rotor. Feet
are spheres, and only they touch the ground.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from torchsko.envs.tasks.quadruped import Quadruped
from torchsko.io.loading.files import load
from torchsko.mechanism.file_data.actuator import Actuator, FileActuators
from torchsko.mechanism.geometry import Geometry, Shape, Surface
from torchsko.mechanism.mechanism import Mechanism
from torchsko.robots import find
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere


@dataclass(frozen=True)
class LoadedQuadruped(Quadruped):
    """A quadruped from a URDF file, by its name in `torchsko.robots.available`; derive one for each robot.

    Attributes:
        timestep: of the simulation [s].
        kp: stiffness of the servos [N m/rad].
        kv: damping of the servos [N m s/rad].
        armature: inertia of a rotor behind its gear [kg m^2].
    """

    name: ClassVar[str] = ""
    base: ClassVar[str] = "base"
    model: str = ""
    timestep: float = 0.005
    integrator: str | None = "implicitfast"
    kp: float = 40.0
    kv: float = 1.0
    armature: float = 0.01

    def mechanism(self, dtype: torch.dtype, device: torch.device | str) -> Mechanism:
        robot = load(find(self.model), floating_base=True, dtype=dtype, device=device)
        foot, floor = Surface(contype=1, conaffinity=0), Surface(contype=0, conaffinity=1)
        shapes = [Shape(Sphere(self.radius), x, collision=True, surface=foot) for x in self.feet]
        ground = Shape(Plane(), name="ground", collision=True, surface=floor)
        solver = replace(robot.file_metadata.solver, timestep=self.timestep)
        servos = FileActuators(self.servos(robot))
        data = replace(robot.file_metadata, actuators=servos, solver=solver)
        armature = robot.armature.index_fill(0, torch.arange(6, robot.num_dof), self.armature)
        geometry = Geometry((*shapes, ground))
        return robot.replace(geometry=geometry, file_metadata=data, armature=armature)

    def servos(self, mech: Mechanism) -> tuple[Actuator, ...]:
        """A servo of each joint, with the effort limit of the file."""
        limits = [float(mech.effort_limit[mech.dof_slice(x)]) for x in mech.joint_names[1:]]
        return tuple(
            Actuator.position(joint, joint, kp=self.kp, kv=self.kv, force_range=(-limit, limit))
            for joint, limit in zip(mech.joint_names[1:], limits, strict=True)
        )


@dataclass(frozen=True)
class Go2(LoadedQuadruped):
    """A Unitree Go2 of 16 kg follows commands."""

    name: ClassVar[str] = "Go2Flat"
    feet: ClassVar[tuple[str, ...]] = ("FL_foot", "FR_foot", "RL_foot", "RR_foot")
    radius: ClassVar[float] = 0.022
    standing: ClassVar[tuple[float, ...]] = (0.0, 0.8, -1.5) * 4
    model: str = "example-robot-data/go2_description/urdf/go2.urdf"
    kp: float = 60.0
    kv: float = 1.5
    stand_height: float = 0.3


@dataclass(frozen=True)
class Anymal(LoadedQuadruped):
    """An ANYmal B of 30 kg follows commands."""

    name: ClassVar[str] = "AnymalFlat"
    feet: ClassVar[tuple[str, ...]] = ("LF_FOOT", "RF_FOOT", "LH_FOOT", "RH_FOOT")
    radius: ClassVar[float] = 0.03
    standing: ClassVar[tuple[float, ...]] = (0.0, 0.5, -0.9) * 2 + (0.0, -0.5, 0.9) * 2
    model: str = "example-robot-data/anymal_b_simple_description/robots/anymal.urdf"
    kp: float = 150.0
    kv: float = 4.0
    stand_height: float = 0.5
