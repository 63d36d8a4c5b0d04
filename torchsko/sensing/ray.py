"""Intersection of rays with convex primitives.

A ray from a point p along d meets a convex solid if the interval of the line's parameter within the solid
ends at a parameter that is not negative.

Reference: C. Ericson, *Real-Time Collision Detection*, Morgan Kaufmann 2005, section 5.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.mechanism.geometry import Box, Capsule, Cylinder, Ellipsoid, Form, Sphere

PARALLEL = 1e-15
"""Square of the length of a direction below which a line is parallel to an axis (mjMINVAL)."""


def ray_hits(form: Form, p: Tensor, d: Tensor) -> Tensor:
    """True for rays that meet a primitive centred at the origin.

    Args:
        form: a sphere, ellipsoid, capsule, cylinder or box.
        p: start points, `[*, 3]` [m].
        d: directions, `[*, 3]`.

    Returns:
        `[*]`, bool.
    """
    if isinstance(form, Box):
        return _slabs(p, d, p.new_tensor(form.size) / 2)
    if isinstance(form, Ellipsoid):
        radii = p.new_tensor(form.radii)
        return _ball(p / radii, d / radii, 1.0)
    if isinstance(form, Sphere):
        return _ball(p, d, form.radius)
    assert isinstance(form, Capsule | Cylinder)
    hit = _tube(p, d, form.radius, form.length / 2)
    if isinstance(form, Capsule):
        for end in (form.length / 2, -form.length / 2):
            hit = hit | _ball(p - p.new_tensor([0.0, 0.0, end]), d, form.radius)
    return hit


def _ball(p: Tensor, d: Tensor, radius: float) -> Tensor:
    """Rays that meet a sphere, or a circle in two dimensions."""
    low, high = _roots(p, d, radius)
    return (low <= high) & (high >= 0)


def _roots(p: Tensor, d: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """First and last parameter of a line within a sphere or circle; an empty interval without any."""
    a, b, c = (d * d).sum(-1), (p * d).sum(-1), (p * p).sum(-1) - radius**2
    parallel = a < PARALLEL
    scale = torch.where(parallel, 1.0, a)
    root = b * b - scale * c
    far = (root.clamp(min=0).sqrt()) / scale
    middle = -b / scale
    inside = (c <= 0) & parallel
    outside = torch.where(parallel, c > 0, root < 0)
    low = torch.where(inside, -torch.inf, torch.where(outside, torch.inf, middle - far))
    high = torch.where(inside, torch.inf, torch.where(outside, -torch.inf, middle + far))
    return low, high


def _interval(p: Tensor, d: Tensor, half: Tensor | float) -> tuple[Tensor, Tensor]:
    """First and last parameter of a line between two planes."""
    parallel = d.abs() < PARALLEL
    rate = torch.where(parallel, 1.0, d)
    ends = (-half - p) / rate, (half - p) / rate
    inside = p.abs() <= half
    low = torch.where(parallel, torch.where(inside, -torch.inf, torch.inf), torch.minimum(*ends))
    high = torch.where(parallel, torch.where(inside, torch.inf, -torch.inf), torch.maximum(*ends))
    return low, high


def _slabs(p: Tensor, d: Tensor, half: Tensor) -> Tensor:
    low, high = _interval(p, d, half)
    return (low.amax(-1) <= high.amin(-1)) & (high.amin(-1) >= 0)


def _tube(p: Tensor, d: Tensor, radius: float, half: float) -> Tensor:
    low, high = _roots(p[..., :2], d[..., :2], radius)
    bottom, top = _interval(p[..., 2], d[..., 2], half)
    last = torch.minimum(high, top)
    return (torch.maximum(low, bottom) <= last) & (last >= 0)
