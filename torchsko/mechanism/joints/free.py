"""Free joint of a floating base."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Pose, Sampler
from torchsko.mechanism.joints.spherical import (
    ANGULAR,
    QUATERNION,
    Spherical,
    random_quaternion,
    rotate_quaternion,
    rotation_between,
    unit_rows,
)
from torchsko.spatial.motion import cross_motion
from torchsko.spatial.rotation import (
    cross,
    quaternion_exp,
    quaternion_multiply,
    quaternion_to_matrix,
    translation_jacobian,
    translation_jacobian_inverse,
    unit_quaternion,
    unit_quaternion_to_matrix,
)
from torchsko.utils.shapes import norm


@dataclass(frozen=True)
class Free(JointType):
    """Any rigid motion: q is `x y z` [m] and a quaternion `w x y z`, qd [omega; v] in the child frame.

    Quaternions are normalized in every method; zero stands for the identity.
    """

    name: str = "free"
    coordinates: tuple[str, ...] = ("x", "y", "z", *QUATERNION)
    rates: tuple[str, ...] = (*ANGULAR, "vx", "vy", "vz")
    usual_speed: tuple[float, ...] = (*Spherical.usual_speed, 1.0, 1.0, 1.0)
    vector: bool = False
    is_free: bool = True
    urdf: tuple[str, ...] = ("floating",)
    mjcf: str = "free"

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Rotation matrix of the quaternion, and position."""
        return quaternion_to_matrix(q[..., 3:]), q[..., :3]

    def joint_map(self, constants: Constants) -> Tensor:
        """The identity."""
        return unit_rows(constants["axis"], 6)

    def neutral(self) -> tuple[float, ...]:
        """The identity at the origin."""
        return (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)

    def random(self, lower: Tensor, upper: Tensor, sampler: Sampler) -> Tensor:
        """Uniform over all rotations and within 1 m along each axis."""
        quat = random_quaternion(sampler)
        return torch.cat([2 * sampler.uniform(3) - 1, quat], -1)

    def integrate(self, q: Tensor, step: Tensor) -> Tensor:
        """Q times the exponential of the step in SE(3)."""
        rotvec, shift, quat = step[..., :3], step[..., 3:], unit_quaternion(q[..., 3:])
        along = translation_jacobian(rotvec) @ shift[..., None]
        position = q[..., :3] + (unit_quaternion_to_matrix(quat) @ along)[..., 0]
        return torch.cat([position, rotate_quaternion(quat, rotvec)], -1)

    def difference(self, start: Tensor, end: Tensor) -> Tensor:
        """Logarithm in SE(3) of the relative pose."""
        quat = unit_quaternion(start[..., 3:])
        rotvec = rotation_between(quat, unit_quaternion(end[..., 3:]))
        apart = unit_quaternion_to_matrix(quat).mT @ (end[..., :3] - start[..., :3])[..., None]
        return torch.cat([rotvec, (translation_jacobian_inverse(rotvec) @ apart)[..., 0]], -1)

    def stretch(self, relaxed: Tensor, q: Tensor) -> Tensor:
        """Rotation vector from the relaxed orientation, and translation in the axes of the child."""
        quat = unit_quaternion(q[..., 3:])
        rotvec = rotation_between(unit_quaternion(relaxed[..., 3:]), quat)
        apart = unit_quaternion_to_matrix(quat).mT @ (q[..., :3] - relaxed[..., :3])[..., None]
        return torch.cat(torch.broadcast_tensors(rotvec, apart[..., 0]), -1)

    def deflection(self, stretch: Tensor) -> Tensor:
        """Angle of the rotation, and distance of the translation."""
        parts = stretch.split(3, -1)
        return torch.cat([norm(x)[..., None].expand(x.shape) for x in parts], -1)

    def bracket(self, u: Tensor, v: Tensor) -> Tensor:
        """Lie bracket of se(3)."""
        return cross_motion(u[..., None], v[..., None])[..., 0]

    def transport_rate(self, qd: Tensor, x: Tensor) -> Tensor:
        """Omega x v in the linear part."""
        linear = cross(qd[..., :3], x[..., 3:])
        return torch.cat([torch.zeros_like(linear), linear], -1)

    def transport(self, step: Tensor, x: Tensor) -> Tensor:
        """Linear part rotated back by the angular part of the step."""
        linear = _rotate_back(quaternion_exp(step[..., :3]), x[..., 3:])
        return torch.cat([x[..., :3].expand(linear.shape), linear], -1)

    def advance(
        self, q: Tensor, qd: Tensor, qdd: Tensor, dt: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Semi-implicit Euler step with the linear velocity held constant in the joint frame's axes.

        The velocity is rotated into the new axes by the quaternion of the step. Rotation matrices of both
        ends would accumulate rounding errors, 1e-12 of the speed in 5000 steps.
        """
        qd = qd + dt * (qdd + self.transport_rate(qd, qd))
        step, v, quat = dt * qd, qd[..., 3:], unit_quaternion(q[..., 3:])
        along = (unit_quaternion_to_matrix(quat) @ step[..., 3:, None])[..., 0]
        turn = quaternion_exp(step[..., :3])
        rates = torch.cat([qd[..., :3], _rotate_back(turn, v)], -1)
        return torch.cat([q[..., :3] + along, quaternion_multiply(quat, turn)], -1), rates


def _rotate_back(quat: Tensor, v: Tensor) -> Tensor:
    """Components of a vector in axes rotated by a unit quaternion."""
    twice = 2 * cross(v, quat[..., 1:])
    return v + quat[..., :1] * twice + cross(twice, quat[..., 1:])
