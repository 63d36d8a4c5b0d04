"""Intersection of rays with balls, boxes and tubes centered at the origin.

A ray from a point p along d meets a convex solid if the interval of the line's parameter within the solid
ends at a parameter that is not negative.

Reference: C. Ericson, *Real-Time Collision Detection*, Morgan Kaufmann 2005, section 5.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

PARALLEL = 1e-15
"""Square of the length of a direction below which a line is parallel to an axis (mjMINVAL)."""


def ray_hits_ball(p: Tensor, d: Tensor, radius: float) -> Tensor:
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


def ray_hits_box(p: Tensor, d: Tensor, half: Tensor) -> Tensor:
    """Rays that meet a box with half edges `[3]`."""
    low, high = _interval(p, d, half)
    return (low.amax(-1) <= high.amin(-1)) & (high.amin(-1) >= 0)


def ray_hits_tube(p: Tensor, d: Tensor, radius: float, half: float) -> Tensor:
    """Rays that meet a cylinder along z."""
    low, high = _roots(p[..., :2], d[..., :2], radius)
    bottom, top = _interval(p[..., 2], d[..., 2], half)
    last = torch.minimum(high, top)
    return (torch.maximum(low, bottom) <= last) & (last >= 0)
