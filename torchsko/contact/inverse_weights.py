"""Inverse masses and inertias in the initial configuration, which scale the softness of constraints.

They are those of the tree without couplings and loops, as in MuJoCo; where the tree has no inertia for a
dependent joint, those of the coupled mechanism. They include the armature of tendons. Weights of a robot file
apply as long as `has_file_weights`; otherwise they are computed. `transmission_matrix` couples dofs on one
path to the root. As in MuJoCo, the entries of two dofs on different branches are left out.

Reference: MuJoCo 4.0, ``mj_tendonArmature`` and ``mj_setConst``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.actuators.tendons import Tendons
from torchsko.bridge.assemble import model_at
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.body_motions import tree_moves
from torchsko.linalg.symmetric import spd_solve
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.concrete_values import concrete_values
from torchsko.verbs.dynamics import mass_matrix, refuse_singular
from torchsko.verbs.frames import frame_jacobian

INERTIAL = ("mass", "com", "inertia", "joint_rotation", "joint_position", "axis", "joint_parameters",
            "coupling_ratio", "coupling_offset", "armature")  # fmt: skip
"""Tensors of a mechanism on which the inverse weights depend."""


def has_file_weights(mech: Mechanism) -> bool:
    """True if inverse weights of the file apply: no joint was locked, and no inertia replaced."""
    return bool(mech.file_metadata.solver.dof_invweight) and not {*INERTIAL} & {*mech.replaced}


class InverseWeights:
    """Inverse masses and inertias of bodies, dofs and tendons, as MuJoCo defines them.

    All of them have the batch dimensions of the mechanism, and gradients.

    Attributes:
        mech: the mechanism without couplings and loops.
        q: initial configuration.
        inverse: inverse mass matrix of the independent dofs, `[*batch, num_dof, num_dof]`.
        tree_inverse: covariance of all dofs of the tree, X M^-1 X*, `[*batch, num_tree_dof, num_tree_dof]`.
    """

    def __init__(self, mech: Mechanism) -> None:
        refuse_singular(mech)
        self.mech, self.q = mech, _ = _uncoupled(mech)
        state, tendons = Kinematics.of(mech, self.q), mech.file_metadata.tendons
        M = algorithms.mass_matrix(model_at(state))
        if any(tendon.armature for tendon in tendons):
            armature = M.new_tensor([tendon.armature for tendon in tendons])
            added = transmission_matrix(mech, Tendons.of(mech, tendons).transmission, armature)
            M = M + state.independent_matrix(added)
        identity = torch.eye(mech.num_dof, dtype=M.dtype, device=M.device).expand_as(M)
        self.inverse = spd_solve(M, identity)
        self.tree_inverse = state.tree_columns(state.tree_columns(self.inverse).mT)

    def of_lengths(self, transmission: Tensor) -> Tensor:
        """Inverse inertias of all dofs of the tree, then of tendons, `[*batch, num_tree_dof + T]`.

        Those of ball joints and of the halves of free joints are averages.

        Args:
            transmission: rates of the tendons over rates of all joints, `[T, num_tree_dof]`.
        """
        mech, groups = self.mech, torch.eye(self.mech.num_tree_dof, dtype=self.inverse.dtype)
        for name, kind in zip(mech.tree_joint_names, mech.joints.kinds, strict=True):
            at = mech.tree_dof_slice(name)
            if not kind.vector:
                for first in range(at.start, at.stop, 3):
                    groups[first : first + 3, first : first + 3] = 1 / 3
        diagonal = self.tree_inverse.diagonal(dim1=-2, dim2=-1)
        of_dofs = (diagonal[..., None, :] @ groups.to(diagonal.device))[..., 0, :]
        of_tendons = ((transmission @ self.tree_inverse) * transmission).sum(-1)
        return torch.cat([of_dofs, of_tendons.expand(*of_dofs.shape[:-1], -1)], -1)

    def of_points(self, bodies: Sequence[int], points: Tensor | None = None) -> Tensor:
        """Mean inverse mass and mean inverse inertia of bodies, `[*batch, n, 2]`.

        Args:
            bodies: their indices; num_bodies stands for the inertial frame, whose weights are zero.
            points: where a force acts, in the bodies, `[*, n, 3]` [m]; by default the centers of mass.
        """
        mech, num = self.mech, self.mech.num_bodies
        at = torch.tensor([min(k, num - 1) for k in bodies], dtype=torch.int64, device=mech.device)
        points = mech.com.index_select(-2, at) if points is None else points
        turn, shift = (
            frame_jacobian(mech, self.q, mech.body_names).index_select(-3, at).split(3, -2)
        )
        shift = shift + torch.linalg.cross(turn.mT, points[..., None, :]).mT
        means = [((J @ self.inverse[..., None, :, :]) * J).sum((-2, -1)) / 3 for J in (shift, turn)]
        found = torch.stack(torch.broadcast_tensors(*means), -1)
        moves = torch.tensor([k < num for k in bodies], dtype=torch.bool, device=mech.device)
        return torch.where(moves[:, None], found, 0.0)


def _uncoupled(mech: Mechanism) -> tuple[Mechanism, Tensor]:
    """The tree of a mechanism, and its initial coordinates, which may violate the couplings of its file.

    If a dependent joint of the tree has no inertia, the mechanism itself.
    """
    if mech.coupling is None and mech.closing is None:
        return mech, mech.initial()
    tree, start = mech.tree, mech.tree.initial()
    rows = torch.eye(mech.num_tree_q, dtype=start.dtype, device=start.device)
    for x in mech.file_metadata.coupled:
        start = start + x.violation * rows[mech.tree_q_slice(x.joint).start]
    M = concrete_values(mass_matrix(tree, start))
    if M is None:  # traced, or under vmap
        return tree, start
    least = np.linalg.eigvalsh(M)[..., 0]
    return (mech, mech.initial()) if bool((least <= 0).any()) else (tree, start)


def transmission_matrix(mech: Mechanism, transmission: Tensor, weights: Tensor) -> Tensor:
    """J* w J between the dofs of the tree that are on one path to the root, other entries zero.

    Args:
        mech: the mechanism.
        transmission: J, rates of lengths over rates of all joints, `[*batch, n, num_tree_dof]`.
        weights: w, such as armature [kg or kg m^2] or damping of each length, `[*batch, n]`.

    Returns:
        `[*batch, num_tree_dof, num_tree_dof]`.
    """
    moves = tree_moves(mech).to(transmission.dtype)
    found = transmission.mT @ (weights[..., None] * transmission)
    return torch.where(moves.mT @ moves > 0, found, 0.0)
