"""Contact points of spheres and capsules with other shapes, as MuJoCo computes them.

Reference: MuJoCo documentation, "Computation", Collision detection.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.contact.candidate_points import FAR, Placed, Points, dot, unit
from torchsko.utils.shapes import MIN_LENGTH, matvec, norm


def _sphere_sphere(centre1: Tensor, radius1: Tensor, centre2: Tensor, radius2: Tensor) -> Points:
    between = centre2 - centre1
    default = torch.zeros_like(between) + between.new_tensor([1.0, 0.0, 0.0])
    n = unit(between, default)
    distance = norm(between) - radius1 - radius2
    return Points.of(distance, centre1 + n * (radius1 + distance / 2)[..., None], n)


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
    rounded = _sphere_sphere(
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


class NearestPoints(NamedTuple):
    """Nearest points of two segments, as places on each in -1 to 1.

    Attributes:
        first: place on the first segment.
        second: place on the second segment.
        end: +1 or -1 after a bound of the first segment was reached, else 0.
        parallel: whether the segments are parallel, so that the places are undefined.
    """

    first: Tensor
    second: Tensor
    end: Tensor
    parallel: Tensor


def nearest_points(ma: Tensor, mb: Tensor, mc: Tensor, u: Tensor, v: Tensor) -> NearestPoints:
    """Nearest points of two segments c1 + x a, c2 + y b with x and y in -1 to 1.

    Args:
        ma: a . a.
        mb: -a . b.
        mc: b . b.
        u: -a . (c1 - c2).
        v: b . (c1 - c2).

    Reference: C. Ericson, *Real-Time Collision Detection*, Morgan Kaufmann 2005, section 5.1.9.
    """
    determinant = ma * mc - mb * mb
    parallel = determinant.abs() < MIN_LENGTH
    determinant = torch.where(parallel, 1.0, determinant)
    x = (mc * u - mb * v) / determinant
    y = (ma * v - mb * u) / determinant
    end = _sign_beyond_one(x)
    y = torch.where(end > 0, (v - mb) / mc, torch.where(end < 0, (v + mb) / mc, y))
    x = torch.clamp(x, -1.0, 1.0)
    other = _sign_beyond_one(y)
    again = torch.where(other > 0, (u - mb) / ma, (u + mb) / ma)
    end = torch.where((other != 0) & (again.abs() > 1), _sign_beyond_one(again), end)
    x = torch.where(other != 0, torch.clamp(again, -1.0, 1.0), x)
    return NearestPoints(x, torch.clamp(y, -1.0, 1.0), end, parallel)


def _sign_beyond_one(x: Tensor) -> Tensor:
    """+1 above 1, -1 below -1, else 0."""
    return torch.where(x > 1, 1.0, torch.where(x < -1, -1.0, 0.0)).to(x.dtype)


def capsule_capsule(first: Placed, second: Placed) -> Points:
    """The point between the nearest points of two axes; both ends of the overlap of parallel axes."""
    axis1, axis2 = first.axis * first.size[..., 1, None], second.axis * second.size[..., 1, None]
    between = first.position - second.position
    ma, mb, mc = dot(axis1, axis1), -dot(axis1, axis2), dot(axis2, axis2)
    u, v = -dot(axis1, between), dot(axis2, between)
    nearest = nearest_points(ma, mb, mc, u, v)
    ends = (u - mb) / ma, (u + mb) / ma
    low, high = (
        torch.clamp(bound, -1.0, 1.0) for bound in (torch.minimum(*ends), torch.maximum(*ends))
    )
    low_point, high_point = (
        _sphere_sphere(
            first.position + axis1 * x[..., None], first.size[..., 0],
            second.position + axis2 * y[..., None], second.size[..., 0],
        )
        for x, y in (
            (low, torch.clamp((v - low * mb) / mc, -1.0, 1.0)),
            (
                torch.where(nearest.parallel, high, nearest.first),
                torch.where(
                    nearest.parallel, torch.clamp((v - high * mb) / mc, -1.0, 1.0), nearest.second
                ),
            ),
        )
    )  # fmt: skip
    distance = torch.where(nearest.parallel, low_point.distance, FAR)
    return Points.stack([high_point, low_point._replace(distance=distance)])


def sphere_box(sphere: Placed, box: Placed) -> Points:
    """The point between a sphere and the nearest point of a box, or its nearest face from inside."""
    centre = matvec(box.rotation.mT, sphere.position - box.position)
    return Points.stack([ball_in_box(centre, sphere.size[..., 0], box)])


def ball_in_box(centre: Tensor, radius: Tensor, box: Placed) -> Points:
    """The point between a ball, whose centre is in the frame of a box, and the box."""
    nearest = torch.maximum(torch.minimum(centre, box.size), -box.size)
    outward = nearest - centre
    length = norm(outward)
    inside = length <= MIN_LENGTH
    depth = box.size - centre.abs()
    smallest = depth == depth.amin(-1, keepdim=True)
    first = smallest & (torch.cumsum(smallest.to(torch.int64), -1) == 1)
    face = torch.where(first, -torch.sign(torch.where(centre == 0, 1.0, centre)), 0.0)
    n = torch.where(inside[..., None], face, outward / torch.where(inside, 1.0, length)[..., None])
    surface = torch.where(inside, -(depth.amin(-1)), length)
    distance = surface - radius
    position = centre + n * (radius + distance / 2)[..., None]
    world = box.position + matvec(box.rotation, position)
    return Points.of(distance, world, matvec(box.rotation, n))
