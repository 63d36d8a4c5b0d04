r"""Distances, points and normals of pairs of primitive shapes, as MuJoCo computes them.

A pair has a fixed number of candidate points. The normal points from the first shape to the second, and a
negative distance is a penetration. The point lies in the middle between the two surfaces.

Shapes have half sizes as in MuJoCo: the radius of a sphere; radius and half length of capsules and cylinders
along z; radii of an ellipsoid; half edges of a box. A plane has the normal z.

Reference: MuJoCo documentation, "Computation", Collision detection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec, norm

FAR = 1e10
"""Distance of a candidate point that does not exist [m]."""

MIN_LENGTH = 1e-15
"""Length below which a direction is undefined (mjMINVAL)."""


class Placed(NamedTuple):
    """Shapes of one kind in the inertial frame.

    Attributes:
        rotation: axes of the shapes, `[*batch, p, 3, 3]`.
        position: centres, `[*batch, p, 3]` [m].
        size: half sizes, `[*batch, p, 3]` [m].
    """

    rotation: Tensor
    position: Tensor
    size: Tensor

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
    def stack(points: list[Points]) -> Points:
        """Points of several functions, each with one point per pair and without dimension k."""
        columns = [
            torch.broadcast_tensors(*(getattr(x, name) for x in points)) for name in Points._fields
        ]
        return Points(torch.stack(columns[0], -1), *(torch.stack(c, -2) for c in columns[1:]))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Scalar products of vectors `[*, 3]`."""
    return (a * b).sum(-1)


def unit(x: Tensor, default: Tensor) -> Tensor:
    """Unit vectors along `[*, 3]`; the default where the length vanishes."""
    length = norm(x)[..., None]
    is_zero = length == 0
    return torch.where(is_zero, default, x / torch.where(is_zero, 1.0, length))


def contact_axes(points: Points) -> Tensor:
    """Orthonormal axes of contacts as rows: the normal and two tangents, `[*batch, p, k, 3, 3]`.

    Without a given tangent the first is the y axis of the inertial frame made orthogonal to the normal, or
    its z axis where the normal is within 60 degrees of y.
    """
    n = points.normal
    y, z = (torch.zeros_like(n) + n.new_tensor(x) for x in ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))
    default = torch.where((n[..., 1].abs() < 0.5)[..., None], y, z)
    given = dot(points.tangent, points.tangent)[..., None] >= 0.25
    tangent = torch.where(given, points.tangent, default)
    tangent = unit(tangent - n * dot(n, tangent)[..., None], default)
    return torch.stack([n, tangent, cross(n, tangent)], -2)


def _single(distance: Tensor, position: Tensor, normal: Tensor) -> Points:
    return Points(distance, position, normal, torch.zeros_like(normal))


def _plane_sphere(plane: Placed, centre: Tensor, radius: Tensor) -> Points:
    n = plane.axis.expand(torch.broadcast_shapes(plane.axis.shape, centre.shape))
    distance = dot(n, centre - plane.position) - radius
    return _single(distance, centre - n * (radius + distance / 2)[..., None], n)


def _plane_point(plane: Placed, point: Tensor) -> Points:
    """The contact of a point of a surface with a plane."""
    n = plane.axis.expand_as(point)
    distance = dot(n, point - plane.position)
    return _single(distance, point - n * (distance / 2)[..., None], n)


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
    """The eight corners; those above the centre of the box are no candidates."""
    points = []
    for k in range(8):
        signs = box.size.new_tensor([1.0 if k >> i & 1 else -1.0 for i in range(3)])
        corner = matvec(box.rotation, signs * box.size)
        point = _plane_point(plane, box.position + corner)
        is_above = dot(point.normal, corner) > 0
        points.append(point._replace(distance=torch.where(is_above, FAR, point.distance)))
    return Points.stack(points)


def _sphere_sphere(centre1: Tensor, radius1: Tensor, centre2: Tensor, radius2: Tensor) -> Points:
    between = centre2 - centre1
    default = torch.zeros_like(between) + between.new_tensor([1.0, 0.0, 0.0])
    n = unit(between, default)
    distance = norm(between) - radius1 - radius2
    return _single(distance, centre1 + n * (radius1 + distance / 2)[..., None], n)


def sphere_sphere(first: Placed, second: Placed) -> Points:
    """The point between two spheres."""
    return Points.stack(
        [_sphere_sphere(first.position, first.size[..., 0], second.position, second.size[..., 0])]
    )


def sphere_capsule(sphere: Placed, capsule: Placed) -> Points:
    """The point between a sphere and the nearest point of the capsule's axis."""
    half = capsule.size[..., 1]
    along = dot(capsule.axis, sphere.position - capsule.position)
    nearest = capsule.position + capsule.axis * torch.clamp(along, -half, half)[..., None]
    return Points.stack(
        [_sphere_sphere(sphere.position, sphere.size[..., 0], nearest, capsule.size[..., 0])]
    )


def capsule_capsule(first: Placed, second: Placed) -> Points:
    """The point between the nearest points of two axes; two points if the axes are parallel.

    Reference: C. Ericson, *Real-Time Collision Detection*, Morgan Kaufmann 2005, section 5.1.9.
    """
    axis1, axis2 = first.axis * first.size[..., 1, None], second.axis * second.size[..., 1, None]
    between = first.position - second.position
    ma, mb, mc = dot(axis1, axis1), -dot(axis1, axis2), dot(axis2, axis2)
    u, v = -dot(axis1, between), dot(axis2, between)
    determinant = ma * mc - mb * mb
    parallel = determinant.abs() < MIN_LENGTH
    determinant = torch.where(parallel, 1.0, determinant)
    x1 = (mc * u - mb * v) / determinant
    x2 = (ma * v - mb * u) / determinant
    x1, x2 = (
        torch.clamp(x1, -1.0, 1.0),
        torch.where(x1 > 1, (v - mb) / mc, torch.where(x1 < -1, (v + mb) / mc, x2)),
    )
    x1, x2 = (
        torch.where(
            x2 > 1,
            torch.clamp((u - mb) / ma, -1.0, 1.0),
            torch.where(x2 < -1, torch.clamp((u + mb) / ma, -1.0, 1.0), x1),
        ),
        torch.clamp(x2, -1.0, 1.0),
    )
    ends = _parallel_points(v, mb, mc)
    candidates = [
        (torch.where(parallel, ends[0][0], x1), torch.where(parallel, ends[0][1], x2), None),
        (*ends[1], parallel),
    ]
    points = []
    for along1, along2, exists in candidates:
        point = _sphere_sphere(
            first.position + axis1 * along1[..., None], first.size[..., 0],
            second.position + axis2 * along2[..., None], second.size[..., 0],
        )  # fmt: skip
        if exists is not None:
            point = point._replace(distance=torch.where(exists, point.distance, FAR))
        points.append(point)
    return Points.stack(points)


def _parallel_points(v: Tensor, mb: Tensor, mc: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Places of the ends of the first axis, and the nearest places of the second."""
    one = torch.ones_like(v)
    return [(s * one, torch.clamp((v - s * mb) / mc, -1.0, 1.0)) for s in (1.0, -1.0)]


def sphere_box(sphere: Placed, box: Placed) -> Points:
    """The point between a sphere and the nearest point of a box, or its nearest face from inside."""
    centre = matvec(box.rotation.mT, sphere.position - box.position)
    nearest = torch.maximum(torch.minimum(centre, box.size), -box.size)
    outward = nearest - centre
    length = norm(outward)
    inside = length <= MIN_LENGTH
    depth = box.size - centre.abs()
    smallest = depth == depth.amin(-1, keepdim=True)
    first = smallest & (torch.cumsum(smallest.to(torch.int64), -1) == 1)
    face = torch.where(first, -torch.sign(torch.where(centre == 0, 1.0, centre)), 0.0)
    n = torch.where(inside[..., None], face, outward / torch.where(inside, 1.0, length)[..., None])
    radius = sphere.size[..., 0]
    surface = torch.where(inside, -(depth.amin(-1)), length)
    distance = surface - radius
    position = centre + n * (radius + distance / 2)[..., None]
    world = box.position + matvec(box.rotation, position)
    return Points.stack([_single(distance, world, matvec(box.rotation, n))])


KINDS = ("plane", "sphere", "capsule", "ellipsoid", "cylinder", "box")
"""Kinds of shapes in the order in which MuJoCo sorts the two shapes of a pair."""

COLLISIONS: dict[tuple[str, str], Callable[[Placed, Placed], Points]] = {
    ("plane", "sphere"): plane_sphere,
    ("plane", "capsule"): plane_capsule,
    ("plane", "ellipsoid"): plane_ellipsoid,
    ("plane", "cylinder"): plane_cylinder,
    ("plane", "box"): plane_box,
    ("sphere", "sphere"): sphere_sphere,
    ("sphere", "capsule"): sphere_capsule,
    ("sphere", "box"): sphere_box,
    ("capsule", "capsule"): capsule_capsule,
}
"""Functions of the supported pairs of kinds."""
