"""Poses of bodies and frames as arrays."""

from __future__ import annotations

from functools import reduce

import numpy as np

from torchsko.mechanism.mechanism import Mechanism

Pose = tuple[np.ndarray, np.ndarray]
"""Rotation and position."""

HERE: Pose = (np.eye(3), np.zeros(3))


def frame_pose(mech: Mechanism, i: int) -> Pose:
    """Pose of a frame in its body."""
    R, p = mech.frame_rotation[i], mech.frame_position[i]
    return R.detach().cpu().double().numpy(), p.detach().cpu().double().numpy()


def compose(*poses: Pose) -> Pose:
    """Product of poses."""
    return reduce(lambda a, b: (a[0] @ b[0], a[1] + a[0] @ b[1]), poses)


def inverse(pose: Pose) -> Pose:
    """Inverse of a pose."""
    return pose[0].T, -pose[0].T @ pose[1]


def rotation_of(quaternion: np.ndarray) -> np.ndarray:
    """Rotation matrix of a quaternion w x y z."""
    w, v = quaternion[0], quaternion[1:]
    s = 2.0 / float(quaternion @ quaternion)
    cross = np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]])
    return np.eye(3) + s * (w * cross + cross @ cross)
