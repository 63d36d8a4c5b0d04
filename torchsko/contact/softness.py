r"""Softness of constraints: the regularization and the reference acceleration of MuJoCo.

A row with position r, margin m and velocity v has the impedance d(r), the regularization R and the reference
acceleration

.. math::
    R = \frac{1 - d}{d}\, \hat A, \qquad a_{ref} = -b\, v - k\, d\, (r - m),

with the inverse weight :math:`\hat A`, the damping b and the stiffness k of ``solref``. Rows of friction have
no stiffness.

The integrator "discrete" evaluates springs and dampers at the end of the step of length h. With the factor
s = 1 + h b + h^2 k d,

.. math::
    R = \frac{1 - d}{d\, s}\, \hat A, \qquad a_{ref} = -\frac{b\, v + k\, d\, (r - m + h v)}{s}.

Reference: MuJoCo documentation, "Computation", Constraint model; "Modeling", Solver parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.mechanism.file_data.solver_options import SOLREF

MIN_VALUE = 1e-15
"""Smallest regularization (mjMINVAL)."""

MIN_IMPEDANCE, MAX_IMPEDANCE = 1e-4, 0.9999
"""Bounds of impedances and of the midpoint of their sigmoid (mjMINIMP, mjMAXIMP)."""


class Timing(NamedTuple):
    """Treatment of the time step by constraints.

    Attributes:
        timestep: h [s].
        safe: whether stiffness is bounded for the time step (refsafe).
        end_of_step: whether springs and dampers act at the end of the step.
    """

    timestep: float
    safe: bool
    end_of_step: bool


class Metric(NamedTuple):
    """Diagonals of the mass matrix and of what a step adds to it, `[*batch, num_dof]`."""

    inertia: Tensor
    added: Tensor

    def ratio(self, jacobian: Tensor) -> Tensor:
        """Ratio of the inverse inertias of rows `[*batch, r, num_dof]` with and without the addition."""
        square = jacobian * jacobian
        own = (square / self.inertia[..., None, :]).sum(-1)
        both = (square / (self.inertia + self.added)[..., None, :]).sum(-1)
        moves = own > 0
        return torch.where(moves, both / torch.where(moves, own, 1.0), 1.0)


def scaled_weight(invweight: Tensor, jacobian: Tensor, metric: Metric | None) -> Tensor:
    """Inverse weights of rows `[*batch, r, num_dof]` in a metric; unchanged without one."""
    return invweight if metric is None else invweight * metric.ratio(jacobian)


WeightScale = Callable[[Tensor, Tensor], Tensor]
"""Inverse weights in the metric of a step, from those without one and rows over all dofs of the tree."""


class Softness(NamedTuple):
    """Stiffness and damping of constraints per unit of mass, and their impedance.

    Attributes:
        stiffness: k, or k / s at the end of a step, `[*batch, m]` [1/s^2].
        damping: b, or (b + h k d) / s at the end of a step, `[*batch, m]` [1/s].
        impedance: d, `[*batch, m]`.
        gain: s, 1 at the start of a step, `[*batch, m]`.
    """

    stiffness: Tensor
    damping: Tensor
    impedance: Tensor
    gain: Tensor | float

    def acceleration(self, velocity: Tensor, position: Tensor) -> Tensor:
        """The reference acceleration for velocities and positions less their margins."""
        return -self.damping * velocity - self.stiffness * self.impedance * position

    def regularization(self, invweight: Tensor) -> Tensor:
        """R for an inverse weight."""
        d = self.impedance
        return torch.clamp((1 - d) * invweight / d, min=MIN_VALUE) / self.gain


def softness(
    solref: Tensor, solimp: Tensor, position: Tensor, timing: Timing, *, friction: bool = False
) -> Softness:
    """Parameters of constraints at positions.

    Args:
        solref: `[*, m, 2]`: time constant [s] and damping ratio if both are positive, minus stiffness and
            minus damping if neither is, and otherwise `SOLREF` in their place.
        solimp: `[*, m, 5]`.
        position: positions less their margins, `[*batch, m]` [m or rad].
        timing: of the step.
        friction: whether the constraints have no stiffness.
    """
    low, high = (x.clamp(MIN_IMPEDANCE, MAX_IMPEDANCE) for x in solimp[..., :2].unbind(-1))
    h, solref = timing.timestep, consistent_solref(solref)
    if timing.safe and not timing.end_of_step:
        solref = safe_solref(solref, h)
    time, ratio = solref.unbind(-1)
    standard = time > 0
    t, r = torch.where(standard, time, 1.0), torch.where(standard, ratio, 1.0)
    stiffness = torch.where(standard, 1 / (high * t * r) ** 2, -time / high**2)
    damping = torch.where(standard, 2 / (high * t), -ratio / high)
    impedance = _impedance(solimp, low, high, position)
    if not timing.end_of_step:
        return Softness(stiffness, damping, impedance, 1.0)
    if friction:
        stiffness = torch.zeros_like(stiffness)
    elif timing.safe:
        # The stiffest row without restitution has k d h^2 = 1, at the same damping ratio.
        excess = h * h * stiffness * impedance
        bound = torch.where(standard & (excess > 1), 1 / excess, 1.0)
        stiffness, damping = stiffness * bound, damping * bound.sqrt()
    spring = h * stiffness * impedance
    gain = 1 + h * (damping + spring)
    return Softness(stiffness / gain, (damping + spring) / gain, impedance, gain)


def consistent_solref(solref: Tensor) -> Tensor:
    """Reference parameters `[*, m, 2]`; the default ones where only one number is positive."""
    time, ratio = (solref > 0).unbind(-1)
    return torch.where((time == ratio)[..., None], solref, solref.new_tensor(SOLREF))


def safe_solref(solref: Tensor, dt: float | Tensor) -> Tensor:
    """Reference parameters with time constants of two time steps at least, `[*batch, m, 2]`.

    Args:
        solref: `[*, m, 2]`.
        dt: time step [s], a number or `[*batch, 1]`.
    """
    time, ratio = consistent_solref(solref).unbind(-1)
    time = torch.where(time > 0, time.clamp(min=2 * dt), time)
    return torch.stack([time, ratio.expand_as(time)], -1)


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
