r"""Motion of the bodies of a tree by one column for each dof, and the stiffness of contacts with the ground.

The velocity of a body is the sum of the columns of the dofs that move it. Columns are [omega; v] in inertial
axes at the origin of the tree, the position of its first body, so that forces and stiffnesses of all
bodies that a dof moves add up without a transform. With the stiffness :math:`S_b = X_b^* H_b X_b` of the
contacts on each body,

.. math::
    J^* H J = \bigl[c_i^* \sum_b S_b\, c_j\bigr], \quad \text{summed over the bodies that both dofs move},

at the cost of composite inertias (R. Featherstone, *Rigid Body Dynamics Algorithms*, Springer 2008, section
6.2), whatever the number of contacts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchsko.bridge.body_poses import Pose
from torchsko.bridge.kinematics import Kinematics
from torchsko.implicit.table_loop import Table
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import cross


@dataclass(frozen=True, eq=False)
class BodyMotions:
    """Motion of the bodies of a tree at a configuration.

    Attributes:
        columns: [omega; v] per rate of each dof, `[*batch, num_tree_dof, 6]`.
        origin: origin of the tree of each body, then of the inertial frame, `[*batch, num_bodies + 1, 3]`.
        moves: whether each dof moves each body, `[num_bodies + 1, num_tree_dof]`, bool.
    """

    columns: Tensor
    origin: Tensor
    moves: Tensor

    @staticmethod
    def of(state: Kinematics, pose: Pose, moves: np.ndarray, roots: Table) -> BodyMotions:
        """From the poses of all bodies, then of the inertial frame; see `ContactTables` for the others."""
        tree = state.tree
        origin = pose.position.index_select(-2, roots.tensor(pose.position.device))
        R, arm = pose.rotation[..., :-1, :, :], (pose.position - origin)[..., :-1, :]
        R, arm = tree.layout.breadth_first(R, -3), tree.layout.breadth_first(arm, -2)
        turn, shift = (x @ R.mT for x in state.joint_map.split(3, -1))
        shift = shift + cross(arm[..., None, :], turn)
        columns = tree.layout.dofs.unpack(torch.cat([turn, shift], -1))
        return BodyMotions(columns, origin, torch.tensor(moves, device=columns.device))

    def velocities(self, rates: Tensor) -> Tensor:
        """Velocities of all bodies at the origins of their trees, `[*batch, num_bodies + 1, 6]`."""
        return self.moves.to(rates.dtype) @ (self.columns * rates[..., None])

    def generalized_forces(self, forces: Tensor) -> Tensor:
        """Generalized forces of `[*batch, num_bodies + 1, 6]` at the origins, `[*batch, num_tree_dof]`."""
        return (self.columns * (self.moves.to(forces.dtype).mT @ forces)).sum(-1)

    def stiffness(self, of_bodies: Tensor) -> Tensor:
        """Stiffness over all dofs of one `[*batch, num_bodies + 1, 6, 6]` of each body."""
        moves = self.moves.to(of_bodies.dtype)
        composite = (moves.mT @ of_bodies.flatten(-2)).unflatten(-1, (6, 6))
        forces = (composite @ self.columns[..., None])[..., 0]
        # Of two dofs the later one moves no body that the earlier one does not move, or has none in common.
        lower = torch.where(moves.mT @ moves > 0, forces @ self.columns.mT, 0.0).tril()
        return lower + lower.tril(-1).mT

    def rows(self, placement: Tensor, moves: Tensor) -> Tensor:
        """Rows per rate of each dof, from those per velocity `[*batch, C, r, 6]`.

        Args:
            placement: rows per velocity.
            moves: whether each dof moves each contact, `[C, num_tree_dof]`, bool.
        """
        columns = torch.where(moves[..., None], self.columns[..., None, :, :], 0.0)
        return placement @ columns.mT

    def at_points(self, bodies: Sequence[int], positions: Tensor, arm: Tensor) -> Tensor:
        """Jacobians of [omega; v] of points on bodies, `[*batch, C, 6, num_tree_dof]`.

        Args:
            bodies: body of each point, num_bodies for the inertial frame.
            positions: origins of all bodies, `[*batch, num_bodies + 1, 3]` [m].
            arm: points relative to the origins of their bodies, `[*batch, C, 3]` [m].
        """
        at = torch.tensor(bodies, dtype=torch.int64, device=arm.device)
        turn, shift = self.columns[..., None, :, :].split(3, -1)
        # In a kernel two shifts take fewer operations than one: points of a body share the first.
        for x in ((positions - self.origin).index_select(-2, at), arm):
            shift = shift + cross(turn, x[..., None, :])
        J = torch.cat([turn.expand_as(shift), shift], -1)
        return torch.where(self.moves.index_select(0, at)[..., None], J, 0.0).mT


def tree_moves(mech: Mechanism) -> Tensor:
    """Mask of the dofs of the tree that move each body, then the inertial frame, bool."""
    rows = [[False] * mech.num_tree_dof for _ in range(mech.num_bodies + 1)]
    for k, name in enumerate(mech.tree_joint_names):
        if mech.parents[k] >= 0:
            rows[k] = list(rows[mech.parents[k]])
        for dof in range(mech.num_tree_dof)[mech.tree_dof_slice(name)]:
            rows[k][dof] = True
    return torch.tensor(rows, dtype=torch.bool, device=mech.device)
