"""Inertial forces of the armature of free joints."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.configuration import transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.passive.term import PassiveTerm


class Armature(PassiveTerm):
    """The inertial force of an armature besides armature * qdd, without power.

    The armature of a free joint is a mass at its origin, whose velocity has axes that turn.
    """

    name: ClassVar[str] = "armature"

    def acts(self, mech: Mechanism) -> bool:
        """With armature on a joint whose axes turn."""
        turns = any(group.kind.has_moving_axes for group in mech.joints.groups)
        return mech.has_armature and turns

    def force(self, state: Kinematics) -> Tensor:
        """Armature * (omega x v)."""
        turning = transport_rate(state.tree, state.tree_qd, state.tree_qd)
        assert turning is not None
        return state.mech.armature * turning

    def derivatives(self, state: Kinematics) -> tuple[Tensor | None, Tensor | None]:
        """Derivative of a bilinear function of the rates."""
        tree, rates = state.tree, state.tree_qd
        unit = torch.eye(tree.num_dof, dtype=rates.dtype, device=rates.device)
        rates = rates[..., None, :].expand(*rates.shape[:-1], tree.num_dof, tree.num_dof)
        unit = unit.expand_as(rates)
        first, second = transport_rate(tree, rates, unit), transport_rate(tree, unit, rates)
        assert first is not None and second is not None
        return None, tree.armature[..., None] * (first + second).mT
