r"""Weld: both markers coincide.

With the unit quaternion (w, v) of the rotation B = R2 R1* of at most half a turn, the angular rows are
2 sin(angle / 2) times its axis:

.. math::
    \phi = 2 v, \qquad
    \dot\phi = w\, (w_2 - w_1) + (w_1 + w_2) \times v, \qquad
    \dot w = -\tfrac12 v \cdot (w_2 - w_1).

They vanish only where both markers coincide, and the rate is w2 - w1 there. So the multipliers are moments in
the shared axes. At half a turn the residual has the length 2 and its sign jumps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import FrameRows, Marker, point_maps
from torchsko.constraints.soft_weld import SoftWeld
from torchsko.spatial.rotation import cross, matrix_to_quaternion, skew


@dataclass(frozen=True)
class Weld(FrameRows):
    """Six rows: three angular rows, then x2 - x1, in the shared axes."""

    name: str = "weld"
    num_rows: int = 6
    summary: str = "the frames coincide"
    angular_rows: tuple[int, ...] = (0, 1, 2)
    synonyms: tuple[str, ...] = ("fixed",)
    mjcf: str = "weld"
    urdf: str = "fixed"

    @property
    def soft(self) -> SoftWeld:
        """MuJoCo's weld."""
        return SoftWeld()

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """2 sin(angle / 2) times the axis of the relative rotation, then the distance [m]."""
        angular = 2 * _relative_rotation(one, two)[1]
        return torch.cat(torch.broadcast_tensors(angular, two.position - one.position), -1)

    def maps(self, one: Marker, two: Marker, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Angular rows, then point rows."""
        w, v = _relative_rotation(one, two)
        scaled, turned = w[..., None] * torch.eye(3, dtype=v.dtype, device=v.device), skew(v)
        zero = torch.zeros_like(turned)
        first = torch.cat([-scaled - turned, zero], -1)
        second = torch.cat([scaled - turned, zero], -1)
        P1, P2 = (x.expand(*v.shape[:-1], 3, 6) for x in point_maps(one.position))
        return torch.cat([first, P1], -2), torch.cat([second, P2], -2)

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor, parameters: Tensor) -> Tensor:
        """The maps' rates times the velocities."""
        w, v = _relative_rotation(one, two)
        w1, w2 = V1[..., :3], V2[..., :3]
        relative, total = w2 - w1, w1 + w2
        w_rate = -(v * relative).sum(-1, keepdim=True) / 2
        v_rate = (w * relative + cross(total, v)) / 2
        angular = w_rate * relative + cross(total, v_rate)
        return torch.cat([angular, torch.zeros_like(angular)], -1)


def _relative_rotation(one: Marker, two: Marker) -> tuple[Tensor, Tensor]:
    """Scalar `[*, 1]` and vector `[*, 3]` of the quaternion of R2 R1*, the scalar not negative."""
    q = matrix_to_quaternion(two.rotation @ one.rotation.mT)
    w, v = q.split([1, 3], -1)
    is_negative = w < 0
    return torch.where(is_negative, -w, w), torch.where(is_negative, -v, v)


KIND = Weld()
