"""Damping of joints, linear, quadratic and cubic in the rate, and of modal coordinates."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import gather_entries
from torchsko.verbs.passive.modes import modal_force, modal_matrix
from torchsko.verbs.passive.term import PassiveTerm


class Damping(PassiveTerm):
    """Force damping * qd + (a |qd| + b qd^2) qd, with the columns a, b of `Mechanism.higher_damping`.

    Modal coordinates have the force `Mechanism.modal_damping` times their rates besides.
    """

    name: ClassVar[str] = "damping"

    def force(self, state: Kinematics) -> Tensor:
        """Damping forces."""
        mech, rates = state.mech, state.tree_qd
        linear = mech.damping * rates
        if mech.num_modes:
            modes = gather_entries(rates, mech.joints.modes[1])
            linear = linear + modal_force(mech, mech.modal_damping, modes)
        if not mech.has_higher_damping:
            return linear
        squared, cubed = mech.higher_damping.unbind(-1)
        return linear + (squared * rates.abs() + cubed * rates * rates) * rates

    def derivatives(self, state: Kinematics) -> tuple[Tensor | None, Tensor | None]:
        """The slopes on the diagonal."""
        mech = state.mech
        if not mech.has_losses:
            return None, None
        slope = torch.diag_embed(damping_slope(mech, state.tree_qd))
        if not mech.num_modes:
            return None, slope
        C = mech.modal_damping
        return None, slope + modal_matrix(mech, C - torch.diag_embed(C.diagonal(dim1=-2, dim2=-1)))


def damping_slope(mech: Mechanism, rates: Tensor) -> Tensor:
    """Derivative of the damping force of each dof of the tree to its rate, `[*batch, num_tree_dof]`."""
    slope = mech.damping
    if mech.num_modes:
        of_modes = mech.modal_damping.diagonal(dim1=-2, dim2=-1)
        slope = slope + gather_entries(pad(of_modes, (0, 1)), mech.joints.mode_place)
    if not mech.has_higher_damping:
        return slope
    squared, cubed = mech.higher_damping.unbind(-1)
    return slope + 2 * squared * rates.abs() + 3 * cubed * rates * rates
