r"""A mechanism at a state: what its verbs share.

The coordinates of a robot with couplings or loops are those of its independent joints; its bodies form a
tree with more joints. Names that start with ``tree`` are of all joints of this tree:

.. math::
    \dot q_{tree} = X \dot q, \qquad \ddot q_{tree} = X \ddot q + \xi, \qquad T = X^* T_{tree}.

======== ================================== ========================= ==================
symbol   meaning                            attribute                 block
======== ================================== ========================= ==================
E_A      edge weights                       ``edge_weight``           (6, 6) a body
H        joint maps                         ``joint_map``             (d, 6) a body
M        inertias of bodies                 ``inertia``               (6, 6) a body
V        velocities of bodies               ``velocity``              (6,) a body
a        Coriolis accelerations             ``coriolis_accel``        (6,) a body
X        rates of the tree per rate         ``independent_to_tree``   (tree, n)
xi       accelerations of the tree at       ``tree_accel_bias``       (tree,)
         qdd = 0
======== ================================== ========================= ==================

Reference: A. Jain, *Multibody graph transformations and analysis, Part II: Closed-chain constraint
embedding*, Nonlinear Dynamics 67(3), 2012.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.algebra.operators.edges import EdgeWeight
from torchsko.algebra.operators.hinge import spread_all
from torchsko.algebra.operators.sweeps import scatter
from torchsko.bridge.body_inertia import body_inertias
from torchsko.bridge.body_poses import Pose, body_poses
from torchsko.bridge.joint_motion import edge_weights, joint_bias_accels, joint_maps
from torchsko.mechanism import coordinates
from torchsko.mechanism.data import uncoupled
from torchsko.mechanism.loops.embedded_loops import coupled_columns
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.motion import cross_motion
from torchsko.utils.computed import computed


@dataclass(frozen=True, eq=False)
class Kinematics:
    """A mechanism at a configuration and, if given, a velocity.

    One value is made in each public call and passed to all that the call evaluates. Its attributes are
    computed when they are first read; arrays of bodies are breadth first, in body frames.

    Attributes:
        mech: the mechanism.
        tree_q: configuration of all joints of its tree, `[*batch, num_tree_q]`.
        qd: velocity of the independent dofs, `[*batch, num_dof]`; None at rest.
    """

    mech: Mechanism
    tree_q: Tensor
    qd: Tensor | None = None

    @staticmethod
    def of(mech: Mechanism, q: Tensor, qd: Tensor | None = None) -> Kinematics:
        """A mechanism at the state q `[*batch, num_q]` and qd `[*batch, num_dof]`; closes its loops."""
        return Kinematics(mech, coordinates.tree_q(mech, q), qd)

    @property
    def loop_motion(self) -> tuple[Tensor, ...]:
        """X and xi of a mechanism with loops; empty without."""
        if self.mech.closing is None:
            return ()
        return self.independent_to_tree, self.tree_accel_bias

    def with_loop_motion(self, *loop_motion: Tensor) -> Kinematics:
        """The same state with X and xi that are known, as inputs of an implicit equation are."""
        known = Kinematics(self.mech, self.tree_q, self.qd)
        for name, x in zip(("independent_to_tree", "tree_accel_bias"), loop_motion, strict=False):
            object.__setattr__(known, name, x)
        return known

    def moving(self, qd: Tensor) -> Kinematics:
        """The mechanism at the same configuration with another velocity."""
        return Kinematics(self.mech, self.tree_q, qd)

    @computed
    def tree(self) -> Mechanism:
        """The mechanism without couplings and loops."""
        return uncoupled(self.mech)

    @computed
    def tree_qd(self) -> Tensor:
        """Velocity of all joints of the tree, X qd, `[*batch, num_tree_dof]`."""
        assert self.qd is not None
        return self.tree_rates(self.qd)

    @computed
    def independent_to_tree(self) -> Tensor:
        """X of a mechanism with loops, `[*batch, num_tree_dof, num_dof]`."""
        assert self.mech.closing is not None
        return self.mech.closing.tree_matrix(self.mech, self.tree, self.tree_q)

    @property
    def _loop_matrix(self) -> Tensor | None:
        """X of a mechanism with loops; None without."""
        return None if self.mech.closing is None else self.independent_to_tree

    @computed
    def tree_accel_bias(self) -> Tensor:
        """Xi of a mechanism with loops, `[*batch, num_tree_dof]`."""
        assert self.mech.closing is not None
        return self.mech.closing.tree_bias(self.mech, self.tree, self.tree_q, self.tree_qd)

    @computed
    def edge_weight(self) -> EdgeWeight:
        """The edge weights A(p(k), k)."""
        return edge_weights(self.tree, self.tree_q)

    @computed
    def joint_map(self) -> Tensor:
        """H of every body, `[*batch, n, d, 6]`, zero-padded."""
        return joint_maps(self.tree, self.tree_q)

    @computed
    def inertia(self) -> Tensor:
        """M of every body, `[*batch, n, 6, 6]`."""
        return body_inertias(self.mech)

    @computed
    def joint_rate(self) -> Tensor:
        """H* qd of every body, `[*batch, n, 6, 1]`."""
        return self.along_joints(self.tree_qd[..., None])

    @computed
    def velocity(self) -> Tensor:
        """V = A* H* qd of every body, `[*batch, n, 6, 1]`."""
        return scatter(self.tree.layout, self.edge_weight, self.joint_rate)

    @computed
    def coriolis_accel(self) -> Tensor:
        """A = Hdot* qd + V x_m H* qd of every body, `[*batch, n, 6, 1]`."""
        coriolis = cross_motion(self.velocity, self.joint_rate)
        bias = joint_bias_accels(self.tree, self.tree_q, self.tree_qd)
        return coriolis if bias is None else coriolis + bias[..., None]

    @computed
    def poses(self) -> Pose:
        """Pose of every body in the inertial frame, in the order of ``mech.body_names``."""
        return body_poses(self.tree, self.tree_q)

    def along_joints(self, columns: Tensor) -> Tensor:
        """H* x of every body, `[*batch, n, 6, r]`, for columns x `[*batch, num_tree_dof, r]`."""
        layout = self.tree.layout
        return spread_all(layout, self.joint_map, layout.dofs.pack(columns))

    def tree_rates(self, rates: Tensor) -> Tensor:
        """X times rates `[*batch, num_dof]`, `[*batch, num_tree_dof]`."""
        return coordinates.tree_rates(self.mech, self._loop_matrix, rates)

    def tree_accels(self, qdd: Tensor) -> Tensor:
        """X qdd + xi, `[*batch, num_tree_dof]`."""
        accels = self.tree_rates(qdd)
        return accels if self.mech.closing is None else accels + self.tree_accel_bias

    def tree_columns(self, columns: Tensor) -> Tensor:
        """X times columns `[*batch, num_dof, r]`, `[*batch, num_tree_dof, r]`."""
        if self.mech.closing is not None:
            return self.independent_to_tree @ columns
        return coupled_columns(self.mech, columns)

    def tree_column_rates(self, columns: Tensor) -> Tensor | None:
        """The rate of X along the motion, times columns `[*batch, num_dof, r]`; None where X is constant."""
        closing = self.mech.closing
        if closing is None:
            return None
        rate = closing.tree_matrix_rate(self.mech, self.tree, self.tree_q, self.tree_qd)
        return rate @ columns

    def independent_forces(self, tau: Tensor) -> Tensor:
        """X* times forces on all joints of the tree `[*batch, num_tree_dof]`, `[*batch, num_dof]`."""
        return coordinates.independent_forces(self.mech, self._loop_matrix, tau)

    def independent_rows(self, rows: Tensor) -> Tensor:
        """Rows `[*batch, r, num_tree_dof]` times X, `[*batch, r, num_dof]`."""
        return coordinates.independent_rows(self.mech, self._loop_matrix, rows)

    def independent_matrix(self, matrix: Tensor) -> Tensor:
        """X* A X of a matrix A `[*batch, num_tree_dof, num_tree_dof]`, `[*batch, num_dof, num_dof]`."""
        return self.independent_rows(self.independent_rows(matrix).mT).mT

    def identity(self) -> Tensor:
        """The identity of the independent dofs, `[num_dof, num_dof]`."""
        return torch.eye(self.mech.num_dof, dtype=self.tree_q.dtype, device=self.tree_q.device)
