"""Revolute joint: the origins coincide, and so do the z axes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import (
    FrameRows,
    Marker,
    axis_bias,
    axis_maps,
    axis_residual,
    point_maps,
)


@dataclass(frozen=True)
class Revolute(FrameRows):
    """Five rows: x2 - x1 in the shared axes, then z1.x2 and z1.y2."""

    name: str = "revolute"
    num_rows: int = 5

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """The distance [m], then the cosines of two angles."""
        axes = [axis_residual(one.axis(2), two.axis(i)) for i in range(2)]
        return torch.cat([two.position - one.position, torch.stack(axes, -1)], -1)

    def maps(self, one: Marker, two: Marker) -> tuple[Tensor, Tensor]:
        """Point rows, then axis rows."""
        rows = [axis_maps(one.axis(2), two.axis(i)) for i in range(2)]
        first, second = (torch.stack(x, -2) for x in zip(*rows, strict=True))
        batch = first.shape[:-2]
        P1, P2 = (x.expand(*batch, 3, 6) for x in point_maps(one.position))
        return torch.cat([P1, first], -2), torch.cat([P2, second], -2)

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor) -> Tensor:
        """Zero for point rows, then the bias of axis rows."""
        w1, w2 = V1[..., :3], V2[..., :3]
        rows = [axis_bias(one.axis(2), two.axis(i), w1, w2) for i in range(2)]
        axes = torch.stack(rows, -1)
        return torch.cat([axes.new_zeros(*axes.shape[:-1], 3), axes], -1)
