"""Joints of one point: the origins coincide, and axes of both markers are orthogonal."""

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
class Pivot(FrameRows):
    """Three rows x2 - x1 in the shared axes, then one for each pair of orthogonal axes.

    Attributes:
        axes: pairs of axes of the first and the second marker (0, 1, 2 for x, y, z).
    """

    axes: tuple[tuple[int, int], ...] = ()

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """The distance [m], then the cosines of the angles between the axes."""
        axes = [axis_residual(one.axis(i), two.axis(k)) for i, k in self.axes]
        return torch.cat([two.position - one.position, torch.stack(axes, -1)], -1)

    def maps(self, one: Marker, two: Marker) -> tuple[Tensor, Tensor]:
        """Point rows, then axis rows."""
        rows = [axis_maps(one.axis(i), two.axis(k)) for i, k in self.axes]
        first, second = (torch.stack(x, -2) for x in zip(*rows, strict=True))
        batch = first.shape[:-2]
        P1, P2 = (x.expand(*batch, 3, 6) for x in point_maps(one.position))
        return torch.cat([P1, first], -2), torch.cat([P2, second], -2)

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor) -> Tensor:
        """Zero for point rows, then the bias of axis rows."""
        w1, w2 = V1[..., :3], V2[..., :3]
        rows = [axis_bias(one.axis(i), two.axis(k), w1, w2) for i, k in self.axes]
        axes = torch.stack(rows, -1)
        return torch.cat([axes.new_zeros(*axes.shape[:-1], 3), axes], -1)


REVOLUTE = Pivot("revolute", 5, angular_rows=(3, 4), axes=((2, 0), (2, 1)))
"""The z axes coincide: z1.x2 and z1.y2 vanish."""

UNIVERSAL = Pivot("universal", 4, angular_rows=(3,), axes=((0, 1),))
"""The x axis of the first marker and the y axis of the second are orthogonal (Cardan joint)."""
