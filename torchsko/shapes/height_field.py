r"""Height field, smooth in contact with spheres, capsules, boxes and meshes.

The height over the rectangle is the cubic convolution of the given heights, whose slope is continuous:

.. math::
    h(x, y) = \sum_{ij} H_{ij}\, w(y / \Delta y - i)\, w(x / \Delta x - j), \qquad
    w(t) = \begin{cases} \tfrac32 |t|^3 - \tfrac52 t^2 + 1 & |t| \le 1 \\
      -\tfrac12 |t|^3 + \tfrac52 t^2 - 4 |t| + 2 & |t| \le 2 \\ 0 & \text{else} \end{cases}

It interpolates the heights, and is exact for planes. Rows and columns beyond the edges are linear
extrapolations. The distance of a point at (x, y, z) is (z - h) / sqrt(1 + |grad h|^2), which is exact for
planes. The normal is that of the surface below the point. There is no contact beyond the rectangle.

DEPARTS: MuJoCo collides with the triangles between the heights.

Reference: R. G. Keys, "Cubic convolution interpolation for digital image processing", IEEE Transactions on
Acoustics, Speech, and Signal Processing 29 (1981), equations 15 and 25.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from torchsko.shapes.candidate_points import FAR, Placed, Points
from torchsko.shapes.form import Form
from torchsko.shapes.tessellation import grid
from torchsko.utils.shapes import matvec


@dataclass(frozen=True, eq=False)
class HeightField(Form):
    """Heights over a rectangle centered at the origin.

    Attributes:
        size: edge lengths along x and y [m].
        heights: heights, `[rows along y, columns along x]` [m].
        base: thickness of the ground below the lowest height [m].
    """

    size: tuple[float, float]
    heights: np.ndarray
    base: float = 0.1

    kind: ClassVar[str] = "heightfield"
    num_sizes: ClassVar[int] = 2
    is_fixed: ClassVar[bool] = True

    @property
    def half_sizes(self) -> tuple[float, float, float]:
        """Half edges along x and y."""
        x, y = self.size
        return x / 2, y / 2, 0.0

    def mesh(self) -> tuple[np.ndarray, np.ndarray]:
        """Two triangles for each cell."""
        return grid(self.heights, self.size)


def terrain_corners(terrain: Placed, shape: Placed, local: Tensor) -> Points:
    """The contacts of points, `[*batch, p, k, 3]`, in the frame of a shape."""
    points = shape.position[..., None, :] + matvec(shape.rotation[..., None, :, :], local)
    return terrain_balls(terrain, points, torch.zeros_like(shape.size[..., :1]))


def terrain_balls(terrain: Placed, centers: Tensor, radius: Tensor) -> Points:
    """Contacts of spheres, centers `[*batch, p, k, 3]` and radii `[*batch, p, 1]`."""
    rotation = terrain.rotation[..., None, :, :]
    local = matvec(rotation.mT, centers - terrain.position[..., None, :])
    size = terrain.size[..., None, :]
    assert terrain.heights is not None
    height, slopes = surface(terrain.heights, local, size)
    scale = (1 + (slopes * slopes).sum(-1)).rsqrt()
    distance = (local[..., 2] - height) * scale - radius
    upward = torch.cat([-slopes, torch.ones_like(slopes[..., :1])], -1) * scale[..., None]
    n = matvec(rotation, upward)
    is_over = (local[..., :2].abs() <= size[..., :2]).all(-1)
    position = centers - n * (radius + distance / 2)[..., None]
    return Points.of(torch.where(is_over, distance, FAR), position, n)


def surface(heights: Tensor, local: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Heights `[*batch, p, k]` [m] and slopes along x and y `[*batch, p, k, 2]` under points.

    Args:
        heights: `[*batch, rows, columns]` [m].
        local: points in the frame of the height field, `[*batch, p, k, 2 or 3]` [m].
        size: half sizes along x and y, `[*batch, p, 1, 2 or 3]` [m].
    """
    H = _extended(_extended(heights, -1), -2)[..., None, :, :]
    rows, columns = (n - 2 for n in H.shape[-2:])
    at_x, rate_x = _weights(local[..., 0], size[..., 0], columns)
    at_y, rate_y = _weights(local[..., 1], size[..., 1], rows)
    across = at_y @ H
    height = (across * at_x).sum(-1)
    slopes = (across * rate_x).sum(-1), ((rate_y @ H) * at_x).sum(-1)
    return height, torch.stack(slopes, -1)


def _extended(H: Tensor, dim: int) -> Tensor:
    """Heights with one more row or column at both ends, by linear extrapolation."""
    n = H.shape[dim]
    first, second, last, before = (H.narrow(dim, k, 1) for k in (0, 1, n - 1, n - 2))
    return torch.cat([2 * first - second, H, 2 * last - before], dim)


def _weights(x: Tensor, half: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Weights of the extended heights along one direction, and their derivatives, `[*x, count + 2]`."""
    step = 2 * half / (count - 1)
    places = torch.arange(-1, count + 1, dtype=x.dtype, device=x.device)
    t = ((x + half) / step)[..., None] - places
    a = t.abs()
    near, middle = a <= 1, a <= 2
    value = torch.where(
        near, (1.5 * a - 2.5) * a * a + 1,
        torch.where(middle, ((2.5 - 0.5 * a) * a - 4) * a + 2, 0.0),
    )  # fmt: skip
    rate = torch.where(
        near, (4.5 * a - 5) * a, torch.where(middle, (5 - 1.5 * a) * a - 4, 0.0)
    )  # fmt: skip
    return value, rate * torch.where(t < 0, -1.0, 1.0).to(x.dtype) / step[..., None]
