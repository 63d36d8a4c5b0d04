r"""Poses as coordinates, and the Jacobians of these: quaternions, rotation vectors, roll, pitch and yaw.

The rates of the coordinates of a rotation follow from its angular velocity in inertial axes,

.. math::
    \dot{h} = \tfrac12 [0, \omega] \otimes h, \qquad
    \dot\varphi = V^{-1}(\varphi)\, \omega, \qquad
    \dot\theta = \begin{bmatrix} c_y / c_p & s_y / c_p & 0 \\ -s_y & c_y & 0 \\
        c_y s_p / c_p & s_y s_p / c_p & 1 \end{bmatrix} \omega,

with h a unit quaternion w x y z, phi a rotation vector and V of `torchsko.spatial.rotation`, and theta roll,
pitch and yaw, R = Rz(yaw) Ry(pitch) Rx(roll).

Reference: B. Siciliano, L. Sciavicco, L. Villani, G. Oriolo, *Robotics*, Springer 2009, section 3.6.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import (
    matrix_log,
    matrix_to_quaternion,
    matrix_to_rpy,
    quaternion_multiply,
    translation_jacobian_inverse,
)
from torchsko.verbs.frame import Frame, Frames, listed
from torchsko.verbs.frames import frame_jacobian, frame_pose


def _upright(R: Tensor) -> Tensor:
    """The quaternion of a rotation matrix with w >= 0."""
    quat = matrix_to_quaternion(R)
    return torch.where(quat[..., :1] < 0, -quat, quat)


ROTATIONS = {"quaternion": _upright, "rotvec": matrix_log, "rpy": matrix_to_rpy}
"""Coordinates of a rotation matrix, by name."""


@verb
def frame_coordinates(
    mech: Mechanism, q: Tensor, frames: Frames, *, rotation: str = "quaternion"
) -> Tensor:
    """Poses of frames as coordinates: those of the rotation, then the position.

    Args:
        rotation: "quaternion", w x y z of length 1 with w not negative; "rotvec", axis times angle, at most
            half a turn [rad]; or "rpy", roll, pitch and yaw about fixed axes [rad].

    Returns:
        `[*batch, len(frames), 7]`, or 6 [m]; of one frame without the dimension of frames. Smooth except for
        jumps of the first two at half turns, and of "rpy" where pitch is a quarter turn.

    Raises:
        MechanismError: on an unknown frame, or none, or an unknown name of coordinates.

    Reference: Siciliano et al. 2009, Robotics (roll, pitch and yaw; angle and axis; unit quaternion).
    """
    pose = frame_pose(mech, q, frames)
    return torch.cat([_of(rotation)(pose.rotation), pose.position], -1)


@verb
def analytic_jacobian(
    mech: Mechanism, q: Tensor, frames: Frames, *, rotation: str = "quaternion"
) -> Tensor:
    """Jacobian of frames in coordinates: the matrix that takes qd to the rate of `frame_coordinates`.

    For "rpy" it is singular where pitch is a quarter turn (gimbal lock): its entries grow without bound
    nearby, since most angular velocities have no rate of roll and yaw there. Quaternions and rotation
    vectors have no gimbal lock.

    Args:
        rotation: as in `frame_coordinates`.

    Returns:
        `[*batch, len(frames), 7, num_dof]`, or 6; of one frame without the dimension of frames.

    Raises:
        MechanismError: on an unknown frame, or none, or an unknown name of coordinates.

    Reference: Siciliano et al. 2009, Robotics (analytical Jacobian).
    """
    if not isinstance(frames, str | Frame):
        frames = listed(frames)  # an iterator gives its frames once
    x = _of(rotation)(frame_pose(mech, q, frames).rotation)
    J = frame_jacobian(mech, q, frames, reference="mixed")
    return torch.cat([RATES[rotation](x) @ J[..., :3, :], J[..., 3:, :]], -2)


def _of(rotation: str) -> Callable[[Tensor], Tensor]:
    if rotation not in tuple(ROTATIONS):  # a list has no place in a dict
        raise MechanismError(*unknown_name("kind of coordinates", rotation, tuple(ROTATIONS)))
    return ROTATIONS[rotation]


def _quaternion_rate(quat: Tensor) -> Tensor:
    """The matrix that maps an angular velocity to the rate of a quaternion, `[*, 4, 3]`."""
    units = torch.eye(4, dtype=quat.dtype, device=quat.device)[1:] / 2
    columns = [quaternion_multiply(unit.expand_as(quat), quat) for unit in units.unbind(0)]
    return torch.stack(columns, -1)


def _rpy_rate(rpy: Tensor) -> Tensor:
    """The matrix that maps an angular velocity to the rates of roll, pitch and yaw, `[*, 3, 3]`."""
    _, pitch, yaw = rpy.unbind(-1)
    cp, sp, cy, sy = pitch.cos(), pitch.sin(), yaw.cos(), yaw.sin()
    o, i = torch.zeros_like(cp), torch.ones_like(cp)
    rows = ((cy / cp, sy / cp, o), (-sy, cy, o), (cy * sp / cp, sy * sp / cp, i))
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


RATES = {
    "quaternion": _quaternion_rate,
    "rotvec": translation_jacobian_inverse,
    "rpy": _rpy_rate,
}
"""Matrices that map an angular velocity in inertial axes to the rates of coordinates, by name."""
