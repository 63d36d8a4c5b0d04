"""Rod: the origins of both markers keep a distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import FrameRows, Marker


@dataclass(frozen=True)
class Distance(FrameRows):
    """One row, |x2 - x1| - length; not defined where both origins coincide."""

    name: str = "distance"
    num_rows: int = 1
    summary: str = "the distance of the origins is `length`"
    parameters: tuple[str, ...] = ("length",)

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """|x2 - x1| - length [m]."""
        return _length(two.position - one.position) - parameters

    def maps(self, one: Marker, two: Marker, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """The relative velocity along the rod."""
        d = two.position - one.position
        u = (d / _length(d))[..., None, :]
        L2 = torch.cat([torch.zeros_like(u), u], -1)
        return -L2, L2

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor, parameters: Tensor) -> Tensor:
        """(|dv|^2 - (u.dv)^2) / |d|."""
        d, dv = two.position - one.position, V2[..., 3:] - V1[..., 3:]
        size = _length(d)
        along = (d / size * dv).sum(-1, keepdim=True)
        return (dv.square().sum(-1, keepdim=True) - along.square()) / size


def _length(d: Tensor) -> Tensor:
    return d.square().sum(-1, keepdim=True).sqrt()


KIND = Distance()
