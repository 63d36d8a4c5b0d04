"""Plane, whose normal is z; contacts with it are in the files of the other shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from torchsko.shapes.candidate_points import Placed, Points, dot
from torchsko.shapes.form import Form
from torchsko.shapes.tessellation import grid
from torchsko.utils.shapes import broadcast_shapes

PLANE_SIZE = 20.0
"""Edge length at which an infinite plane is drawn [m]."""


@dataclass(frozen=True)
class Plane(Form):
    """A plane through the origin with normal z; `size`: edge lengths as drawn [m], 0 for infinite."""

    size: tuple[float, float] = (0.0, 0.0)

    kind: ClassVar[str] = "plane"
    is_fixed: ClassVar[bool] = True

    def mesh(self) -> tuple[np.ndarray, np.ndarray]:
        """Two triangles."""
        x, y = (size or PLANE_SIZE for size in self.size)
        return grid(np.zeros((2, 2)), (x, y))


def plane_ball(plane: Placed, center: Tensor, radius: Tensor) -> Points:
    """The contact of a ball with a plane, without dimension k."""
    n = plane.axis.expand(broadcast_shapes(plane.axis.shape, center.shape))
    distance = dot(n, center - plane.position) - radius
    return Points.of(distance, center - n * (radius + distance / 2)[..., None], n)


def plane_point(plane: Placed, point: Tensor) -> Points:
    """The contact of a point of a surface with a plane, without dimension k."""
    n = plane.axis.expand_as(point)
    distance = dot(n, point - plane.position)
    return Points.of(distance, point - n * (distance / 2)[..., None], n)
