"""Helical (screw) joint."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Parameter, Pose
from torchsko.mechanism.joints.revolute import rotation_about


@dataclass(frozen=True)
class Helical(JointType):
    """Rotation about the axis, and translation along it by the pitch [m/rad]: q is the angle [rad]."""

    name: str = "helical"
    coordinates: tuple[str, ...] = ("angle",)
    rates: tuple[str, ...] = ("angle",)
    usual_speed: tuple[float, ...] = (math.pi,)
    coordinate_unit: str = "rad"
    parameters: tuple[Parameter, ...] = (Parameter("pitch"),)
    has_axis: bool = True
    orthonormal: bool = False
    unit_rows: bool = False
    one_axis: bool = True

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Rotation by the angle, and translation by pitch times the angle."""
        axis, pitch = constants["axis"], constants["pitch"][..., None]
        return rotation_about(axis, q), axis * (pitch * q)

    def joint_map(self, constants: Constants) -> Tensor:
        """[axis, pitch axis]."""
        axis, pitch = constants["axis"], constants["pitch"][..., None]
        return torch.cat(torch.broadcast_tensors(axis, pitch * axis), -1)[..., None, :]
