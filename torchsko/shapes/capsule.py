"""Capsule along z, and nearest points of segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchsko.shapes.candidate_points import FAR, Placed, Points, dot
from torchsko.shapes.form import Collision, Form
from torchsko.shapes.height_field import terrain_balls
from torchsko.shapes.plane import plane_ball
from torchsko.shapes.rays import ray_hits_ball, ray_hits_tube
from torchsko.shapes.sphere import ball_ball
from torchsko.shapes.tessellation import arc, revolve
from torchsko.utils.shapes import MIN_LENGTH


def plane_capsule(plane: Placed, capsule: Placed) -> Points:
    """The lowest points of both caps; the first tangent is along the axis."""
    radius, half = capsule.size[..., 0], capsule.size[..., 1, None]
    ends = [
        plane_ball(plane, capsule.position + s * half * capsule.axis, radius) for s in (1.0, -1.0)
    ]
    axis = capsule.axis.expand_as(ends[0].normal)
    return Points.stack([end._replace(tangent=axis) for end in ends])


def terrain_capsule(terrain: Placed, capsule: Placed) -> Points:
    """The points of both caps."""
    half = capsule.size[..., 1, None] * capsule.axis
    centers = torch.stack([capsule.position + half, capsule.position - half], -2)
    return terrain_balls(terrain, centers, capsule.size[..., :1])


def sphere_capsule(sphere: Placed, capsule: Placed) -> Points:
    """The point between a sphere and the nearest point of the capsule's axis."""
    half = capsule.size[..., 1]
    along = dot(capsule.axis, sphere.position - capsule.position)
    nearest = capsule.position + capsule.axis * torch.clamp(along, -half, half)[..., None]
    return Points.stack(
        [ball_ball(sphere.position, sphere.size[..., 0], nearest, capsule.size[..., 0])]
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
        ball_ball(
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


@dataclass(frozen=True)
class Capsule(Form):
    """A cylinder along z with two hemispherical caps; `length` [m] excludes them."""

    radius: float
    length: float

    kind: ClassVar[str] = "capsule"
    num_sizes: ClassVar[int] = 2
    pairs: ClassVar[Mapping[str, Collision]] = {
        "plane": Collision(plane_capsule),
        "heightfield": Collision(terrain_capsule),
        "sphere": Collision(sphere_capsule),
        "capsule": Collision(capsule_capsule),
    }

    @property
    def half_sizes(self) -> tuple[float, float, float]:
        """The radius, and half the length without the caps."""
        return self.radius, self.length / 2, 0.0

    def mesh(self) -> tuple[np.ndarray, np.ndarray]:
        """A surface of revolution."""
        return revolve(*arc(self.radius, self.length))

    def ray_hits(self, p: Tensor, d: Tensor) -> Tensor:
        """See `Form.ray_hits`."""
        hit = ray_hits_tube(p, d, self.radius, self.length / 2)
        for end in (self.length / 2, -self.length / 2):
            hit = hit | ray_hits_ball(p - p.new_tensor([0.0, 0.0, end]), d, self.radius)
        return hit
