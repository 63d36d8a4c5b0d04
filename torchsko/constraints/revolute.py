r"""Revolute joint: the origins and the z axes of both markers coincide.

With c_k = z1.e_k for e_k = x2, y2 and s = 1 + z1.z2, the rows are

.. math:: \phi_k = \sqrt{2 / s}\; c_k, \qquad |\phi| = 2 \sin(\mathrm{angle} / 2).

They vanish for parallel axes only; c_k vanishes for antiparallel axes as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import (
    FrameRows,
    Marker,
    axis_bias,
    axis_maps,
    axis_residual,
    point_maps,
)
from torchsko.spatial.rotation import cross
from torchsko.utils.dtype import compute_dtype

MIN_ALIGNMENT = 16.0
"""Smallest 1 + z1.z2 that is resolved, in units of rounding; the axes are antiparallel below it."""


@dataclass(frozen=True)
class Revolute(FrameRows):
    """Three rows x2 - x1 in the shared axes, then two that vanish where the z axes coincide."""

    name: str = "revolute"
    num_rows: int = 5
    summary: str = "origins and z axes coincide, not antiparallel"
    angular_rows: tuple[int, ...] = (3, 4)
    mjcf: str = "connect"
    urdf: str = "revolute"

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """The distance [m], then 2 sin(angle / 2) times the direction of z1 across z2."""
        s, scale = _alignment(one, two)
        axes = scale * torch.stack([axis_residual(one.axis(2), two.axis(k)) for k in (0, 1)], -1)
        turned = axes.new_tensor([2.0, 0.0])
        axes = torch.where(s < _least(s), turned, axes)
        return torch.cat([two.position - one.position, axes], -1)

    def maps(self, one: Marker, two: Marker, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Point rows, then axis rows."""
        s, scale = _alignment(one, two)
        z = one.axis(2)
        along = axis_maps(z, two.axis(2))[1] / (2 * s)
        rows = []
        for e in (two.axis(0), two.axis(1)):
            rows.append(scale * (axis_maps(z, e)[1] - axis_residual(z, e)[..., None] * along))
        second = torch.stack(rows, -2)
        P1, P2 = (x.expand(*second.shape[:-2], 3, 6) for x in point_maps(one.position))
        return torch.cat([P1, -second], -2), torch.cat([P2, second], -2)

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor, parameters: Tensor) -> Tensor:
        """Zero for point rows, then the bias of axis rows."""
        w1, w2 = V1[..., :3], V2[..., :3]
        s, scale = (x[..., 0] for x in _alignment(one, two))
        z = one.axis(2)
        rate = _axis_rate(z, two.axis(2), w1, w2) / s
        accel = axis_bias(z, two.axis(2), w1, w2) / s
        rows = []
        for e in (two.axis(0), two.axis(1)):
            found = axis_bias(z, e, w1, w2) - rate * _axis_rate(z, e, w1, w2)
            rows.append(scale * (found + axis_residual(z, e) * (3 * rate.square() - 2 * accel) / 4))
        axes = torch.stack(rows, -1)
        return torch.cat([axes.new_zeros(*axes.shape[:-1], 3), axes], -1)


def _alignment(one: Marker, two: Marker) -> tuple[Tensor, Tensor]:
    """Alignment s = 1 + z1.z2, bounded from below, and sqrt(2 / s), `[*, 1]`."""
    s = 1 + axis_residual(one.axis(2), two.axis(2))[..., None]
    s = s.clamp_min(_least(s) / 2)
    return s, (2 / s).sqrt()


def _least(s: Tensor) -> float:
    return MIN_ALIGNMENT * torch.finfo(compute_dtype(s)).eps


def _axis_rate(e1: Tensor, e2: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """Rate of e1.e2, `[*]`."""
    return (cross(e2, e1) * (w2 - w1)).sum(-1)


KIND = Revolute()
