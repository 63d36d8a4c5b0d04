"""Dry friction of joints, and constant offsets."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.passive.term import PassiveTerm


class Friction(PassiveTerm):
    """Force friction * sign(qd), or friction * tanh(qd / friction_speed), and `Mechanism.force_offset`."""

    name: ClassVar[str] = "friction"

    def force(self, state: Kinematics) -> Tensor:
        """Dry friction and offsets."""
        mech = state.mech
        force = mech.friction * friction_direction(mech, state.tree_qd)
        return force + mech.force_offset if mech.has_force_offset else force

    def derivatives(self, state: Kinematics) -> tuple[Tensor | None, Tensor | None]:
        """The slopes of smooth friction on the diagonal; the slope of sign(qd) counts as zero."""
        mech = state.mech
        if not mech.has_smooth_friction:
            return None, None
        smooth, speed = smooth_speeds(mech)
        direction = torch.tanh(state.tree_qd / speed)
        slope = mech.friction * (1 - direction * direction) / speed
        return None, torch.diag_embed(torch.where(smooth, slope, torch.zeros_like(slope)))


def friction_direction(mech: Mechanism, rates: Tensor) -> Tensor:
    """Dry friction over its coefficient: the sign of the rate, or its tanh with `friction_speed`."""
    if not mech.has_smooth_friction:
        return torch.sign(rates)
    smooth, speed = smooth_speeds(mech)
    return torch.where(smooth, torch.tanh(rates / speed), torch.sign(rates))


def smooth_speeds(mech: Mechanism) -> tuple[Tensor, Tensor]:
    """Mask of the joints with smooth friction, and its speed, 1 for all others, `[*batch, num_tree_dof]`."""
    smooth = mech.friction_speed > 0
    return smooth, torch.where(smooth, mech.friction_speed, torch.ones_like(mech.friction_speed))
