"""Ellipsoid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from torchsko.shapes.candidate_points import Placed, Points
from torchsko.shapes.form import Collision, Form
from torchsko.shapes.plane import plane_point
from torchsko.shapes.rays import ray_hits_ball
from torchsko.shapes.tessellation import arc, revolve
from torchsko.utils.shapes import matvec, norm


def plane_ellipsoid(plane: Placed, ellipsoid: Placed) -> Points:
    """The support point of an ellipsoid."""
    n, square = plane.axis, ellipsoid.size * ellipsoid.size
    local = matvec(ellipsoid.rotation.mT, -n)
    scaled = square * local
    support = scaled / norm(ellipsoid.size * local)[..., None]
    point = ellipsoid.position + matvec(ellipsoid.rotation, support)
    return Points.stack([plane_point(plane, point)])


@dataclass(frozen=True)
class Ellipsoid(Form):
    """An ellipsoid; `radii` along x, y and z [m]."""

    radii: tuple[float, ...]

    kind: ClassVar[str] = "ellipsoid"
    num_sizes: ClassVar[int] = 3
    pairs: ClassVar[Mapping[str, Collision]] = {"plane": Collision(plane_ellipsoid)}

    @property
    def half_sizes(self) -> tuple[float, float, float]:
        """The radii."""
        x, y, z = self.radii
        return x, y, z

    def mesh(self) -> tuple[np.ndarray, np.ndarray]:
        """A stretched ball."""
        vertices, faces = revolve(*arc(1.0, 0.0))
        return vertices * np.array(self.radii), faces

    def ray_hits(self, p: Tensor, d: Tensor) -> Tensor:
        """See `Form.ray_hits`."""
        radii = p.new_tensor(self.radii)
        return ray_hits_ball(p / radii, d / radii, 1.0)
