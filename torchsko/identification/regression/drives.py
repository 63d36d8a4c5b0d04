r"""Coordinates of the drives of coupled joints, in which their friction acts.

A coupling of a log, such as that of a differential gear, gives the velocities of joints as sums of those of
drives, :math:`\dot q = D \dot x`. Friction and other terms depend on the motion of a drive and act on it. The
equation of a drive replaces that of its joint:

.. math::
    D^* Y \phi + F(x, \dot x, \ddot x) = D^* \tau .
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.logs.log import Log


@dataclass(frozen=True, eq=False)
class Drives:
    """Drives of coupled joints. The drive of a joint has the index of this joint.

    Attributes:
        dofs: indices of the coupled joints, `[drives]`.
        matrix: from velocities of drives to those of the joints, `[drives, drives]`.
    """

    dofs: Tensor
    matrix: Tensor

    @classmethod
    def of(cls, matrix: Tensor | None) -> Drives | None:
        """Drives of a matrix D `[num_dof, num_dof]`; None if no joints are coupled."""
        if matrix is None:
            return None
        other = matrix != torch.eye(len(matrix)).to(matrix)
        dofs = (other.any(0) | other.any(1)).nonzero().flatten()
        return cls(dofs, matrix[dofs[:, None], dofs]) if len(dofs) else None

    @classmethod
    def of_log(cls, log: Log, like: Tensor) -> Drives | None:
        """Drives of a log, with the dtype and device of a tensor."""
        return cls.of(None if log.drives is None else torch.as_tensor(log.drives).to(like))

    def states(self, x: Tensor) -> Tensor:
        """Positions, velocities or accelerations of drives for those of joints, `[*batch, num_dof]`."""
        return self._mapped(x, torch.linalg.inv(self.matrix).mT)

    def forces(self, tau: Tensor) -> Tensor:
        """Forces of drives for those of joints, `[*batch, num_dof]`."""
        return self._mapped(tau, self.matrix)

    def joint_forces(self, force: Tensor) -> Tensor:
        """Forces of joints for those of drives, `[*batch, num_dof]`."""
        return self._mapped(force, torch.linalg.inv(self.matrix))

    def valid(self, good: Tensor) -> Tensor:
        """Mask of the valid forces of drives, all of whose joints have one, `[*batch, num_dof]`."""
        every = good[..., self.dofs].all(-1, keepdim=True).expand(*good.shape[:-1], len(self.dofs))
        return good.index_copy(-1, self.dofs, every)

    def _mapped(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Map the columns of the coupled joints; others may be nan."""
        return x.index_copy(-1, self.dofs, x[..., self.dofs] @ matrix)
