"""Gravity compensation of bodies."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.bridge.assemble import lifted_model
from torchsko.bridge.body_momenta import compensating_forces
from torchsko.bridge.kinematics import Kinematics
from torchsko.bridge.tangents import tangents
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import compensated_mass
from torchsko.utils.shapes import matvec
from torchsko.verbs.joint_tangents import joint_bends
from torchsko.verbs.passive.term import PassiveTerm


class Compensation(PassiveTerm):
    """The part `Mechanism.gravcomp` of the weight of every body, lifted at its center of mass."""

    name: ClassVar[str] = "compensation"

    def acts(self, mech: Mechanism) -> bool:
        """With compensated bodies."""
        return mech.has_gravcomp

    def force(self, state: Kinematics) -> Tensor:
        """Joint forces of the lifted weights, negative where they lift."""
        return -compensating_forces(state)

    def derivatives(self, state: Kinematics) -> tuple[Tensor | None, Tensor | None]:
        """Minus the tangent of the static forces of the lifted masses."""
        tree, tree_q = state.tree, state.tree_q
        rest = torch.zeros_like(tree_q[..., :1]).expand(*tree_q.shape[:-1], tree.num_dof)
        at_rest = Kinematics(tree, tree_q, rest)
        lifted = lifted_model(at_rest)
        bends = joint_bends(tree, tree_q, rest)
        motion = tangents(at_rest, lifted.inertia, rest, None, bends)
        parts = [motion.to_q, motion.to_qd]
        to_q = algorithms.mass_and_motion_matrices(lifted, motion.inertia_rate, parts)[1]
        return -to_q, None

    def energy(self, state: Kinematics) -> Tensor | None:
        """Minus the potential energy of the lifted masses."""
        mech, pose = state.mech, state.poses
        mass, first = compensated_mass(mech.mass, mech.com, mech.gravcomp)
        moment = (mass * pose.position + matvec(pose.rotation, first)).sum(-2)
        return (mech.gravity * moment).sum(-1)
