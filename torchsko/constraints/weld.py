r"""Weld: both markers coincide.

With B = R2 R1*, the angular rows are the vector of the antisymmetric part of B, sin(angle) times the axis:

.. math::
    \phi = \tfrac12 \sum_i e_{1i} \times e_{2i}, \qquad
    \dot\phi = \tfrac12 [(\mathrm{tr} B)\, (w_2 - w_1) - B\, w_2 + B^* w_1],

which is w2 - w1 where both markers coincide. So the multipliers are moments in the shared axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import FrameRows, Marker, point_maps
from torchsko.spatial.rotation import cross, skew
from torchsko.utils.shapes import matvec


@dataclass(frozen=True)
class Weld(FrameRows):
    """Six rows: three angular rows, then x2 - x1, in the shared axes."""

    name: str = "weld"
    num_rows: int = 6
    angular_rows: tuple[int, ...] = (0, 1, 2)

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """Sine of the angle times the axis of the relative rotation, then the distance [m]."""
        turned = [cross(one.axis(i), two.axis(i)) for i in range(3)]
        angular = (turned[0] + turned[1] + turned[2]) / 2
        return torch.cat(torch.broadcast_tensors(angular, two.position - one.position), -1)

    def maps(self, one: Marker, two: Marker) -> tuple[Tensor, Tensor]:
        """Angular rows, then point rows."""
        B = two.rotation @ one.rotation.mT
        identity = torch.eye(3, dtype=B.dtype, device=B.device)
        scaled = _trace(B)[..., None, None] * identity
        zero = torch.zeros_like(B)
        first = torch.cat([(B.mT - scaled) / 2, zero], -1)
        second = torch.cat([(scaled - B) / 2, zero], -1)
        P1, P2 = (x.expand(*B.shape[:-2], 3, 6) for x in point_maps(one.position))
        return torch.cat([first, P1], -2), torch.cat([second, P2], -2)

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor) -> Tensor:
        """The maps' rates times the velocities."""
        B = two.rotation @ one.rotation.mT
        w1, w2 = V1[..., :3], V2[..., :3]
        rate = skew(w2) @ B - B @ skew(w1)
        angular = (_trace(rate)[..., None] * (w2 - w1) - matvec(rate, w2) + matvec(rate.mT, w1)) / 2
        return torch.cat([angular, torch.zeros_like(angular)], -1)


def _trace(B: Tensor) -> Tensor:
    return B.diagonal(dim1=-2, dim2=-1).sum(-1)
