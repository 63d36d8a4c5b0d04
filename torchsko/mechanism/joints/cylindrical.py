"""One axis to turn about and to slide along."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Pose
from torchsko.mechanism.joints.revolute import turn_about


@dataclass(frozen=True)
class Cylindrical(JointType):
    """Turns about its axis and slides along it: q is (angle [rad], displacement [m]), qd its rate."""

    name: str = "cylindrical"
    coordinates: tuple[str, ...] = ("angle", "displacement")
    rates: tuple[str, ...] = ("angle", "displacement")
    usual_speed: tuple[float, ...] = (math.pi, 1.0)
    has_axis: bool = True
    one_axis: bool = True

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """A turn by the angle and a shift by the displacement."""
        axis = constants["axis"]
        return turn_about(axis, q[..., :1]), axis * q[..., 1:]

    def joint_map(self, constants: Constants) -> Tensor:
        """[axis, 0] and [0, axis]."""
        axis, zero = constants["axis"], torch.zeros_like(constants["axis"])
        return torch.stack([torch.cat([axis, zero], -1), torch.cat([zero, axis], -1)], -2)
