"""Universal (Cardan) joint: the origins coincide, and two axes are orthogonal."""

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
class Universal(FrameRows):
    """Three rows x2 - x1 in the shared axes, then e1.e2 of x of the first marker and y of the second."""

    name: str = "universal"
    num_rows: int = 4
    summary: str = "origins coincide; x of the first frame is orthogonal to y of the second"
    angular_rows: tuple[int, ...] = (3,)

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """The distance [m], then the cosine of the angle between the axes."""
        angular = axis_residual(one.axis(0), two.axis(1))
        return torch.cat([two.position - one.position, angular[..., None]], -1)

    def maps(self, one: Marker, two: Marker, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Point rows, then the axis row."""
        rows = axis_maps(one.axis(0), two.axis(1))
        L1, L2 = (
            torch.cat([point.expand(*row.shape[:-1], 3, 6), row[..., None, :]], -2)
            for point, row in zip(point_maps(one.position), rows, strict=True)
        )
        return L1, L2

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor, parameters: Tensor) -> Tensor:
        """Zero for point rows, then the bias of the axis row."""
        row = axis_bias(one.axis(0), two.axis(1), V1[..., :3], V2[..., :3])
        return torch.nn.functional.pad(row[..., None], (3, 0))


KIND = Universal()
