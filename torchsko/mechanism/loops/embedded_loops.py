r"""Closed chains: velocities of all joints from those of the independent dofs.

The loops of a node S determine the rates of its dependent dofs,

.. math:: G_d \dot q_d + G_i \dot q_i = 0 .

Rates and accelerations of all dofs of the node follow from those of the independent ones.

.. math::
    X = \begin{bmatrix} 1 \\ -G_d^+ G_i \end{bmatrix}, \qquad
    \xi = \begin{bmatrix} 0 \\ -G_d^+ \gamma \end{bmatrix} .

They are linear in the independent ones.

.. math:: \dot q_S = X \dot q, \quad \ddot q_S = X \ddot q + \xi .

The rows depend on the motion within the node alone, so they are evaluated in the axes of the body on
which the node hangs. Couplings act within: open dofs are those that no coupling determines, and
X of the tree is that of the couplings times that of the loops.

======== ========================================== ==================== ==============
symbol   meaning                                    code                 block
======== ========================================== ==================== ==============
G        Jacobian of the loops of one node          ``jacobian``         (rows, open)
G_d      its columns of dependent dofs              ``dependent``        (rows, d)
X        rates of the tree per independent rate     ``tree_matrix``      (tree, n)
xi       accelerations of the tree at qdd = 0       ``tree_bias``        (tree,)
======== ========================================== ==================== ==============

Reference: A. Jain, *Multibody graph transformations and analysis, Part II: Closed-chain constraint
embedding*, Nonlinear Dynamics 67(3), 2012, sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchsko.algebra.topology.embedding_plan import EmbeddingPlan
from torchsko.implicit.jacobian_products import jvp_by_double_vjp
from torchsko.linalg.full_rank_solve import least_squares
from torchsko.mechanism.joints.groups import JointSet
from torchsko.mechanism.loops.placements import MarkerPlace, Placements
from torchsko.mechanism.loops.row_set import Rows, RowSet
from torchsko.mechanism.numbering import TreeNumbering
from torchsko.utils.shapes import broadcast_shapes, concatenate

MIN_SHARED_DOFS = 6
"""Dependent dofs from which a kernel contains closing and dynamics once for all stages of a step. Below, the
stages run faster one after another: a four-bar by 4 %, with its gradient by 14 %."""

Vector = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class EmbeddedNode:
    """Bodies that the loops between them join to one node.

    Attributes:
        names: names of the closures.
        constraints: their rows.
        places: both markers of each closure between frames.
        parameters: numbers of all closures.
        place: for each dof of the tree its column of the rows, one past the end for others, int64.
        open_dofs: open dofs of the node, int64.
        dependent: dependent ones among them, int64.
        independent: the others, int64.
        columns: for each dof of the mechanism its place in `independent`, one past the end for dofs outside
            the node, int64.
    """

    names: tuple[str, ...]
    constraints: RowSet
    places: tuple[MarkerPlace, ...]
    parameters: tuple[float, ...]
    place: Tensor
    open_dofs: Tensor
    dependent: Tensor
    independent: Tensor
    columns: Tensor

    def rows(self, mech: TreeNumbering, tree: TreeNumbering, q: Tensor, qd: Tensor | None) -> Rows:
        """Rows at a state of the tree, with a column for each open dof of the node."""
        numbers = Placements.of(mech, self.places, self.parameters)
        rows = self.constraints.rows(tree, q, qd, numbers)
        G = pad(rows.jacobian, (0, 1)).index_select(-1, self.place)
        if mech.coupling is not None:
            G = mech.coupling.independent_forces(G, mech.coupling_ratio[..., None, :])
        return rows._replace(jacobian=G.index_select(-1, self.open_dofs))


@dataclass(frozen=True, eq=False)
class EmbeddedLoops:
    """Structure of the loops of a mechanism; made by `torchsko.mechanism.closed_chains.embedded_nodes`.

    Attributes:
        nodes: nodes with loops.
        own: for each dof of the mechanism its open dof, int64.
        row_place: for each open dof its row among those of the independent dofs, then of the dependent dofs
            of each node, int64.
        dependent: dependent open dofs, node by node, int64.
        plan: embedding plan of all nodes, with loops or with couplings.
        blocks: for each node of the plan, rows (dofs of the tree) and columns (dofs) of its X.
        reference: a closed configuration.
    """

    nodes: tuple[EmbeddedNode, ...]
    own: Tensor
    row_place: Tensor
    dependent: Tensor
    plan: EmbeddingPlan
    blocks: tuple[tuple[Tensor, Tensor], ...]
    reference: Vector

    def __repr__(self) -> str:
        return f"EmbeddedLoops({', '.join(self.names)}: {self.own.shape[0]} dofs)"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all closures."""
        return tuple(name for node in self.nodes for name in node.names)

    @property
    def num_dof(self) -> int:
        """Number of independent dofs."""
        return self.own.shape[0]

    @property
    def is_shared(self) -> bool:
        """True if a kernel contains closing and dynamics once for all stages of a step."""
        return self.dependent.shape[0] >= MIN_SHARED_DOFS

    def open_matrix(self, mech: TreeNumbering, tree: TreeNumbering, q: Tensor) -> Tensor:
        """Rates of open dofs per independent rate, `[*batch, open, n]`."""
        n = self.num_dof
        parts = [torch.eye(n, dtype=q.dtype, device=q.device)]
        for node in self.nodes:
            G = node.rows(mech, tree, q, None).jacobian
            G_d = G.index_select(-1, node.dependent)
            G_i = G.index_select(-1, node.independent)
            block = -least_squares(G_d, G_i)
            parts.append(pad(block, (0, 1)).index_select(-1, node.columns))
        return concatenate(parts, -2).index_select(-2, self.row_place)

    def tree_matrix(self, mech: TreeNumbering, tree: TreeNumbering, q: Tensor) -> Tensor:
        """X, `[*batch, num_tree_dof, n]`, at a configuration of the tree."""
        return coupled_columns(mech, self.open_matrix(mech, tree, q))

    def tree_matrix_rate(
        self, mech: TreeNumbering, tree: TreeNumbering, q: Tensor, qd: Tensor
    ) -> Tensor:
        """Rate of X along the velocity qd of the tree, `[*batch, num_tree_dof, n]`."""
        qd = qd.expand(*broadcast_shapes(q.shape[:-1], qd.shape[:-1]), -1)

        def matrix(step: Tensor) -> tuple[Tensor]:
            moved = add_tree_step(tree.joints, q, step)
            return (self.tree_matrix(mech, tree, moved),)

        return jvp_by_double_vjp(matrix, (torch.zeros_like(qd),), (qd,))[0]

    def tree_bias(self, mech: TreeNumbering, tree: TreeNumbering, q: Tensor, qd: Tensor) -> Tensor:
        """The bias xi, `[*batch, num_tree_dof]`, at a state of the tree."""
        parts = [torch.zeros(self.num_dof, dtype=q.dtype, device=q.device)]
        for node in self.nodes:
            rows = node.rows(mech, tree, q, qd)
            assert rows.bias is not None
            G_d = rows.jacobian.index_select(-1, node.dependent)
            parts.append(-least_squares(G_d, rows.bias[..., None])[..., 0])
        return coupled_step(mech, concatenate(parts, -1).index_select(-1, self.row_place))

    def residual(self, mech: TreeNumbering, tree: TreeNumbering, q: Tensor) -> Tensor:
        """Residuals of all loops, `[*batch, rows]`."""
        parts = [node.rows(mech, tree, q, None).residual for node in self.nodes]
        return concatenate(parts, -1, q.shape[:-1])

    def dependent_step(self, mech: TreeNumbering, tree: TreeNumbering, q: Tensor) -> Tensor:
        """Newton step of the dependent open dofs, -G_d^+ phi, `[*batch, d]`."""
        parts = []
        for node in self.nodes:
            rows = node.rows(mech, tree, q, None)
            G_d = rows.jacobian.index_select(-1, node.dependent)
            parts.append(-least_squares(G_d, rows.residual[..., None])[..., 0])
        return concatenate(parts, -1, q.shape[:-1])

    def open_step(self, step: Tensor) -> Tensor:
        """A step of all open dofs from one of the dependent ones, `[*batch, open]`."""
        return pad(step, (self.num_dof, 0)).index_select(-1, self.row_place)

    def spread_dependent(self, mech: TreeNumbering, step: Tensor) -> Tensor:
        """A step of the tree from one of the dependent open dofs, `[*batch, num_tree_dof]`."""
        return coupled_step(mech, self.open_step(step))


def add_tree_step(joints: JointSet, q: Tensor, step: Tensor) -> Tensor:
    """A configuration of the tree moved along a tangent step of the tree."""
    parts = [
        group.kind.integrate(group.coordinates(q), group.rates(step)) for group in joints.groups
    ]
    return joints.vector(parts, joints.q_place)


def coupled_step(mech: TreeNumbering, step: Tensor) -> Tensor:
    """A step of open dofs as one of all dofs of the tree, `[*batch, num_tree_dof]`."""
    if mech.coupling is None:
        return step
    return mech.coupling.tree_rates(step, mech.coupling_ratio)


def coupled_columns(mech: TreeNumbering, columns: Tensor) -> Tensor:
    """Columns `[*batch, open, r]` as those of all joints of the tree."""
    if mech.coupling is None:
        return columns
    return mech.coupling.tree_rates(columns.mT, mech.coupling_ratio[..., None, :]).mT
