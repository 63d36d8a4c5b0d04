"""Inverse masses and inertias in the initial configuration, which scale the softness of constraints.

They are those of the tree without couplings and loops, as in MuJoCo; where the tree has no inertia for a
dependent joint, those of the coupled mechanism. They include the armature of tendons. `transmission_matrix`
couples dofs on one path to the root. As in MuJoCo, the entries of two dofs on different branches are left
out.

Reference: MuJoCo 4.0, ``mj_tendonArmature`` and ``mj_setConst``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.actuation.tendons import Tendons
from torchsko.contact.body_motions import tree_moves
from torchsko.mechanism.coordinates import independent_matrix, tree_columns, tree_q
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import mass_matrix, refuse_singular
from torchsko.verbs.frames import frame_jacobian


class InverseWeights:
    """Inverse masses and inertias of bodies, dofs and tendons, as MuJoCo defines them.

    Attributes:
        mech: the mechanism without couplings and loops, without batch dimensions.
        q: initial configuration.
        inverse: inverse mass matrix of the independent dofs, `[num_dof, num_dof]`.
        tree_inverse: covariance of all dofs of the tree, X M^-1 X*, `[num_tree_dof, num_tree_dof]`.
    """

    def __init__(self, mech: Mechanism) -> None:
        refuse_singular(mech)
        self.mech = mech = _uncoupled(mech)
        initial = mech.file_metadata.initial
        self.q = mech.neutral() if initial is None else initial
        q, tendons = tree_q(mech, self.q), mech.file_metadata.tendons
        M = mass_matrix(mech, self.q)
        if any(tendon.armature for tendon in tendons):
            armature = M.new_tensor([tendon.armature for tendon in tendons])
            added = transmission_matrix(mech, Tendons.of(mech, tendons).transmission, armature)
            M = M + independent_matrix(mech, q, added)
        self.inverse = torch.linalg.inv(M)
        self.tree_inverse = tree_columns(mech, q, tree_columns(mech, q, self.inverse).mT)

    def of_dofs(self) -> tuple[float, ...]:
        """Diagonal of the covariance, averaged over ball joints and the halves of free joints."""
        mech, diagonal = self.mech, self.tree_inverse.diagonal().clone()
        for name, kind in zip(mech.tree_joint_names, mech.joints.kinds, strict=True):
            at = mech.tree_dof_slice(name)
            if not kind.vector:
                for first in range(at.start, at.stop, 3):
                    diagonal[first : first + 3] = diagonal[first : first + 3].mean()
        return tuple(diagonal.tolist())

    def of_length(self, transmission: Tensor) -> float:
        """Inverse inertia of a length with these rates over all dofs of the tree, `[num_tree_dof]`."""
        return float(transmission @ self.tree_inverse @ transmission)

    def of_frame(self, frame: str | None) -> tuple[float, float]:
        """Mean inverse mass and mean inverse inertia of the link of a frame, at its centre of mass.

        The centre of mass is that of the body, or of the link that is welded to it (``centers`` of the file
        data).
        """
        mech = self.mech
        body = -1 if frame is None else mech.frame_body[mech.frame_index(frame)]
        if frame is None or body < 0:
            return 0.0, 0.0
        com, centers = mech.com[body], mech.file_metadata.centers
        if frame in centers:
            f = mech.frame_index(frame)
            com = mech.frame_position[f] + mech.frame_rotation[f] @ com.new_tensor(centers[frame])
        J = frame_jacobian(mech, self.q, mech.body_names[body])
        swing = torch.linalg.cross(J[:3].mT, com.expand(mech.num_dof, 3)).mT
        J = torch.cat([J[:3], J[3:] + swing])
        diagonal = (J @ self.inverse @ J.mT).diagonal()
        return float(diagonal[3:].mean()), float(diagonal[:3].mean())


def _uncoupled(mech: Mechanism) -> Mechanism:
    """The tree of a mechanism, or the mechanism if a dependent joint of its tree has no inertia."""
    if mech.coupling is None and mech.closing is None:
        return mech
    tree = mech.tree
    _, failed = torch.linalg.cholesky_ex(mass_matrix(tree, tree.initial()))
    return mech if bool(failed) else tree


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
