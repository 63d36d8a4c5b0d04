"""A screw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Parameter, Pose
from torchsko.mechanism.joints.revolute import turn_about


@dataclass(frozen=True)
class Helical(JointType):
    """Turns about its axis and slides along it by the pitch [m/rad]: q is the angle [rad]."""

    name: str = "helical"
    coordinates: tuple[str, ...] = ("angle",)
    rates: tuple[str, ...] = ("angle",)
    usual_speed: tuple[float, ...] = (math.pi,)
    parameters: tuple[Parameter, ...] = (Parameter("pitch"),)
    has_axis: bool = True
    orthonormal: bool = False
    unit_rows: bool = False
    one_axis: bool = True

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """A turn by the angle, and a shift by pitch times the angle."""
        axis, pitch = constants["axis"], constants["pitch"][..., None]
        return turn_about(axis, q), axis * (pitch * q)

    def joint_map(self, constants: Constants) -> Tensor:
        """[axis, pitch axis]."""
        axis, pitch = constants["axis"], constants["pitch"][..., None]
        return torch.cat(torch.broadcast_tensors(axis, pitch * axis), -1)[..., None, :]
