"""Quaternions of rotations, in NumPy."""

from __future__ import annotations

import numpy as np


def quaternion_from_matrix(R: np.ndarray) -> np.ndarray:
    """Unit quaternion w x y z of a rotation matrix, by the largest of its four squares.

    Reference: Shepperd 1978, Quaternion from rotation matrix, J. Guidance and Control 1(3).
    """
    t = np.array([np.trace(R), *np.diag(R)])
    i = int(t.argmax())
    skew = np.array([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
    if i == 0:
        quat = np.array([1 + t[0], *skew])
    else:
        row = R[i - 1] + R[:, i - 1]
        row[i - 1] = 1 + 2 * R[i - 1, i - 1] - t[0]
        quat = np.array([skew[i - 1], *row])
    return quat / np.linalg.norm(quat)
