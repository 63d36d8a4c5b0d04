"""Rotations: axis and angle, unit quaternions `w x y z`, and their exponential and logarithm.

`R_ab` takes b-coordinates to a-coordinates. Every function is smooth where the mathematics is: the
quotients sin(x)/x and their kin are functions of x^2, with a series near zero chosen by `torch.where`
on both sides, so that no derivative of any order becomes nan there.
"""

from __future__ import annotations

import torch
from torch import Tensor


def skew(v: Tensor) -> Tensor:
    """Matrix of the cross product with a vector, v x w: `[*, 3]` to `[*, 3, 3]`."""
    identity = torch.eye(3, dtype=v.dtype, device=v.device)
    return cross(v[..., None, :], identity).mT  # its columns are v x e_j


def cross(v: Tensor, w: Tensor) -> Tensor:
    """Cross product of the last dimension, batch dimensions broadcast, `[*, 3]`."""
    return torch.linalg.cross(*torch.broadcast_tensors(v, w))


SHORTEST = 1e-30
"""Square of the length below which a quaternion has no direction and counts as zero (MuJoCo's)."""


def quaternion_to_matrix(quat: Tensor) -> Tensor:
    """Rotation matrix of a quaternion `w x y z` of any length: `[*, 4]` to `[*, 3, 3]`.

    Only its direction counts, so the gradient is orthogonal to it. Zero stands for the identity, with
    a gradient of zero.
    """
    return _to_matrix(quat, 2 / _length2(quat)[0][..., 0])


def unit_quaternion(quat: Tensor) -> Tensor:
    """A quaternion of any length made unit, `[*, 4]`; zero becomes the identity."""
    length2, small = _length2(quat)
    identity = torch.eye(1, 4, dtype=quat.dtype, device=quat.device)[0]
    return torch.where(small, identity, quat * length2.rsqrt())


def _length2(quat: Tensor) -> tuple[Tensor, Tensor]:
    """Square of the length `[*, 1]`, 1 where it counts as zero, and whether it does."""
    length2 = (quat * quat).sum(-1, keepdim=True)
    small = length2 < SHORTEST
    return torch.where(small, 1.0, length2), small


def unit_quaternion_to_matrix(quat: Tensor) -> Tensor:
    """Rotation matrix of a quaternion known to be unit: `[*, 4]` to `[*, 3, 3]`."""
    return _to_matrix(quat, 2.0)


def _to_matrix(quat: Tensor, scale: Tensor | float) -> Tensor:
    w, x, y, z = quat.unbind(-1)
    xx, yy, zz, xy, xz, yz = x * x, y * y, z * z, x * y, x * z, y * z
    wx, wy, wz = w * x, w * y, w * z
    rows = [
        torch.stack([1 - scale * (yy + zz), scale * (xy - wz), scale * (xz + wy)], -1),
        torch.stack([scale * (xy + wz), 1 - scale * (xx + zz), scale * (yz - wx)], -1),
        torch.stack([scale * (xz - wy), scale * (yz + wx), 1 - scale * (xx + yy)], -1),
    ]
    return torch.stack(rows, -2)


def quaternion_multiply(p: Tensor, q: Tensor) -> Tensor:
    """Hamilton product of quaternions `w x y z`, `[*, 4]`."""
    pw, px, py, pz = p.unbind(-1)
    qw, qx, qy, qz = q.unbind(-1)
    return torch.stack(
        [
            pw * qw - px * qx - py * qy - pz * qz,
            pw * qx + px * qw + py * qz - pz * qy,
            pw * qy - px * qz + py * qw + pz * qx,
            pw * qz + px * qy - py * qx + pz * qw,
        ],
        -1,
    )


def quaternion_conjugate(quat: Tensor) -> Tensor:
    """Conjugate of a quaternion `w x y z`, the inverse of a unit one, `[*, 4]`."""
    return torch.cat([quat[..., :1], -quat[..., 1:]], -1)


def quaternion_exp(rotvec: Tensor) -> Tensor:
    """Unit quaternion of a rotation vector (axis times angle [rad]): `[*, 3]` to `[*, 4]`."""
    half2 = (rotvec * rotvec).sum(-1, keepdim=True) / 4
    return torch.cat([_cos(half2), rotvec * (_sinc(half2) / 2)], -1)


def quaternion_log(quat: Tensor) -> Tensor:
    """Rotation vector of a unit quaternion, of length at most pi: `[*, 4]` to `[*, 3]` [rad].

    Either of the two quaternions of a rotation may be given. Smooth except at half turns.
    """
    w, v = quat[..., :1], quat[..., 1:]
    sign = torch.where(w < 0, -torch.ones_like(w), torch.ones_like(w))
    w, v = w * sign, v * sign
    s2 = (v * v).sum(-1, keepdim=True)
    small = s2 < 1e-4 if quat.dtype == torch.float32 else s2 < 1e-6
    safe = torch.where(small, torch.ones_like(s2), s2)
    s = safe.sqrt()
    # 2 atan2(s, w) / s = 2 asin(s) / s near s = 0, a series in s^2.
    series = 2 + s2 * (1 / 3 + s2 * (3 / 20 + s2 * (5 / 56)))
    w_safe = torch.where(small, torch.ones_like(w), w)
    return v * torch.where(small, series, 2 * torch.atan2(s, w_safe) / s)


def matrix_to_quaternion(R: Tensor) -> Tensor:
    """Unit quaternion `w x y z` of a rotation matrix, of either sign: `[*, 3, 3]` to `[*, 4]`.

    The matrix 4 q q* is linear in R; its row with the largest diagonal entry is a multiple of q, at
    least as long as 1. Smooth but for jumps of the sign.

    Reference: S. Shepperd, *Quaternion from rotation matrix*, Journal of Guidance and Control 1(3), 1978.
    """
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (row.unbind(-1) for row in R.unbind(-2))
    wx, wy, wz = zy - yz, xz - zx, yx - xy
    products = torch.stack(
        [
            torch.stack([1 + xx + yy + zz, wx, wy, wz], -1),
            torch.stack([wx, 1 + xx - yy - zz, xy + yx, xz + zx], -1),
            torch.stack([wy, xy + yx, 1 - xx + yy - zz, yz + zy], -1),
            torch.stack([wz, xz + zx, yz + zy, 1 - xx - yy + zz], -1),
        ],
        -2,
    )
    row, size = products[..., 0, :], products[..., 0, 0]
    for k in range(1, 4):
        larger = products[..., k, k] > size
        row = torch.where(larger[..., None], products[..., k, :], row)
        size = torch.where(larger, products[..., k, k], size)
    return row / (row * row).sum(-1, keepdim=True).sqrt()


def matrix_exp(rotvec: Tensor) -> Tensor:
    """Rotation matrix of a rotation vector (axis times angle [rad]): `[*, 3]` to `[*, 3, 3]`."""
    return unit_quaternion_to_matrix(quaternion_exp(rotvec))


def matrix_log(R: Tensor) -> Tensor:
    """Rotation vector of a rotation matrix, of length at most pi: `[*, 3, 3]` to `[*, 3]` [rad].

    Smooth except at half turns.
    """
    return quaternion_log(matrix_to_quaternion(R))


def matrix_to_rpy(R: Tensor) -> Tensor:
    """Roll, pitch and yaw about fixed axes, R = Rz(yaw) Ry(pitch) Rx(roll), as URDF has it.

    Pitch lies within a quarter turn. Where it is one, roll and yaw turn about one axis: singular.

    Args:
        R: `[*, 3, 3]`.

    Returns:
        `[*, 3]` [rad].
    """
    across = (R[..., 0, 0] ** 2 + R[..., 1, 0] ** 2).sqrt()
    roll, yaw = torch.atan2(R[..., 2, 1], R[..., 2, 2]), torch.atan2(R[..., 1, 0], R[..., 0, 0])
    return torch.stack([roll, torch.atan2(-R[..., 2, 0], across), yaw], -1)


def translation_jacobian(rotvec: Tensor) -> Tensor:
    """The matrix V of the SE(3) exponential, exp([w; v]) = (exp w, V(w) v): `[*, 3]` to `[*, 3, 3]`."""
    x2 = (rotvec * rotvec).sum(-1, keepdim=True)[..., None]
    W = skew(rotvec)
    identity = torch.eye(3, dtype=rotvec.dtype, device=rotvec.device)
    return identity + _versine(x2) * W + _sine_excess(x2) * (W @ W)


def angular_velocity(rotvec: Tensor, rate: Tensor) -> Tensor:
    """Angular velocity in body axes of exp(rotvec) whose rotation vector has this rate, `[*, 3]`.

    It is linear in the rate, with the matrix V(-rotvec) of `translation_jacobian`.
    """
    x2 = (rotvec * rotvec).sum(-1, keepdim=True)
    turned = cross(rotvec, rate)
    return rate - _versine(x2) * turned + _sine_excess(x2) * cross(rotvec, turned)


def angular_accel_bias(rotvec: Tensor, rate: Tensor) -> Tensor:
    """Rate of `angular_velocity` at a constant rate of the rotation vector, `[*, 3]`."""
    x2 = (rotvec * rotvec).sum(-1, keepdim=True)
    twice = 2 * (rotvec * rate).sum(-1, keepdim=True)  # the rate of x2
    turned = cross(rotvec, rate)
    small, safe = _split(x2)
    versine, excess = _versine(x2), _sine_excess(x2)
    series = -1 / 24 + x2 * (1 / 360 - x2 * (1 / 13440 - x2 / 907200))
    slope = torch.where(small, series, (_sinc(x2) / 2 - versine) / safe)
    excess_series = -1 / 120 + x2 * (1 / 2520 - x2 * (1 / 120960 - x2 / 9979200))
    excess_slope = torch.where(small, excess_series, (versine - 3 * excess) / (2 * safe))
    return (
        -slope * twice * turned
        + excess_slope * twice * cross(rotvec, turned)
        + excess * cross(rate, turned)
    )


def translation_jacobian_inverse(rotvec: Tensor) -> Tensor:
    """Inverse of `translation_jacobian`, for rotations below a full turn: `[*, 3]` to `[*, 3, 3]`."""
    x2 = (rotvec * rotvec).sum(-1, keepdim=True)[..., None]
    W = skew(rotvec)
    identity = torch.eye(3, dtype=rotvec.dtype, device=rotvec.device)
    small, safe = _split(x2)
    # 1/x^2 - (1 + cos x) / (2 x sin x), written with the half angle.
    half = safe.sqrt() / 2
    exact = (1 - half / half.tan()) / safe
    series = 1 / 12 + x2 * (1 / 720 + x2 * (1 / 30240 + x2 / 1209600))
    return identity - W / 2 + torch.where(small, series, exact) * (W @ W)


def _split(x2: Tensor) -> tuple[Tensor, Tensor]:
    """Mask of small x, where the series is used, and x^2 with those entries replaced by 1."""
    small = x2 < (1e-2 if x2.dtype == torch.float32 else 1e-3)
    return small, torch.where(small, torch.ones_like(x2), x2)


def _cos(x2: Tensor) -> Tensor:
    small, safe = _split(x2)
    series = 1 - x2 / 2 * (1 - x2 / 12 * (1 - x2 / 30 * (1 - x2 / 56 * (1 - x2 / 90))))
    return torch.where(small, series, safe.sqrt().cos())


def _sinc(x2: Tensor) -> Tensor:
    """The function sin(x) / x of x^2."""
    small, safe = _split(x2)
    x = safe.sqrt()
    series = 1 - x2 / 6 * (1 - x2 / 20 * (1 - x2 / 42 * (1 - x2 / 72 * (1 - x2 / 110))))
    return torch.where(small, series, x.sin() / x)


def _versine(x2: Tensor) -> Tensor:
    """(1 - cos x) / x^2."""
    small, safe = _split(x2)
    half = (safe.sqrt() / 2).sin()
    series = (1 - x2 / 12 * (1 - x2 / 30 * (1 - x2 / 56 * (1 - x2 / 90)))) / 2
    return torch.where(small, series, 2 * half * half / safe)


def _sine_excess(x2: Tensor) -> Tensor:
    """(x - sin x) / x^3."""
    small, safe = _split(x2)
    x = safe.sqrt()
    series = (1 - x2 / 20 * (1 - x2 / 42 * (1 - x2 / 72 * (1 - x2 / 110)))) / 6
    return torch.where(small, series, (x - x.sin()) / (safe * x))
