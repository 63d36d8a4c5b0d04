"""Damping of joints: linear, quadratic and cubic in the rate."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.passive.term import PassiveTerm


class Damping(PassiveTerm):
    """Force damping * qd + (a |qd| + b qd^2) qd, with the columns a, b of `Mechanism.higher_damping`."""

    name: ClassVar[str] = "damping"

    def force(self, state: Kinematics) -> Tensor:
        """Damping forces."""
        mech, rates = state.mech, state.tree_qd
        linear = mech.damping * rates
        if not mech.has_higher_damping:
            return linear
        squared, cubed = mech.higher_damping.unbind(-1)
        return linear + (squared * rates.abs() + cubed * rates * rates) * rates

    def derivatives(self, state: Kinematics) -> tuple[Tensor | None, Tensor | None]:
        """The slopes on the diagonal."""
        if not state.mech.has_losses:
            return None, None
        return None, torch.diag_embed(damping_slope(state.mech, state.tree_qd))


def damping_slope(mech: Mechanism, rates: Tensor) -> Tensor:
    """Derivative of damping forces to the rates of the tree, `[*batch, num_tree_dof]`."""
    if not mech.has_higher_damping:
        return mech.damping
    squared, cubed = mech.higher_damping.unbind(-1)
    return mech.damping + 2 * squared * rates.abs() + 3 * cubed * rates * rates
