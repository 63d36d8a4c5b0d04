"""Contact points of a plane, whose normal is its z axis, with other shapes, as MuJoCo computes them.

Reference: MuJoCo documentation, "Computation", Collision detection.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.contact.candidate_points import FAR, Placed, Points, dot, take, unit
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec, norm

DIAGONALS = ((1.0, 1.0, 1.0), (-1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, -1.0))
"""Signs of one corner of each diagonal of a box."""


def _plane_sphere(plane: Placed, centre: Tensor, radius: Tensor) -> Points:
    n = plane.axis.expand(torch.broadcast_shapes(plane.axis.shape, centre.shape))
    distance = dot(n, centre - plane.position) - radius
    return Points.of(distance, centre - n * (radius + distance / 2)[..., None], n)


def _plane_point(plane: Placed, point: Tensor) -> Points:
    """The contact of a point of a surface with a plane."""
    n = plane.axis.expand_as(point)
    distance = dot(n, point - plane.position)
    return Points.of(distance, point - n * (distance / 2)[..., None], n)


def plane_sphere(plane: Placed, sphere: Placed) -> Points:
    """The lowest point of a sphere."""
    return Points.stack([_plane_sphere(plane, sphere.position, sphere.size[..., 0])])


def plane_capsule(plane: Placed, capsule: Placed) -> Points:
    """The lowest points of both caps; the first tangent is along the axis."""
    radius, half = capsule.size[..., 0], capsule.size[..., 1, None]
    ends = [
        _plane_sphere(plane, capsule.position + s * half * capsule.axis, radius)
        for s in (1.0, -1.0)
    ]
    axis = capsule.axis.expand_as(ends[0].normal)
    return Points.stack([end._replace(tangent=axis) for end in ends])


def plane_ellipsoid(plane: Placed, ellipsoid: Placed) -> Points:
    """The support point of an ellipsoid."""
    n, square = plane.axis, ellipsoid.size * ellipsoid.size
    local = matvec(ellipsoid.rotation.mT, -n)
    scaled = square * local
    support = scaled / norm(ellipsoid.size * local)[..., None]
    point = ellipsoid.position + matvec(ellipsoid.rotation, support)
    return Points.stack([_plane_point(plane, point)])


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
    return Points.stack([_plane_point(plane, cylinder.position + offset) for offset in offsets])


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


def plane_mesh(plane: Placed, mesh: Placed) -> Points:
    """Corners of a face of the hull: of the faces at its lowest vertex, the one that faces the plane most.

    Corners above the centre of the mesh are no candidates.
    """
    assert mesh.hull is not None
    vertices, faces = mesh.hull.vertices[..., None, :, :], mesh.hull.faces
    n = plane.axis
    local = matvec(mesh.rotation.mT, n)
    heights = matvec(vertices, local)
    least = heights.amin(-1, keepdim=True)
    lowest = _chosen(heights, faces.lowest).amin(-1) <= least
    facing = matvec(heights.new_tensor(faces.normals), local)
    index = torch.where(lowest, facing, torch.inf).argmin(-1, keepdim=True)
    batch = (*index.shape[:-1], len(faces.corners))
    corners = vertices.index_select(-2, _padded(faces.corners, vertices).flatten())
    corners = corners.unflatten(-2, (len(faces.corners), -1)).flatten(-2)
    corner = take(corners.expand(*batch, -1), index)[..., 0, :].unflatten(-1, (-1, 3))
    exists = torch.tensor([[k < len(x) for k in range(4)] for x in faces.corners])
    exists = exists.to(device=corner.device, dtype=corner.dtype).expand(*batch, -1)
    exists = take(exists, index)[..., 0, :] > 0
    relative = matvec(corner, local)
    distance = dot(n, mesh.position - plane.position)[..., None] + relative
    n = n[..., None, :]
    points = mesh.position[..., None, :] + matvec(mesh.rotation[..., None, :, :], corner)
    position = points - n * (distance / 2)[..., None]
    return Points.of(torch.where(exists & (relative <= 0), distance, FAR), position, n)


def _chosen(x: Tensor, rows: Sequence[Sequence[int]]) -> Tensor:
    """Entries of the last dimension by rows of indices, of which shorter ones repeat their first."""
    index = _padded(rows, x)
    return x.index_select(-1, index.flatten()).unflatten(-1, index.shape)


def _padded(rows: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    size = max(4, *map(len, rows))
    return torch.tensor([[*row, *[row[0]] * (size - len(row))] for row in rows], device=like.device)
