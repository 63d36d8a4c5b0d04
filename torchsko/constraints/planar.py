"""Point rows within a plane: the second origin lies on the z axis of the first marker."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import FrameRows, Marker
from torchsko.spatial.rotation import cross


@dataclass(frozen=True)
class Planar(FrameRows):
    """Two rows, e.(x2 - x1) for e = x1, y1: the minimal cut of a loop that moves in this plane."""

    name: str = "planar"
    num_rows: int = 2
    summary: str = "the second origin is on the z axis of the first frame"

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """Coordinates x and y of the second origin in the first marker [m]."""
        d = two.position - one.position
        return torch.stack([(one.axis(i) * d).sum(-1) for i in range(2)], -1)

    def maps(self, one: Marker, two: Marker, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """The rate of e.d is e.(v2 - v1) + w1.(e x d)."""
        d = two.position - one.position
        first, second = [], []
        for e in (one.axis(0), one.axis(1)):
            e, moment = torch.broadcast_tensors(e, cross(e, d))
            first.append(torch.cat([moment, -e], -1))
            second.append(torch.cat([torch.zeros_like(e), e], -1))
        return torch.stack(first, -2), torch.stack(second, -2)

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor, parameters: Tensor) -> Tensor:
        """(w1 x e).dv + w1.[(w1 x e) x d + e x dv]."""
        d, w = two.position - one.position, V1[..., :3]
        dv = V2[..., 3:] - V1[..., 3:]
        rows = []
        for e in (one.axis(0), one.axis(1)):
            turned = cross(w, e)
            rows.append((turned * dv + w * (cross(turned, d) + cross(e, dv))).sum(-1))
        return torch.stack(rows, -1)


KIND = Planar()
