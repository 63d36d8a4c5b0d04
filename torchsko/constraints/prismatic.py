"""Prismatic joint: the orientations coincide, and the second origin is on the z axis of the first marker."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.planar import Planar
from torchsko.constraints.row_kinds import FrameRows, Marker
from torchsko.constraints.weld import Weld
from torchsko.utils.shapes import broadcast_shapes

ORIENTATION, POSITION = Weld(), Planar()


@dataclass(frozen=True)
class Prismatic(FrameRows):
    """Five rows: the angular rows of a weld, then those within the plane."""

    name: str = "prismatic"
    num_rows: int = 5
    summary: str = "orientations and z axes coincide"
    angular_rows: tuple[int, ...] = (0, 1, 2)
    urdf: str = "prismatic"

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """2 sin(angle / 2) times the axis of the relative rotation, then the distance from z [m]."""
        angular = ORIENTATION.residual(one, two, parameters)[..., :3]
        planar = POSITION.residual(one, two, parameters)
        batch = broadcast_shapes(angular.shape[:-1], planar.shape[:-1])
        return torch.cat([x.expand(*batch, -1) for x in (angular, planar)], -1)

    def maps(self, one: Marker, two: Marker, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Angular rows, then rows within the plane."""
        found = []
        pairs = zip(
            ORIENTATION.maps(one, two, parameters), POSITION.maps(one, two, parameters), strict=True
        )
        for angular, planar in pairs:
            batch = broadcast_shapes(angular.shape[:-2], planar.shape[:-2])
            rows = (angular[..., :3, :], planar)
            found.append(torch.cat([x.expand(*batch, -1, -1) for x in rows], -2))
        return found[0], found[1]

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor, parameters: Tensor) -> Tensor:
        """The bias of both parts."""
        angular = ORIENTATION.bias(one, two, V1, V2, parameters)[..., :3]
        return torch.cat([angular, POSITION.bias(one, two, V1, V2, parameters)], -1)


KIND = Prismatic()
