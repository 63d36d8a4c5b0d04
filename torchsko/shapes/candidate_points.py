r"""Candidate contact points of pairs of placed shapes.

A pair has a fixed number of candidate points. The normal points from the first shape to the second, and a
negative distance is a penetration. The point lies in the middle between the two surfaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import broadcast_shapes, norm

FAR = 1e10
"""Distance of a candidate point that does not exist [m]."""


@dataclass(frozen=True, eq=False)
class ConvexHull:
    """Convex hull of a mesh, as faces with at most four corners that touch a plane.

    A face with more corners has an entry for each of them.

    Attributes:
        vertices: indices of its vertices among those of the mesh.
        lowest: for each face, indices among ``vertices`` of the corners of which one is lowest.
        corners: for each face, indices among ``vertices`` of the corners in contact.
        normals: outward unit normal of each face.
    """

    vertices: tuple[int, ...]
    lowest: tuple[tuple[int, ...], ...]
    corners: tuple[tuple[int, ...], ...]
    normals: tuple[tuple[float, ...], ...]


class Hull(NamedTuple):
    """Convex hull of a mesh.

    Attributes:
        vertices: in the frame of the shape, `[*batch, V, 3]` [m].
        faces: faces and their corners, as indices of vertices.
    """

    vertices: Tensor
    faces: ConvexHull


class Placed(NamedTuple):
    """Shapes of one kind in the inertial frame.

    Attributes:
        rotation: axes of the shapes, `[*batch, p, 3, 3]`.
        position: centers, `[*batch, p, 3]` [m].
        size: half sizes, `[*batch, p, 3]` [m].
        hull: of meshes, the same one for all shapes.
        heights: of a height field, the same ones for all shapes, `[*batch, rows, columns]` [m].
    """

    rotation: Tensor
    position: Tensor
    size: Tensor
    hull: Hull | None = None
    heights: Tensor | None = None

    @property
    def axis(self) -> Tensor:
        """The z axes, `[*batch, p, 3]`."""
        return self.rotation[..., 2]


class Points(NamedTuple):
    """Candidate points of pairs of shapes.

    Attributes:
        distance: `[*batch, p, k]` [m].
        position: `[*batch, p, k, 3]` [m].
        normal: from the first shape to the second, `[*batch, p, k, 3]`.
        tangent: direction of the first tangent, `[*batch, p, k, 3]`; zero leaves it to `contact_axes`.
    """

    distance: Tensor
    position: Tensor
    normal: Tensor
    tangent: Tensor

    @staticmethod
    def of(distance: Tensor, position: Tensor, normal: Tensor) -> Points:
        """Points without a direction of the first tangent, whose normals may be common to several points."""
        normal = normal.expand(broadcast_shapes(normal.shape, position.shape))
        return Points(distance, position, normal, torch.zeros_like(normal))

    @staticmethod
    def stack(points: list[Points]) -> Points:
        """Points of several functions, each with one point per pair and without dimension k."""
        columns = [
            torch.broadcast_tensors(*(getattr(x, name) for x in points)) for name in Points._fields
        ]
        return Points(torch.stack(columns[0], -1), *(torch.stack(c, -2) for c in columns[1:]))

    def deepest(self, count: int) -> Points:
        """The points of smallest distance, at most a number of each pair."""
        num = self.distance.shape[-1]
        if num <= count:
            return self
        order = torch.arange(num, device=self.distance.device)
        remaining, kept = self.distance, []
        for _ in range(count):
            index = remaining.argmin(-1, keepdim=True)
            kept.append(Points(*(take(x, index) for x in self)))
            remaining = torch.where(order == index, torch.inf, remaining)
        return Points(
            torch.cat([x.distance for x in kept], -1),
            *(torch.cat([x[k] for x in kept], -2) for k in range(1, 4)),
        )


def take(x: Tensor, index: Tensor) -> Tensor:
    """Entries of candidates at an index.

    Args:
        x: `[*batch, k]`, or `[*batch, k, n]`.
        index: `[*batch, 1]`.

    Returns:
        `[*batch, 1]`, or `[*batch, 1, n]`.
    """
    if x.ndim == index.ndim:
        return x.gather(-1, index)
    return x.gather(-2, index[..., None].expand(*index.shape, x.shape[-1]))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Scalar products of vectors `[*, 3]`."""
    return (a * b).sum(-1)


def unit(x: Tensor, default: Tensor) -> Tensor:
    """Unit vectors along `[*, 3]`; the default where the length vanishes."""
    length = norm(x)[..., None]
    is_zero = length == 0
    return torch.where(is_zero, default, x / torch.where(is_zero, 1.0, length))


def ratio(a: Tensor, b: Tensor, default: float) -> Tensor:
    """Quotients a / b; the default where b is zero."""
    is_zero = b == 0
    return torch.where(is_zero, default, a / torch.where(is_zero, 1.0, b))


def contact_axes(points: Points) -> Tensor:
    """Orthonormal axes of contacts as rows: the normal and two tangents, `[*batch, p, k, 3, 3]`.

    Without a given tangent the first is the y axis of the inertial frame made orthogonal to the normal, or
    its z axis where the normal is within 60 degrees of y. It is the x axis if the given one is the normal.
    """
    n = points.normal
    eye = torch.eye(3, dtype=n.dtype, device=n.device)
    x, y, z = (torch.zeros_like(n) + row for row in eye)
    default = torch.where((n[..., 1].abs() < 0.5)[..., None], y, z)
    given = dot(points.tangent, points.tangent)[..., None] >= 0.25
    tangent = torch.where(given, points.tangent, default)
    fallback = torch.where((n[..., 0].abs() < 0.5)[..., None], x, y)
    tangent = unit(tangent - n * dot(n, tangent)[..., None], fallback)
    return torch.stack([n, tangent, cross(n, tangent)], -2)
