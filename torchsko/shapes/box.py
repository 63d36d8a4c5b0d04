"""Box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from torchsko.shapes.box_contacts import ball_in_box, box_box, capsule_box
from torchsko.shapes.candidate_points import Placed, Points, dot
from torchsko.shapes.form import Collision, Form
from torchsko.shapes.height_field import terrain_corners
from torchsko.shapes.rays import ray_hits_box
from torchsko.utils.shapes import matvec

DIAGONALS = ((1.0, 1.0, 1.0), (-1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, -1.0))
"""Signs of one corner of each diagonal of a box."""


CORNERS = tuple(product((1.0, -1.0), repeat=3))
"""Signs of the corners of a box."""


def plane_box(plane: Placed, box: Placed) -> Points:
    """The four lower corners: the lower end of each diagonal."""
    n, signs = plane.axis, box.size.new_tensor(DIAGONALS)
    corners = signs * box.size[..., None, :]
    heights = dot(corners, matvec(box.rotation.mT, n)[..., None, :])
    sign = torch.where(heights > 0, -1.0, 1.0).to(heights.dtype)
    corners = box.position[..., None, :] + matvec(
        box.rotation[..., None, :, :], sign[..., None] * corners
    )
    distance = dot(n, box.position - plane.position)[..., None] + sign * heights
    n = n[..., None, :]
    return Points.of(distance, corners - n * (distance / 2)[..., None], n)


def terrain_box(terrain: Placed, box: Placed) -> Points:
    """The eight corners of a box."""
    return terrain_corners(terrain, box, box.size.new_tensor(CORNERS) * box.size[..., None, :])


def sphere_box(sphere: Placed, box: Placed) -> Points:
    """The point between a sphere and the nearest point of a box, or its nearest face from inside."""
    center = matvec(box.rotation.mT, sphere.position - box.position)
    return Points.stack([ball_in_box(center, sphere.size[..., 0], box)])


@dataclass(frozen=True)
class Box(Form):
    """A box centered at the origin; `size`: edge lengths [m]."""

    size: tuple[float, ...]

    kind: ClassVar[str] = "box"
    num_sizes: ClassVar[int] = 3
    pairs: ClassVar[Mapping[str, Collision]] = {
        "plane": Collision(plane_box),
        "heightfield": Collision(terrain_box),
        "sphere": Collision(sphere_box),
        "capsule": Collision(capsule_box),
        "box": Collision(box_box, 8),
    }

    @property
    def half_sizes(self) -> tuple[float, float, float]:
        """Half edges."""
        x, y, z = self.size
        return x / 2, y / 2, z / 2

    def mesh(self) -> tuple[np.ndarray, np.ndarray]:
        """Twelve triangles."""
        return _CUBE * np.array(self.size), _CUBE_FACES

    def ray_hits(self, p: Tensor, d: Tensor) -> Tensor:
        """See `Form.ray_hits`."""
        return ray_hits_box(p, d, p.new_tensor(self.size) / 2)


_CUBE = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])
_CUBE_FACES = np.array(
    [
        [0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1],
        [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3],
    ]
)  # fmt: skip  # fmt: skip
