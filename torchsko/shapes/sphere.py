"""Sphere, and contact of balls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from torchsko.shapes.candidate_points import Placed, Points, unit
from torchsko.shapes.form import Collision, Form
from torchsko.shapes.height_field import terrain_balls
from torchsko.shapes.plane import plane_ball
from torchsko.shapes.rays import ray_hits_ball
from torchsko.shapes.tessellation import arc, revolve
from torchsko.utils.shapes import norm


def ball_ball(center1: Tensor, radius1: Tensor, center2: Tensor, radius2: Tensor) -> Points:
    """The contact of two balls, without dimension k."""
    between = center2 - center1
    default = torch.zeros_like(between) + between.new_tensor([1.0, 0.0, 0.0])
    n = unit(between, default)
    distance = norm(between) - radius1 - radius2
    return Points.of(distance, center1 + n * (radius1 + distance / 2)[..., None], n)


def plane_sphere(plane: Placed, sphere: Placed) -> Points:
    """The lowest point of a sphere."""
    return Points.stack([plane_ball(plane, sphere.position, sphere.size[..., 0])])


def terrain_sphere(terrain: Placed, sphere: Placed) -> Points:
    """The point of a sphere over the surface below its center."""
    return terrain_balls(terrain, sphere.position[..., None, :], sphere.size[..., :1])


def sphere_sphere(first: Placed, second: Placed) -> Points:
    """The point between two spheres."""
    return Points.stack(
        [ball_ball(first.position, first.size[..., 0], second.position, second.size[..., 0])]
    )


@dataclass(frozen=True)
class Sphere(Form):
    """A sphere; `radius` [m]."""

    radius: float

    kind: ClassVar[str] = "sphere"
    num_sizes: ClassVar[int] = 1
    pairs: ClassVar[Mapping[str, Collision]] = {
        "plane": Collision(plane_sphere),
        "heightfield": Collision(terrain_sphere),
        "sphere": Collision(sphere_sphere),
    }

    @property
    def half_sizes(self) -> tuple[float, float, float]:
        """The radius."""
        return self.radius, 0.0, 0.0

    def mesh(self) -> tuple[np.ndarray, np.ndarray]:
        """A surface of revolution."""
        return revolve(*arc(self.radius, 0.0))

    def ray_hits(self, p: Tensor, d: Tensor) -> Tensor:
        """See `Form.ray_hits`."""
        return ray_hits_ball(p, d, self.radius)
