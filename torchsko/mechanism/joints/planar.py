"""A body on a plane."""

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

STEEP = 0.9
"""Cosine of the smallest angle between the normal and x at which x still gives the direction."""


@dataclass(frozen=True)
class Planar(JointType):
    """Slides in the plane normal to its axis and turns about it: q is `x y` [m], angle [rad].

    x runs along `direction`, y along axis x direction, both fixed in the joint frame; qd is the rate of
    q. Where no direction is given it is the frame's x axis projected on the plane, or its y axis where
    the normal is near x: so x and y are the frame's own for the usual axis, z.
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

    def values(self, joint: str, axis: Sequence[float], given: Mapping[str, Any]) -> list[float]:
        """The direction of x, made unit and perpendicular to the axis."""
        normal = np.array(axis) / np.linalg.norm(axis)
        usual = (1.0, 0.0, 0.0) if abs(normal[0]) < STEEP else (0.0, 1.0, 0.0)
        direction = np.array(super().values(joint, axis, {"direction": usual, **given}))
        across = direction - (normal @ direction) * normal
        if not 1e-6 * np.linalg.norm(direction) < np.linalg.norm(across) < math.inf:
            raise MechanismError(
                f"joint {joint!r} has the axis {tuple(axis)} and the direction "
                f"{tuple(direction.tolist())}.",
                "The direction of x lies in the plane, the axis is normal to it.",
                "Pass another direction, or leave it out.",
            )
        return (across / np.linalg.norm(across)).tolist()

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """A shift in the plane and a turn."""
        return turn_about(constants["axis"], q[..., 2:]), _in_plane(constants, q)

    def joint_map(self, constants: Constants) -> Tensor:
        """[0, direction], [0, axis x direction], [axis, 0]."""
        axis, x = constants["axis"], constants["direction"]
        return _rows(x, cross(axis, x), axis)

    def joint_map_at(self, constants: Constants, q: Tensor) -> Tensor:
        """The same with the directions as the child sees them."""
        axis, x = constants["axis"], constants["direction"]
        back = turn_about(axis, q[..., 2:]).mT
        x, y = (matvec(back, e) for e in (x, cross(axis, x)))
        return _rows(x, y, axis)

    def bias_accel(self, constants: Constants, q: Tensor, qd: Tensor) -> Tensor:
        """The directions turn backwards in the child."""
        axis = constants["axis"]
        back = turn_about(axis, q[..., 2:]).mT
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
