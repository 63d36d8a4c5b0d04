r"""Rigid transforms between a parent and a child frame, acting on spatial vectors and inertias.

R maps child to parent coordinates, and r is the child origin in the parent frame. Forces are mapped to the
parent by the matrix :math:`A = [[R, \tilde r R], [0, R]]`, velocities to the child by its transpose.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.linalg.symmetric import mirror_upper
from torchsko.spatial.rotation import (
    matrix_exp,
    matrix_log,
    skew,
    translation_jacobian,
    translation_jacobian_inverse,
)
from torchsko.utils.shapes import matvec


def pose_exp(twist: Tensor) -> tuple[Tensor, Tensor]:
    """The pose after a constant velocity for unit time, the exponential of SE(3).

    Args:
        twist: [omega; v] in the frame's own axes, `[*, 6]` [rad, m].

    Returns:
        Rotation `[*, 3, 3]` and position `[*, 3]` [m].

    Reference: Sola, Deray, Atchuthan 2018, A micro Lie theory, appendix D.
    """
    w, v = twist.split(3, -1)
    return matrix_exp(w), matvec(translation_jacobian(w), v)


def pose_log(rotation: Tensor, position: Tensor) -> Tensor:
    """The constant velocity that leads to a pose in unit time, the inverse of `pose_exp`.

    Smooth except at half turns.

    Args:
        rotation: `[*, 3, 3]`.
        position: `[*, 3]` [m].

    Returns:
        [omega; v], `[*, 6]` [rad, m].

    Reference: Sola, Deray, Atchuthan 2018, A micro Lie theory, appendix D.

    Example:
        >>> import torch
        >>> from torchsko.spatial import pose_exp, pose_log
        >>> twist = torch.tensor([0.1, 0.2, 0.3, 1.0, 2.0, 3.0], dtype=torch.float64)
        >>> torch.allclose(pose_log(*pose_exp(twist)), twist)
        True
    """
    w = matrix_log(rotation)
    v = matvec(translation_jacobian_inverse(w), position)
    return torch.cat(torch.broadcast_tensors(w, v), -1)


def force_matrix(rotation: Tensor, position: Tensor) -> Tensor:
    """The 6 x 6 matrix A that carries forces from child to parent.

    Args:
        rotation: child to parent coordinates, `[*, 3, 3]`.
        position: child origin in the parent frame, `[*, 3]` [m].
    """
    rotation, moment = torch.broadcast_tensors(rotation, skew(position) @ rotation)
    upper = torch.cat([rotation, moment], -1)
    lower = torch.cat([torch.zeros_like(rotation), rotation], -1)
    return torch.cat([upper, lower], -2)


def rotate_vector(rotation: Tensor, x: Tensor) -> Tensor:
    """Rotate both halves of spatial columns, `[*, 6, r]`."""
    return torch.cat([rotation @ x[..., :3, :], rotation @ x[..., 3:, :]], -2)


def rotate_inertia(rotation: Tensor, P: Tensor) -> Tensor:
    """The product diag(R, R) P diag(R, R)* of a symmetric `[*, 6, 6]`; scalar form, each entry once."""
    I, C, M = (P[..., :3, :3], P[..., :3, 3:], P[..., 3:, 3:])
    I, C, M = (rotation @ block @ rotation.mT for block in (I, C, M))
    return _symmetric_blocks(mirror_upper(I), C, mirror_upper(M))


def turn_inertia(axis: Tensor, rotation: Tensor, P: Tensor) -> Tensor:
    """The product diag(R, R) P diag(R, R)* for rotations R about unit axes e; scalar form, each entry once.

    With E = e e*, N = 1 - E, K = skew(e) the rotation is R = E + c N + s K. Each block X becomes

        R X R* = E X E + N X N + c (E X N + N X E) + s (K X E - E X K)
                 + c s (K X N - N X K) - s^2 (N X N + K X K).

    The last two terms have two distinct entries. About a coordinate axis, with zeros and ones folded
    away, that takes half the operations of two products with R, most of a mass matrix.

    Args:
        axis: e, constant, `[*, 3]`.
        rotation: R, `[*, 3, 3]`.
        P: symmetric, `[*, 6, 6]`.
    """
    X = torch.stack([P[..., :3, :3], P[..., :3, 3:], P[..., 3:, 3:]], -3)
    axis, rotation = axis[..., None, :], rotation[..., None, :, :]
    K = skew(axis)
    E = axis[..., :, None] * axis[..., None, :]
    N = torch.eye(3, dtype=axis.dtype, device=axis.device) - E
    c, s = (0.5 * (part * rotation).sum((-2, -1), keepdim=True) for part in (N, K))
    EX, NX, KX = E @ X, N @ X, K @ X
    NXN = NX @ N
    turned = EX @ E + NXN + c * (EX @ N + NX @ E) + s * (KX @ E - EX @ K)
    turned = turned + (c * s * (KX @ N - NX @ K) - s * s * (NXN + KX @ K))
    I, C, M = turned.unbind(-3)
    return _symmetric_blocks(mirror_upper(I), C, mirror_upper(M))


def translate_force(position: Tensor, y: Tensor) -> Tensor:
    """Move the reference point of force columns from r to the origin: moment + r x force."""
    n, f = y[..., :3, :], y[..., 3:, :]
    return torch.cat(torch.broadcast_tensors(n + skew(position) @ f, f), -2)


def translate_motion(position: Tensor, x: Tensor) -> Tensor:
    """Velocity columns at r from those at the origin: linear + angular x r."""
    w, v = x[..., :3, :], x[..., 3:, :]
    return torch.cat(torch.broadcast_tensors(w, v - skew(position) @ w), -2)


def translate_inertia(position: Tensor, P: Tensor) -> Tensor:
    """Inertia about the origin from that about r, `[*, 6, 6]`; scalar form, each entry once."""
    I, C, M = (P[..., :3, :3], P[..., :3, 3:], P[..., 3:, 3:])
    S = skew(position)
    moved = C + S @ M
    half = S @ C.mT
    I = I + half - moved @ S
    return _symmetric_blocks(mirror_upper(I), moved, M)


def _symmetric_blocks(I: Tensor, C: Tensor, M: Tensor) -> Tensor:
    I, C, M = torch.broadcast_tensors(I, C, M)
    return torch.cat([torch.cat([I, C], -1), torch.cat([C.mT, M], -1)], -2)
