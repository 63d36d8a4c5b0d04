"""Rows of a frame that stays where it is: its velocity vanishes, its placement is free."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import FrameRows, Marker

COMPONENTS = {"point": (3, 4, 5), "weld": (0, 1, 2, 3, 4, 5), "planar": (3, 4)}
"""Components of the velocity [w; v] that vanish, by kind of rows."""


@dataclass(frozen=True)
class Still(FrameRows):
    """Components of the second marker's velocity in the shared axes; the residual is zero."""

    components: tuple[int, ...] = ()

    @staticmethod
    def of(rows: str) -> Still:
        """The kind for "point", "weld" or "planar" rows."""
        chosen = COMPONENTS[rows]
        angular = tuple(k for k, component in enumerate(chosen) if component < 3)
        return Still(f"still {rows}", len(chosen), angular_rows=angular, components=chosen)

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """Zero."""
        position = two.position
        return position.new_zeros(*position.shape[:-1], self.num_rows)

    def maps(self, one: Marker, two: Marker, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Unit rows."""
        like = two.position
        unit = torch.eye(6, dtype=like.dtype, device=like.device)[list(self.components)]
        return torch.zeros_like(unit), unit

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor, parameters: Tensor) -> Tensor:
        """Zero, since the maps are constant."""
        return torch.zeros_like(V2[..., : self.num_rows])
