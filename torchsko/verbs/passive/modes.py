"""Symmetric matrices of modal coordinates, in all dofs of the tree; see `Mechanism.modal_stiffness`."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import gather_entries, matvec


def modal_force(mech: Mechanism, matrix: Tensor, modes: Tensor) -> Tensor:
    """The symmetric part of a matrix times `[*batch, num_modes]`, `[*batch, num_tree_dof]`."""
    force = matvec((matrix + matrix.mT) / 2, modes)
    return gather_entries(pad(force, (0, 1)), mech.joints.mode_place)


def modal_matrix(mech: Mechanism, matrix: Tensor) -> Tensor:
    """The symmetric part of a matrix with rows and columns of all dofs of the tree."""
    place = mech.joints.mode_place
    padded = pad((matrix + matrix.mT) / 2, (0, 1, 0, 1))
    return padded.index_select(-1, place).index_select(-2, place)
