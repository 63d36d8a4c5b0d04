"""Cylinder along z."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from torchsko.shapes.candidate_points import Placed, Points, dot, unit
from torchsko.shapes.form import Collision, Form
from torchsko.shapes.plane import plane_point
from torchsko.shapes.rays import ray_hits_tube
from torchsko.shapes.sphere import ball_ball
from torchsko.shapes.tessellation import revolve
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import norm


def plane_cylinder(plane: Placed, cylinder: Placed) -> Points:
    """The lowest points of both discs, and two more of the lower disc.

    The three points of the lower disc form an equilateral triangle, so that an upright cylinder stands.
    """
    n, radius, half = plane.axis, cylinder.size[..., 0, None], cylinder.size[..., 1, None]
    along = dot(n, cylinder.axis)[..., None]
    axis = torch.where(along > 0, -cylinder.axis, cylinder.axis)
    along = -along.abs()
    down = axis * along - n
    upright = norm(down)[..., None] < 1e-15
    down = (
        torch.where(upright, cylinder.rotation[..., 0], unit(down, cylinder.rotation[..., 0]))
        * radius
    )
    axis = axis * half
    side = unit(cross(down, axis), cylinder.rotation[..., 1]) * (radius * 3**0.5 / 2)
    offsets = (down + axis, down - axis, side + axis - down / 2, axis - side - down / 2)
    return Points.stack([plane_point(plane, cylinder.position + offset) for offset in offsets])


def sphere_cylinder(sphere: Placed, cylinder: Placed) -> Points:
    """The point between a sphere and the side, a disc or the rim of a cylinder."""
    axis, radius, half = cylinder.axis, cylinder.size[..., 0], cylinder.size[..., 1]
    between = sphere.position - cylinder.position
    along = dot(axis, between)
    across = between - axis * along[..., None]
    distance = norm(across)
    beside, above = along.abs() < half, distance < radius
    nearer_disc = half - along.abs() < radius - distance
    on_side = beside & ~(above & nearer_disc)
    on_disc = above & ~(beside & ~nearer_disc)
    outward = unit(across, cylinder.rotation[..., 0])
    end = axis * torch.where(along > 0, half, -half)[..., None]
    # The nearest point of the axis, of the rim, or the foot point on the disc.
    inner = torch.where(
        on_side[..., None], axis * along[..., None], end + outward * radius[..., None]
    )
    inner = torch.where(on_disc[..., None], end + across, inner)
    size = sphere.size[..., 0]
    rounded = ball_ball(
        sphere.position, size,
        cylinder.position + inner, torch.where(on_side, radius, torch.zeros_like(radius)),
    )  # fmt: skip
    n = torch.where(along > 0, -1.0, 1.0).to(axis.dtype)[..., None] * axis
    gap = along.abs() - half - size
    flat = Points.of(gap, sphere.position + n * (size + gap / 2)[..., None], n)
    return Points.stack(
        [
            Points(
                *(
                    torch.where(on_disc if k == 0 else on_disc[..., None], x, y)
                    for k, (x, y) in enumerate(zip(flat, rounded, strict=True))
                )
            )
        ]
    )


@dataclass(frozen=True)
class Cylinder(Form):
    """A cylinder along z; `radius` and `length` [m]."""

    radius: float
    length: float

    kind: ClassVar[str] = "cylinder"
    num_sizes: ClassVar[int] = 2
    pairs: ClassVar[Mapping[str, Collision]] = {
        "plane": Collision(plane_cylinder),
        "sphere": Collision(sphere_cylinder),
    }

    @property
    def half_sizes(self) -> tuple[float, float, float]:
        """The radius and half the length."""
        return self.radius, self.length / 2, 0.0

    def mesh(self) -> tuple[np.ndarray, np.ndarray]:
        """A surface of revolution, each rim twice: the faces at a sharp edge share no vertex."""
        half, radius = self.length / 2, self.radius
        radii = np.array([0.0, radius, radius, radius, radius, 0.0])
        return revolve(radii, np.array([-half, -half, -half, half, half, half]))

    def ray_hits(self, p: Tensor, d: Tensor) -> Tensor:
        """See `Form.ray_hits`."""
        return ray_hits_tube(p, d, self.radius, self.length / 2)
