"""Inverse masses and inertias in the initial configuration, which scale soft constraints."""

from __future__ import annotations

import torch

from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import mass_matrix
from torchsko.verbs.frames import frame_jacobian


class InverseWeights:
    """Inverse masses and inertias of bodies and dofs, as MuJoCo defines them."""

    def __init__(self, mech: Mechanism) -> None:
        self.mech = mech
        initial = mech.file_metadata.initial
        self.q = mech.neutral() if initial is None else initial
        self.inverse = torch.linalg.inv(mass_matrix(mech, self.q))

    def of_dofs(self) -> tuple[float, ...]:
        """Diagonal of the inverse mass matrix, averaged over ball joints and the halves of free joints."""
        mech, diagonal = self.mech, self.inverse.diagonal().clone()
        for name, kind in zip(mech.joint_names, mech.joints.kinds, strict=True):
            at = mech.dof_slice(name)
            if not kind.vector:
                for first in range(at.start, at.stop, 3):
                    diagonal[first : first + 3] = diagonal[first : first + 3].mean()
        return tuple(diagonal.tolist())

    def of_body(self, body: int) -> tuple[float, float]:
        """Mean inverse mass and mean inverse inertia of a body at its centre of mass."""
        if body < 0:
            return 0.0, 0.0
        mech = self.mech
        J = frame_jacobian(mech, self.q, mech.body_names[body])
        swing = torch.linalg.cross(J[:3].mT, mech.com[body].expand(mech.num_dof, 3)).mT
        J = torch.cat([J[:3], J[3:] + swing])
        diagonal = (J @ self.inverse @ J.mT).diagonal()
        return float(diagonal[3:].mean()), float(diagonal[:3].mean())
