"""Cardan's joint: two axes that cross at a right angle."""

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
from torchsko.mechanism.joints.revolute import turn_about
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec

SQUARE = 1e-6
"""Cosine of the angle between two axes that are meant to be perpendicular: six printed digits."""


@dataclass(frozen=True)
class Universal(JointType):
    """Turns about its axis, fixed in the joint frame, then about a second one, fixed in the child.

    q is the two angles [rad], qd their rates. The axes cross at the joint frame's origin, at a right
    angle; for others there are compound joints.
    """

    name: str = "universal"
    coordinates: tuple[str, ...] = ("angle", "second_angle")
    rates: tuple[str, ...] = ("angle", "second_angle")
    usual_speed: tuple[float, ...] = (math.pi,) * 2
    parameters: tuple[Parameter, ...] = (Parameter("second_axis", (3,), unit=True),)
    has_axis: bool = True
    unit_rows: bool = False

    def values(self, joint: str, axis: Sequence[float], given: Mapping[str, Any]) -> list[float]:
        """The second axis, made unit and perpendicular to the first to the last digit."""
        second = np.array(super().values(joint, axis, given))
        length = float(np.linalg.norm(second))
        first = np.array(axis) / np.linalg.norm(axis)
        if not 0 < length < math.inf or abs(first @ second) > SQUARE * length:
            raise MechanismError(
                f"joint {joint!r} has the axes {tuple(axis)} and {tuple(second.tolist())}.",
                "Those of a universal joint are perpendicular.",
                "Correct second_axis, or write a compound joint: its axes may be any.",
            )
        second = second - (first @ second) * first
        return (second / np.linalg.norm(second)).tolist()

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """The two turns."""
        first = turn_about(constants["axis"], q[..., :1])
        return first @ turn_about(constants["second_axis"], q[..., 1:]), None

    def joint_map(self, constants: Constants) -> Tensor:
        """[axis, 0] and [second axis, 0]."""
        return _rows(constants["axis"], constants["second_axis"])

    def joint_map_at(self, constants: Constants, q: Tensor) -> Tensor:
        """The same with the first axis as the child sees it."""
        return _rows(self._first_axis(constants, q), constants["second_axis"])

    def bias_accel(self, constants: Constants, q: Tensor, qd: Tensor) -> Tensor:
        """The first axis turns in the child, backwards about the second."""
        first = self._first_axis(constants, q) * qd[..., :1]
        angular = cross(first, constants["second_axis"] * qd[..., 1:])
        return torch.cat([angular, torch.zeros_like(angular)], -1)

    def _first_axis(self, constants: Constants, q: Tensor) -> Tensor:
        turn = turn_about(constants["second_axis"], q[..., 1:])
        return matvec(turn.mT, constants["axis"])


def _rows(first: Tensor, second: Tensor) -> Tensor:
    angular = torch.stack(torch.broadcast_tensors(first, second), -2)
    return torch.cat([angular, torch.zeros_like(angular)], -1)
