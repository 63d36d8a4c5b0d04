r"""Partition of a model at a path-induced set of nodes: three models, and what connects them.

A path-induced set S splits the nodes into C (below S), S itself and P (the rest); in that order

.. math::
    E_A = \begin{bmatrix} E_C & 0 & 0 \\ B_S & E_S & 0 \\ 0 & E_{SP} & E_P \end{bmatrix}, \quad
    A = \begin{bmatrix} A_C & 0 & 0 \\ A_S B_S A_C & A_S & 0 \\
        A_P E_{SP} A_S B_S A_C & A_P E_{SP} A_S & A_P \end{bmatrix}

and each of the three is an SKO model by itself.

============= ============================================= =======================
paper         meaning                                       code
============= ============================================= =======================
C, S, P       child, selected and parent nodes              ``child_nodes``, ...
B_S           weights of the edges from C into S            ``child_connector``
E_SP          weights of the edges from S into P            ``parent_connector``
============= ============================================= =======================

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*,
Nonlinear Dynamics, 2011, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from torchsko.algebra.operators.blocks import (
    Blocks,
    blocks_of,
    concatenate,
    connector,
    row_of_columns,
)
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.operators.operators import SPO, BlockDiagonal
from torchsko.algebra.theory.path_induced import induced_subgraph, split_nodes
from torchsko.errors import TreeError


@dataclass(frozen=True, eq=False)
class Partition:
    """A model cut in three; made by `partition`.

    Attributes:
        child: the model of C, the nodes below S; None when there is none.
        selected: the model of S.
        parent: the model of P, all other nodes; None when there is none.
        child_nodes: the nodes of C, by their numbers in the whole model.
        selected_nodes: the nodes of S, by their numbers in the whole model.
        parent_nodes: the nodes of P, by their numbers in the whole model.
        child_dofs: positions of the dofs of C in dof vectors of the whole model.
        selected_dofs: positions of the dofs of S in dof vectors of the whole model.
        parent_dofs: positions of the dofs of P in dof vectors of the whole model.
        child_connector: B_S, `[*batch, m_S, m_C]`, m the sums of the node sizes.
        parent_connector: E_SP, `[*batch, m_P, m_S]`.
    """

    child: SKOModel | None
    selected: SKOModel
    parent: SKOModel | None
    child_nodes: tuple[int, ...]
    selected_nodes: tuple[int, ...]
    parent_nodes: tuple[int, ...]
    child_dofs: tuple[int, ...]
    selected_dofs: tuple[int, ...]
    parent_dofs: tuple[int, ...]
    child_connector: Tensor
    parent_connector: Tensor

    def spo(self) -> Tensor:
        """The SPO of the whole from those of the parts, dense, velocities ordered C, S, P.

        Returns:
            `[*batch, m, m]`, m the sum of all node sizes.

        Reference: Jain 2011, Transformations Part I, Lemma 2.
        """
        A_C, A_S, A_P = (self._spo(part) for part in (self.child, self.selected, self.parent))
        into_S = self.child_connector @ A_C
        into_P = self.parent_connector @ A_S
        columns = [
            concatenate([A_C, A_S @ into_S, A_P @ into_P @ into_S], dim=-2),
            concatenate([A_S, A_P @ into_P], dim=-2),
            A_P,
        ]
        total = columns[0].shape[-2]
        return row_of_columns(columns, [total - column.shape[-2] for column in columns], total)

    def mass_matrix_blocks(self) -> OuterInner:
        """The mass matrix of an outer system S on an inner one P, in the blocks of Cor. 4.1.

        Raises:
            TreeError: when there are nodes below S: they belong to the outer system.

        Reference: Jain 2011, Transformations Part I, Corollary 4.1.
        """
        if self.child is not None:
            below = ", ".join(map(repr, self.child.tree.names))
            raise TreeError(
                f"the nodes {below} hang below the selected ones.",
                "Then the selected system is not the outer one, and the corollary does not hold.",
                "Partition with them in the set: partition(model, "
                f"{sorted([*self.selected_nodes, *self.child_nodes])}).",
            )
        J_S = self._jacobian(self.selected)
        J_P = self._jacobian(self.parent)
        J_SP = self._spo(self.selected).mT @ self.parent_connector.mT @ J_P
        M_S = self._inertia(self.selected)
        M_P = self._inertia(self.parent)
        return OuterInner(
            outer=J_S.mT @ M_S @ J_S + self._armature(self.selected),
            coupling=J_S.mT @ M_S @ J_SP,
            inner=J_P.mT @ M_P @ J_P + self._armature(self.parent),
            reflected=J_SP.mT @ M_S @ J_SP,
        )

    def _nothing(self) -> Tensor:
        return self.selected.inertia.new_zeros(0, 0)

    def _spo(self, part: SKOModel | None) -> Tensor:
        """A of a part, dense; 0 x 0 for a part without nodes."""
        return self._nothing() if part is None else SPO(part.layout, part.edge_weight).to_dense()

    def _jacobian(self, part: SKOModel | None) -> Tensor:
        """A* H* of a part, dense."""
        if part is None:
            return self._nothing()
        H = BlockDiagonal(part.layout, part.joint_map, "dofs", "nodes").to_dense()
        return self._spo(part).mT @ H.mT

    def _inertia(self, part: SKOModel | None) -> Tensor:
        if part is None:
            return self._nothing()
        return BlockDiagonal(part.layout, part.inertia).to_dense()

    def _armature(self, part: SKOModel | None) -> Tensor:
        S = None if part is None else part.armature_matrix()
        return self.selected.inertia.new_zeros(()) if S is None else S


class OuterInner(NamedTuple):
    """The blocks [[outer, coupling], [coupling*, inner + reflected]] of a mass matrix.

    Attributes:
        outer: M_S, the mass matrix of the outer system by itself, `[*batch, d_S, d_S]`.
        coupling: X, `[*batch, d_S, d_P]`.
        inner: M_P, the mass matrix of the inner system by itself, `[*batch, d_P, d_P]`.
        reflected: Y, the inertia of the outer system reflected to the inner dofs, `[*batch, d_P, d_P]`.
    """

    outer: Tensor
    coupling: Tensor
    inner: Tensor
    reflected: Tensor


def partition(model: SKOModel, nodes: Iterable[int | str]) -> Partition:
    """Split a model at a path-induced set of nodes into subsystems and what connects them.

    Args:
        model: any SKO model.
        nodes: numbers or names of the selected nodes S.

    Returns:
        The models of C, S and P, nodes and dofs in the order of the whole, and the connectors.

    Raises:
        TreeError: when the nodes are not path-induced; the message names the path that leaves them. When
            nodes that share a hinge come to lie in different parts.

    Reference: Jain 2011, Transformations Part I, Lemmas 1-2.
    """
    C, S, P = split_nodes(model.tree, nodes)
    _refuse_cut_hinges(model, (C, S, P))
    blocks = blocks_of(model)
    return Partition(
        child=_component(model, blocks, C) if C else None,
        selected=_component(model, blocks, S),
        parent=_component(model, blocks, P) if P else None,
        child_nodes=C,
        selected_nodes=S,
        parent_nodes=P,
        child_dofs=_dofs(model, C),
        selected_dofs=_dofs(model, S),
        parent_dofs=_dofs(model, P),
        child_connector=connector(model.tree, blocks, S, C),
        parent_connector=connector(model.tree, blocks, P, S),
    )


def _dofs(model: SKOModel, nodes: Sequence[int]) -> tuple[int, ...]:
    """Positions of the dofs of these nodes in dof vectors, in order."""
    return tuple(sorted({i for k in nodes for i in model.layout.dofs.places[k]}))


def _refuse_cut_hinges(model: SKOModel, parts: Sequence[Sequence[int]]) -> None:
    for one, other in ((0, 1), (1, 2), (0, 2)):
        if cut := set(_dofs(model, parts[one])).intersection(_dofs(model, parts[other])):
            nodes = [
                model.tree.names[k]
                for k, row in enumerate(model.layout.dofs.places)
                if cut.intersection(row)
            ]
            raise TreeError(
                f"the nodes {', '.join(map(repr, nodes))} share a hinge, and not all are selected.",
                "A subsystem has its dofs to itself.",
                "Select all of them or none.",
            )


def _component(model: SKOModel, blocks: Blocks, nodes: Sequence[int]) -> SKOModel:
    """The model of the induced subgraph on these nodes; its dofs keep their order."""

    def chosen(of: list[Tensor]) -> list[Tensor]:
        return [of[k] for k in nodes]

    rank = {place: i for i, place in enumerate(_dofs(model, nodes))}
    part = Blocks(
        edge_weight=chosen(blocks.edge_weight),
        joint_map=chosen(blocks.joint_map),
        inertia=chosen(blocks.inertia),
        coriolis_accel=chosen(blocks.coriolis_accel),
        gyro_force=chosen(blocks.gyro_force),
        armature=None if blocks.armature is None else chosen(blocks.armature),
        hinge_bias=None if blocks.hinge_bias is None else chosen(blocks.hinge_bias),
        straight=None if blocks.straight is None else chosen(blocks.straight),
        aligned=[blocks.aligned[k] for k in nodes],
        dof_places=[tuple(rank[i] for i in blocks.dof_places[k]) for k in nodes],
    )
    return part.model(induced_subgraph(model.tree, nodes))
