"""What a step of an integrator is, and what steps share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from torchsko.mechanism.coordinates import all_rates
from torchsko.mechanism.mechanism import Mechanism

State = tuple[Tensor, Tensor]


class Accelerate(Protocol):
    """Forward dynamics under a control."""

    def __call__(
        self, mech: Mechanism, t: float, q: Tensor, qd: Tensor, force: Tensor | None = None
    ) -> Tensor:
        """Acceleration `[*batch, num_dof]`; `force` acts on the joints besides the control's."""
        ...


Step = Callable[[Mechanism, Accelerate, float, Tensor, Tensor, float], State]


def implicit_losses(mech: Mechanism, qd: Tensor, dt: float, creep: float) -> Mechanism:
    """The mechanism whose acceleration takes damping B and dry friction on the velocity after a step.

    Damping that is not linear acts to first order in the change of velocity. Dry friction becomes damping
    by its secant, and h B inertia of the joints.

    Args:
        mech: the mechanism.
        qd: velocity before the step, `[*batch, num_dof]`.
        dt: time step [s].
        creep: speed below which dry friction acts like damping [rad/s or m/s].
    """
    rates = all_rates(mech, qd)
    B = mech.damping + mech.friction / (rates * rates + creep**2).sqrt()
    slope = B
    if mech.has_higher_damping:
        once, twice = (mech.higher_damping * torch.stack([rates.abs(), rates * rates], -1)).unbind(
            -1
        )
        B, slope = B + once + twice, B + 2 * once + 3 * twice
    return mech.replace(
        damping=B,
        friction=torch.zeros_like(mech.friction),
        armature=mech.armature + dt * slope,
        has_higher_damping=False,
    )
