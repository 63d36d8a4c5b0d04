"""Spatial motion and force vectors, `[angular; linear]`, as columns `[*, 6, 1]`; their cross products."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.spatial.rotation import cross


def cross_motion(V: Tensor, S: Tensor) -> Tensor:
    """V x_m S: rate of a motion vector S fixed in a frame that moves with V, `[*, 6, 1]`."""
    w, v = V[..., :3, 0], V[..., 3:, 0]
    s_w, s_v = S[..., :3, 0], S[..., 3:, 0]
    return torch.cat([cross(w, s_w), cross(w, s_v) + cross(v, s_w)], -1)[..., None]


def cross_force(V: Tensor, F: Tensor) -> Tensor:
    """V x_f F: rate of a force vector F fixed in a frame that moves with V, `[*, 6, 1]`."""
    w, v = V[..., :3, 0], V[..., 3:, 0]
    n, f = F[..., :3, 0], F[..., 3:, 0]
    return torch.cat([cross(w, n) + cross(v, f), cross(w, f)], -1)[..., None]
