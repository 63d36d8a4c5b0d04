"""No joint at all: a body that floats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Pose
from torchsko.mechanism.joints.spherical import (
    ANGULAR,
    QUATERNION,
    Spherical,
    random_quaternion,
    turn_between,
    turned,
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


@dataclass(frozen=True)
class Free(JointType):
    """Moves freely: q is `x y z` [m] and a quaternion `w x y z`, qd [omega; v] in the child frame.

    Only the direction of the quaternion counts; zero stands for the identity.
    """

    name: str = "free"
    coordinates: tuple[str, ...] = ("x", "y", "z", *QUATERNION)
    rates: tuple[str, ...] = (*ANGULAR, "vx", "vy", "vz")
    usual_speed: tuple[float, ...] = (*Spherical.usual_speed, 1.0, 1.0, 1.0)
    vector: bool = False
    urdf: tuple[str, ...] = ("floating",)
    mjcf: str = "free"

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """The rotation of the quaternion, and the position."""
        return quaternion_to_matrix(q[..., 3:]), q[..., :3]

    def joint_map(self, constants: Constants) -> Tensor:
        """The identity."""
        return unit_rows(constants["axis"], 6)

    def neutral(self) -> tuple[float, ...]:
        """The identity at the origin."""
        return (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)

    def random(
        self,
        lower: Tensor,
        upper: Tensor,
        size: tuple[int, ...],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Uniform over all rotations and within 1 m along each axis."""
        quat = random_quaternion(lower, size, generator)
        like = {"dtype": lower.dtype, "device": lower.device}
        position = 2 * torch.rand(*size, 3, generator=generator, **like) - 1
        return torch.cat([position, quat], -1)

    def integrate(self, q: Tensor, step: Tensor) -> Tensor:
        """Moved by the exponential of SE(3)."""
        rotvec, shift, quat = step[..., :3], step[..., 3:], unit_quaternion(q[..., 3:])
        along = translation_jacobian(rotvec) @ shift[..., None]
        position = q[..., :3] + (unit_quaternion_to_matrix(quat) @ along)[..., 0]
        return torch.cat([position, turned(quat, rotvec)], -1)

    def difference(self, start: Tensor, end: Tensor) -> Tensor:
        """The logarithm of SE(3)."""
        quat = unit_quaternion(start[..., 3:])
        rotvec = turn_between(quat, unit_quaternion(end[..., 3:]))
        apart = unit_quaternion_to_matrix(quat).mT @ (end[..., :3] - start[..., :3])[..., None]
        return torch.cat([rotvec, (translation_jacobian_inverse(rotvec) @ apart)[..., 0]], -1)

    def bracket(self, u: Tensor, v: Tensor) -> Tensor:
        """That of SE(3)."""
        return cross_motion(u[..., None], v[..., None])[..., 0]

    def turning(self, qd: Tensor, x: Tensor) -> Tensor:
        """The linear part is omega x v."""
        linear = cross(qd[..., :3], x[..., 3:])
        return torch.cat([torch.zeros_like(linear), linear], -1)

    def carried(self, step: Tensor, x: Tensor) -> Tensor:
        """The linear part turns back."""
        linear = _turned_back(quaternion_exp(step[..., :3]), x[..., 3:])
        return torch.cat([x[..., :3].expand(linear.shape), linear], -1)

    def advance(
        self, q: Tensor, qd: Tensor, qdd: Tensor, dt: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Straight on, turning: linear velocity is constant in the joint frame, not in the child.

        The velocity turns back into the new axes by the quaternion of the step: by the matrices of both
        ends rounding would add up, to 1e-12 of the speed in 5000 steps.
        """
        qd = qd + dt * (qdd + self.turning(qd, qd))
        step, v, quat = dt * qd, qd[..., 3:], unit_quaternion(q[..., 3:])
        along = (unit_quaternion_to_matrix(quat) @ step[..., 3:, None])[..., 0]
        turn = quaternion_exp(step[..., :3])
        rates = torch.cat([qd[..., :3], _turned_back(turn, v)], -1)
        return torch.cat([q[..., :3] + along, quaternion_multiply(quat, turn)], -1), rates


def _turned_back(quat: Tensor, v: Tensor) -> Tensor:
    """A vector as seen from axes turned by a unit quaternion."""
    twice = 2 * cross(v, quat[..., 1:])
    return v + quat[..., :1] * twice + cross(twice, quat[..., 1:])
