"""Planar joint."""

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

MAX_NORMAL_X = 0.9
"""Largest x component of the unit normal at which the default direction is the frame's x axis."""


@dataclass(frozen=True)
class Planar(JointType):
    """Translation in the plane normal to the axis, and rotation about it: q is `x y` [m], angle [rad].

    x runs along `direction`, y along axis x direction, both fixed in the joint frame; qd is the rate of q.
    The default direction is the frame's x axis projected on the plane, or its y axis if the normal is near x.
    For the axis z, x and y are therefore the axes of the frame.
    """

    name: str = "planar"
    coordinates: tuple[str, ...] = ("x", "y", "angle")
    rates: tuple[str, ...] = ("x", "y", "angle")
    usual_speed: tuple[float, ...] = (1.0, 1.0, math.pi)
    parameters: tuple[Parameter, ...] = (Parameter("direction", (3,), unit=True),)
    has_axis: bool = True
    unit_rows: bool = False
    one_axis: bool = True
    urdf: tuple[str, ...] = ("planar",)

    def parameter_values(
        self, joint: str, axis: Sequence[float], data: Mapping[str, Any]
    ) -> list[float]:
        """The direction of x, normalized and made exactly perpendicular to the axis."""
        normal = np.array(axis) / np.linalg.norm(axis)
        usual = (1.0, 0.0, 0.0) if abs(normal[0]) < MAX_NORMAL_X else (0.0, 1.0, 0.0)
        direction = np.array(super().parameter_values(joint, axis, {"direction": usual, **data}))
        across = direction - (normal @ direction) * normal
        if not 1e-6 * np.linalg.norm(direction) < np.linalg.norm(across) < math.inf:
            raise MechanismError(
                f"joint {joint!r} has the axis {tuple(axis)} and the direction "
                f"{tuple(direction.tolist())}.",
                "The direction of x lies in the plane, so it must not be parallel to the axis.",
                "Pass another direction, or leave it out.",
            )
        return (across / np.linalg.norm(across)).tolist()

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Translation in the plane and rotation about the normal."""
        return rotation_about(constants["axis"], q[..., 2:]), _in_plane(constants, q)

    def joint_map(self, constants: Constants) -> Tensor:
        """[0, direction], [0, axis x direction], [axis, 0]."""
        axis, x = constants["axis"], constants["direction"]
        return _rows(x, cross(axis, x), axis)

    def joint_map_at(self, constants: Constants, q: Tensor) -> Tensor:
        """The rows of `joint_map` with the directions in child coordinates."""
        axis, x = constants["axis"], constants["direction"]
        back = rotation_about(axis, q[..., 2:]).mT
        x, y = (matvec(back, e) for e in (x, cross(axis, x)))
        return _rows(x, y, axis)

    def bias_accel(self, constants: Constants, q: Tensor, qd: Tensor) -> Tensor:
        """Rate of the directions in child coordinates, which rotate by minus the angle."""
        axis = constants["axis"]
        back = rotation_about(axis, q[..., 2:]).mT
        sliding = matvec(back, _in_plane(constants, qd))
        linear = cross(sliding, axis * qd[..., 2:])
        return torch.cat([torch.zeros_like(linear), linear], -1)


def _in_plane(constants: Constants, q: Tensor) -> Tensor:
    axis, x = constants["axis"], constants["direction"]
    return x * q[..., :1] + cross(axis, x) * q[..., 1:2]


def _rows(x: Tensor, y: Tensor, axis: Tensor) -> Tensor:
    x, y, axis = torch.broadcast_tensors(x, y, axis)
    zero = torch.zeros_like(axis)
    rows = [torch.cat(row, -1) for row in ((zero, x), (zero, y), (axis, zero))]
    return torch.stack(rows, -2)
