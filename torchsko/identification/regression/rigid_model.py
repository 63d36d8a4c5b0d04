"""What of a robot base parameters and terms do not explain: springs, armatures, its own coordinates."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from torchsko.mechanism.coordinates import among_all_dofs
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics, passive_force
from torchsko.verbs.regressors import inertial_parameters, torque_regressor


def without_losses(mech: Mechanism) -> Mechanism:
    """The mechanism without damping and dry friction."""
    nothing = torch.zeros_like(mech.damping)
    return mech.replace(damping=nothing, friction=nothing)


def without_armature(mech: Mechanism, dofs: Collection[int]) -> Mechanism:
    """The mechanism without the armature of some of its own dofs: that of joints that follow stays."""
    if not dofs:
        return mech
    gone = mech.armature.new_tensor([k in dofs for k in range(mech.num_dof)])
    return mech.replace(armature=mech.armature * (1 - among_all_dofs(mech, gone)))


def passive_and_armature_force(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """Forces of springs and armature: what `inverse_dynamics` has and `torque_regressor` has not."""
    if mech.coupling is None:
        return passive_force(mech, q, qd) + mech.armature * qdd
    rigid = torque_regressor(mech, q, qd, qdd).flatten(-2) @ inertial_parameters(mech).flatten()
    return inverse_dynamics(mech, q, qd, qdd) - rigid


def dof_positions(mech: Mechanism, q: Tensor) -> Tensor:
    """Positions dof by dof; 0 at joints whose coordinates are no vector."""
    if mech.num_q == mech.num_dof:
        return q
    parts = []
    for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        x = q[..., mech.q_slice(name)]
        size = mech.dof_slice(name).stop - mech.dof_slice(name).start
        parts.append(x if mech.joints.kinds[k].vector else x.new_zeros(*x.shape[:-1], size))
    return torch.cat(parts, -1)
