"""Ball joint (MuJoCo's connect): the origins of both markers coincide."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import FrameRows, Marker, point_maps


@dataclass(frozen=True)
class Ball(FrameRows):
    """Three rows, x2 - x1 in the shared axes."""

    name: str = "ball"
    num_rows: int = 3
    summary: str = "the origins coincide"
    synonyms: tuple[str, ...] = ("connect", "spherical")
    mjcf: str = "connect"
    urdf: str = "spherical"

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """The vector x2 - x1 [m]."""
        return two.position - one.position

    def maps(self, one: Marker, two: Marker, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Plus and minus the linear velocity."""
        return point_maps(one.position)

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor, parameters: Tensor) -> Tensor:
        """Zero, since the maps are constant."""
        return torch.zeros_like(V2[..., 3:])


KIND = Ball()
