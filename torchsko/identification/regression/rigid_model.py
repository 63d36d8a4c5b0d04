"""Parts of the nominal model that the regressor omits: springs, armature, positions by dof."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from torchsko.mechanism.coordinates import scatter_dofs
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics
from torchsko.verbs.passive_forces import passive_force
from torchsko.verbs.regressors import inertial_parameters, torque_regressor


def without_losses(mech: Mechanism) -> Mechanism:
    """Set damping, dry friction and constant joint forces to zero."""
    zero = torch.zeros_like(mech.damping)
    return mech.replace(
        damping=zero,
        friction=zero,
        friction_speed=zero,
        force_offset=zero,
        has_smooth_friction=False,
        has_force_offset=False,
    )


def without_armature(mech: Mechanism, dofs: Collection[int]) -> Mechanism:
    """Set the armature of the given independent dofs to zero; that of coupled joints stays."""
    if not dofs:
        return mech
    removed = mech.armature.new_tensor([k in dofs for k in range(mech.num_dof)])
    return mech.replace(armature=mech.armature * (1 - scatter_dofs(mech, removed)))


def passive_and_armature_force(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """Forces of springs and armature, which `inverse_dynamics` includes and `torque_regressor` omits."""
    if mech.coupling is None:
        return passive_force(mech, q, qd) + mech.armature * qdd
    rigid = torque_regressor(mech, q, qd, qdd).flatten(-2) @ inertial_parameters(mech).flatten()
    return inverse_dynamics(mech, q, qd, qdd) - rigid


def dof_positions(mech: Mechanism, q: Tensor) -> Tensor:
    """Positions by dof, `[*batch, num_dof]`; 0 for joints whose coordinates are not a vector."""
    if mech.num_q == mech.num_dof:
        return q
    parts = []
    for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        x = q[..., mech.q_slice(name)]
        size = mech.dof_slice(name).stop - mech.dof_slice(name).start
        parts.append(x if mech.joints.kinds[k].vector else x.new_zeros(*x.shape[:-1], size))
    return torch.cat(parts, -1)
