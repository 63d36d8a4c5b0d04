r"""Softness of constraints: the regularisation and the reference acceleration of MuJoCo.

A row with position r, margin m and velocity v has the impedance d(r), the regularisation R and the reference
acceleration

.. math::
    R = \frac{1 - d}{d}\, \hat A, \qquad a_{ref} = -b\, v - k\, d\, (r - m),

with the inverse weight :math:`\hat A`, the damping b and the stiffness k of ``solref``. Rows of friction have
no stiffness.

Reference: MuJoCo documentation, "Computation", Constraint model; "Modeling", Solver parameters.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MIN_VALUE = 1e-15
"""Smallest regularisation (mjMINVAL)."""

MIN_IMPEDANCE, MAX_IMPEDANCE = 1e-4, 0.9999
"""Bounds of impedances and of the midpoint of their sigmoid (mjMINIMP, mjMAXIMP)."""


class Softness(NamedTuple):
    """Stiffness and damping of constraints per unit of mass, and their impedance.

    Attributes:
        stiffness: k, `[*batch, m]` [1/s^2].
        damping: b, `[*batch, m]` [1/s].
        impedance: d, `[*batch, m]`.
    """

    stiffness: Tensor
    damping: Tensor
    impedance: Tensor

    def acceleration(self, velocity: Tensor, position: Tensor) -> Tensor:
        """The reference acceleration for velocities and positions less their margins."""
        return -self.damping * velocity - self.stiffness * self.impedance * position

    def regularisation(self, invweight: Tensor) -> Tensor:
        """R for an inverse weight."""
        d = self.impedance
        return torch.clamp((1 - d) * invweight / d, min=MIN_VALUE)


def softness(
    solref: Tensor, solimp: Tensor, position: Tensor, min_time_constant: float
) -> Softness:
    """Parameters of constraints at positions.

    Args:
        solref: `[*, m, 2]`: time constant [s] and damping ratio if both are positive, else minus stiffness
            and minus damping.
        solimp: `[*, m, 5]`.
        position: positions less their margins, `[*batch, m]` [m or rad].
        min_time_constant: lower bound of time constants [s], 0 for none.
    """
    low, high = (x.clamp(MIN_IMPEDANCE, MAX_IMPEDANCE) for x in solimp[..., :2].unbind(-1))
    time, ratio = solref.unbind(-1)
    standard = time > 0
    if min_time_constant:
        time = torch.where(standard, time.clamp(min=min_time_constant), time)
    t, r = torch.where(standard, time, 1.0), torch.where(ratio > 0, ratio, 1.0)
    stiffness = torch.where(standard, 1 / (high * t * r) ** 2, -time / high**2)
    damping = torch.where(ratio > 0, 2 / (high * t), -ratio / high)
    return Softness(stiffness, damping, _impedance(solimp, low, high, position))


def _impedance(solimp: Tensor, low: Tensor, high: Tensor, position: Tensor) -> Tensor:
    """Impedance as a sigmoid of the distance from the margin."""
    width, middle, power = solimp[..., 2:].unbind(-1)
    middle, power = middle.clamp(MIN_IMPEDANCE, MAX_IMPEDANCE), power.clamp(min=1.0)
    flat = (width <= MIN_VALUE) | (low == high)
    x = position.abs() / torch.where(flat, 1.0, width)
    inside = (x > 0) & (x < 1)
    z = torch.where(inside, x, 0.5)
    below = z <= middle
    z = torch.where(below, z, 1 - z)
    bend = torch.where(below, middle, 1 - middle)
    curve = z**power / bend ** (power - 1)
    y = torch.where(below, curve, 1 - curve)
    y = torch.where(inside, y, torch.where(x >= 1, 1.0, 0.0))
    return torch.where(flat, (low + high) / 2, low + y * (high - low))
