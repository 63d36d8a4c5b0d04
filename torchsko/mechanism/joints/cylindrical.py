"""Cylindrical joint."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Pose
from torchsko.mechanism.joints.revolute import rotation_about


@dataclass(frozen=True)
class Cylindrical(JointType):
    """Rotation about and translation along the axis: q is (angle [rad], displacement [m]), qd its rate."""

    name: str = "cylindrical"
    coordinates: tuple[str, ...] = ("angle", "displacement")
    rates: tuple[str, ...] = ("angle", "displacement")
    usual_speed: tuple[float, ...] = (math.pi, 1.0)
    has_axis: bool = True
    one_axis: bool = True

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Rotation by the angle and translation by the displacement."""
        axis = constants["axis"]
        return rotation_about(axis, q[..., :1]), axis * q[..., 1:]

    def joint_map(self, constants: Constants) -> Tensor:
        """[axis, 0] and [0, axis]."""
        axis, zero = constants["axis"], torch.zeros_like(constants["axis"])
        return torch.stack([torch.cat([axis, zero], -1), torch.cat([zero, axis], -1)], -2)
