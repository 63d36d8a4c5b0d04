"""Spherical (ball) joint."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Pose, Sampler
from torchsko.spatial.rotation import (
    cross,
    quaternion_conjugate,
    quaternion_exp,
    quaternion_log,
    quaternion_multiply,
    quaternion_to_matrix,
    unit_quaternion,
)

QUATERNION = ("qw", "qx", "qy", "qz")
ANGULAR = ("wx", "wy", "wz")


@dataclass(frozen=True)
class Spherical(JointType):
    """Any rotation: q is a quaternion `w x y z`, qd the angular velocity in the child frame.

    Quaternions are normalized in every method; zero stands for the identity.
    """

    name: str = "spherical"
    coordinates: tuple[str, ...] = QUATERNION
    rates: tuple[str, ...] = ANGULAR
    usual_speed: tuple[float, ...] = (math.pi,) * 3
    vector: bool = False
    urdf: tuple[str, ...] = ("spherical",)
    mjcf: str = "ball"

    @property
    def rate_unit(self) -> str:
        """Radian: rates are angular velocities."""
        return "rad"

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Rotation matrix of the quaternion."""
        return quaternion_to_matrix(q), None

    def joint_map(self, constants: Constants) -> Tensor:
        """The angular half of the identity."""
        return unit_rows(constants["axis"], 3)

    def neutral(self) -> tuple[float, ...]:
        """The identity quaternion."""
        return (1.0, 0.0, 0.0, 0.0)

    def random(self, lower: Tensor, upper: Tensor, sampler: Sampler) -> Tensor:
        """Uniform over all rotations."""
        return random_quaternion(sampler)

    def integrate(self, q: Tensor, step: Tensor) -> Tensor:
        """Q times the exponential of the step."""
        return rotate_quaternion(unit_quaternion(q), step)

    def difference(self, start: Tensor, end: Tensor) -> Tensor:
        """The rotation vector from one orientation to the other."""
        return rotation_between(unit_quaternion(start), unit_quaternion(end))

    def bracket(self, u: Tensor, v: Tensor) -> Tensor:
        """Lie bracket of so(3)."""
        return cross(u, v)


def unit_rows(like: Tensor, count: int) -> Tensor:
    """The first rows of the 6 x 6 identity, for vectors `[*, g, 3]`: `[*, g, count, 6]`."""
    rows = torch.eye(6, dtype=like.dtype, device=like.device)[:count]
    return rows.expand(*like.shape[:-1], *rows.shape)


def random_quaternion(sampler: Sampler) -> Tensor:
    """Unit quaternions, uniform over all rotations, `[*size, 4]`."""
    return torch.nn.functional.normalize(sampler.normal(4), dim=-1)


def rotate_quaternion(quat: Tensor, rotvec: Tensor) -> Tensor:
    """A unit quaternion times the exponential of a rotation vector in body axes."""
    return quaternion_multiply(quat, quaternion_exp(rotvec))


def rotation_between(start: Tensor, end: Tensor) -> Tensor:
    """The rotation vector from one unit quaternion to another, in the axes of the first."""
    return quaternion_log(quaternion_multiply(quaternion_conjugate(start), end))
