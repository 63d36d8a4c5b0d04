r"""Contact points of a smooth height field with spheres, capsules, boxes and meshes.

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

from itertools import product

import torch
from torch import Tensor

from torchsko.contact.candidate_points import FAR, Placed, Points
from torchsko.utils.shapes import matvec

CORNERS = tuple(product((1.0, -1.0), repeat=3))
"""Signs of the corners of a box."""


def terrain_sphere(terrain: Placed, sphere: Placed) -> Points:
    """The point of a sphere over the surface below its centre."""
    return _points(terrain, sphere.position[..., None, :], sphere.size[..., :1])


def terrain_capsule(terrain: Placed, capsule: Placed) -> Points:
    """The points of both caps."""
    half = capsule.size[..., 1, None] * capsule.axis
    centres = torch.stack([capsule.position + half, capsule.position - half], -2)
    return _points(terrain, centres, capsule.size[..., :1])


def terrain_box(terrain: Placed, box: Placed) -> Points:
    """The eight corners of a box."""
    return _corners(terrain, box, box.size.new_tensor(CORNERS) * box.size[..., None, :])


def terrain_mesh(terrain: Placed, mesh: Placed) -> Points:
    """The vertices of the hull of a mesh."""
    assert mesh.hull is not None
    return _corners(terrain, mesh, mesh.hull.vertices[..., None, :, :])


def _corners(terrain: Placed, shape: Placed, local: Tensor) -> Points:
    """The contacts of points, `[*batch, p, k, 3]`, in the frame of a shape."""
    points = shape.position[..., None, :] + matvec(shape.rotation[..., None, :, :], local)
    return _points(terrain, points, torch.zeros_like(shape.size[..., :1]))


def _points(terrain: Placed, centres: Tensor, radius: Tensor) -> Points:
    """Contacts of spheres, centres `[*batch, p, k, 3]` and radii `[*batch, p, 1]`."""
    rotation = terrain.rotation[..., None, :, :]
    local = matvec(rotation.mT, centres - terrain.position[..., None, :])
    size = terrain.size[..., None, :]
    height, slopes = _surface(terrain, local, size)
    scale = (1 + (slopes * slopes).sum(-1)).rsqrt()
    distance = (local[..., 2] - height) * scale - radius
    upward = torch.cat([-slopes, torch.ones_like(slopes[..., :1])], -1) * scale[..., None]
    n = matvec(rotation, upward)
    is_over = (local[..., :2].abs() <= size[..., :2]).all(-1)
    position = centres - n * (radius + distance / 2)[..., None]
    return Points.of(torch.where(is_over, distance, FAR), position, n)


def _surface(terrain: Placed, local: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Heights `[*batch, p, k]` [m] and slopes along x and y `[*batch, p, k, 2]` under local points."""
    assert terrain.heights is not None
    H = _extended(_extended(terrain.heights, -1), -2)[..., None, :, :]
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
