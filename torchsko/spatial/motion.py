"""Spatial motion and force vectors, `[angular; linear]`, as columns `[*, 6, 1]`; their cross products."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.spatial.rotation import cross, skew


def cross_motion(V: Tensor, S: Tensor) -> Tensor:
    """V x_m S: rate of a motion vector S fixed in a frame that moves with V, `[*, 6, 1]`."""
    w, v, halves = V[..., None, :3, 0], V[..., 3:, 0], S[..., 0].unflatten(-1, (2, 3))
    upper, lower = cross(w, halves).unbind(-2)
    return torch.cat([upper, lower + cross(v, halves[..., 0, :])], -1)[..., None]


def cross_force(V: Tensor, F: Tensor) -> Tensor:
    """V x_f F: rate of a force vector F fixed in a frame that moves with V, `[*, 6, 1]`."""
    w, v, halves = V[..., None, :3, 0], V[..., 3:, 0], F[..., 0].unflatten(-1, (2, 3))
    upper, lower = cross(w, halves).unbind(-2)
    return torch.cat([upper + cross(v, halves[..., 1, :]), lower], -1)[..., None]


def motion_matrix(V: Tensor) -> Tensor:
    """The matrix of V x_m, `[*, 6, 1]` to `[*, 6, 6]`; that of V x_f is minus its transpose."""
    w, v = skew(V[..., :3, 0]), skew(V[..., 3:, 0])
    return torch.cat([torch.cat([w, torch.zeros_like(w)], -1), torch.cat([v, w], -1)], -2)


def swapped_force_matrix(F: Tensor) -> Tensor:
    """The matrix that takes V to V x_f F, skew-symmetric, `[*, 6, 1]` to `[*, 6, 6]`."""
    n, f = skew(F[..., :3, 0]), skew(F[..., 3:, 0])
    return -torch.cat([torch.cat([n, f], -1), torch.cat([f, torch.zeros_like(f)], -1)], -2)
