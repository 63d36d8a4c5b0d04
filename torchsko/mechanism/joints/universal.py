"""Universal (Cardan) joint: two axes that cross at a right angle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.joints.kind import Constants, JointType, Parameter, Pose
from torchsko.mechanism.joints.revolute import rotation_about
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec

MAX_COSINE = 1e-6
"""Largest cosine between two perpendicular axes of a file, which prints about six digits."""


@dataclass(frozen=True)
class Universal(JointType):
    """Rotation about the axis, fixed in the joint frame, then about a second axis, fixed in the child.

    q is the two angles [rad], qd their rates. The axes cross at the joint frame's origin at a right angle;
    a compound joint has axes at any angle.
    """

    name: str = "universal"
    coordinates: tuple[str, ...] = ("angle", "second_angle")
    rates: tuple[str, ...] = ("angle", "second_angle")
    usual_speed: tuple[float, ...] = (math.pi,) * 2
    coordinate_unit: str = "rad"
    parameters: tuple[Parameter, ...] = (Parameter("second_axis", (3,), unit=True),)
    has_axis: bool = True
    unit_rows: bool = False

    def parameter_values(
        self, joint: str, axis: Sequence[float], data: Mapping[str, Any]
    ) -> list[float]:
        """The second axis, normalized and made exactly perpendicular to the first."""
        second = np.array(super().parameter_values(joint, axis, data))
        length = float(np.linalg.norm(second))
        first = np.array(axis) / np.linalg.norm(axis)
        if not 0 < length < math.inf or abs(first @ second) > MAX_COSINE * length:
            raise MechanismError(
                f"joint {joint!r} has the axes {tuple(axis)} and {tuple(second.tolist())}.",
                "The axes of a universal joint are perpendicular.",
                "Correct second_axis, or use a compound joint, whose axes have any angle.",
            )
        second = second - (first @ second) * first
        return (second / np.linalg.norm(second)).tolist()

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Product of the two rotations."""
        first = rotation_about(constants["axis"], q[..., :1])
        return first @ rotation_about(constants["second_axis"], q[..., 1:]), None

    def joint_map(self, constants: Constants) -> Tensor:
        """[axis, 0] and [second axis, 0]."""
        return _rows(constants["axis"], constants["second_axis"])

    def joint_map_at(self, constants: Constants, q: Tensor) -> Tensor:
        """[axis, 0] and [second axis, 0], with the first axis in child coordinates."""
        return _rows(self._first_axis(constants, q), constants["second_axis"])

    def bias_accel(self, constants: Constants, q: Tensor, qd: Tensor) -> Tensor:
        """Rate of the first axis in child coordinates, which rotates by minus the second angle."""
        first = self._first_axis(constants, q) * qd[..., :1]
        angular = cross(first, constants["second_axis"] * qd[..., 1:])
        return torch.cat([angular, torch.zeros_like(angular)], -1)

    def _first_axis(self, constants: Constants, q: Tensor) -> Tensor:
        turn = rotation_about(constants["second_axis"], q[..., 1:])
        return matvec(turn.mT, constants["axis"])


def _rows(first: Tensor, second: Tensor) -> Tensor:
    angular = torch.stack(torch.broadcast_tensors(first, second), -2)
    return torch.cat([angular, torch.zeros_like(angular)], -1)
