r"""SKO models: the three objects that multibody dynamics follows from, and their two bias terms.

.. math::
    V = A^* H^* \dot q, \quad \alpha = A^*(H^* \ddot q + a), \quad f = A(M \alpha + b), \quad
    T = H f + S \ddot q

======== ============================================== ==================== ============
paper    meaning                                        field                block
======== ============================================== ==================== ============
E_A      SKO operator of the tree                       ``edge_weight``      (m_p, m_k)
H        joint map                                      ``joint_map``        (d_k, m_k)
M        inertia                                        ``inertia``          (m_k, m_k)
a        velocity-dependent acceleration                ``coriolis_accel``   (m_k,)
b        velocity-dependent and external force          ``gyro_force``       (m_k,)
S        armature: inertia in series with the hinge     ``armature``         (d_k,)
======== ============================================== ==================== ============

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, section 2.
DEPARTS: S is not in the paper; it adds a diagonal to the mass matrix and to every D(k), and leaves the
innovations factorization as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.algebra.operators.edges import DenseEdges, EdgeWeight
from torchsko.algebra.operators.hinge import LevelMaps
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import ShapeError
from torchsko.utils.devices import on_device
from torchsko.utils.shapes import broadcast_shapes


@dataclass(frozen=True, eq=False)
class SKOModel:
    """An SKO model on a tree; tensors packed breadth first and zero-padded (see `layout`).

    Attributes:
        layout: topology, block sizes, index tensors.
        edge_weight: A(p(k), k) for every node.
        maps: H, `[*batch, n, d, m]`, or level by level; in one tensor it is `joint_map`.
        inertia: M, `[*batch, n, m, m]`, symmetric.
        coriolis_accel: a, `[*batch, n, m, 1]`.
        gyro_force: b, `[*batch, n, m, 1]`.
        armature: S, `[*batch, n, d, 1]` for its diagonal, or `[*batch, n, d, d]`; None for zero. Of nodes
            that share a hinge the sum counts.
        hinge_bias: s, `[*batch, n, d, 1]`: what T = H f + S qdd + s holds besides, the force that moves
            an armature at qdd = 0 (see `embedding`); None for zero. Of nodes that share a hinge the sum
            counts.
        straight: E, `[*batch, n, d, m]`, rows with E(k) H*(k) = I, each of which may be zero instead: what
            the recursions use to write P+ along a hinge exactly, worth two digits in float32 on long
            chains (see `hinge_step`). It is H where its rows are orthonormal; a node with zero rows goes
            without, as every node does with None. Zero where S is not diagonal or a hinge is shared.
        aligned: for each node in the tree's order, whether its rows of E are unit vectors of the
            coordinates, or zero: the same result for fewer operations where a whole level is.
    """

    layout: Layout
    edge_weight: EdgeWeight
    maps: Tensor | LevelMaps
    inertia: Tensor
    coriolis_accel: Tensor
    gyro_force: Tensor
    armature: Tensor | None = None
    hinge_bias: Tensor | None = None
    straight: Tensor | None = None
    aligned: tuple[bool, ...] = ()

    def __repr__(self) -> str:
        batch = f", batch {list(self.batch_shape)}" if self.batch_shape else ""
        return (
            f"SKOModel({self.tree.num_nodes} nodes, {self.num_dof} dofs{batch}; "
            f"{self.inertia.dtype}, {self.inertia.device})"
        )

    @property
    def tree(self) -> Tree:
        """The topology."""
        return self.layout.tree

    @property
    def num_dof(self) -> int:
        """Number of degrees of freedom."""
        return self.layout.dofs.total

    @property
    def joint_map(self) -> Tensor:
        """H, `[*batch, n, d, m]`, zero-padded."""
        if isinstance(self.maps, Tensor):
            return self.maps
        return join([self.layout.widen_dofs(H) for H in self.maps.levels])

    @property
    def batch_shape(self) -> torch.Size:
        """Batch dimensions of all fields, broadcast together."""
        fields = [self.inertia, self.coriolis_accel, self.gyro_force]
        fields += self.maps.levels if isinstance(self.maps, LevelMaps) else [self.maps]
        fields += [x for x in (self.armature, self.hinge_bias) if x is not None]
        return broadcast_shapes(
            self.edge_weight.batch_shape, *(field.shape[:-3] for field in fields)
        )

    def armature_matrix(self) -> Tensor | None:
        """S as it adds to the mass matrix, `[*batch, num_dof, num_dof]`; None for zero."""
        S, dofs = self.armature, self.layout.dofs
        if S is None:
            return None
        if S.shape[-1] == 1:
            return torch.diag_embed(dofs.collect(S)[..., 0])
        return dofs.collect(S @ dofs.pack(torch.eye(dofs.total, dtype=S.dtype, device=S.device)))

    @staticmethod
    def from_blocks(
        tree: Tree,
        edge_weight: Sequence[Tensor | None],
        joint_map: Sequence[Tensor],
        inertia: Sequence[Tensor],
        coriolis_accel: Sequence[Tensor] | None = None,
        gyro_force: Sequence[Tensor] | None = None,
        armature: Sequence[Tensor] | None = None,
        dof_places: Sequence[Sequence[int]] | None = None,
        straight: Sequence[Tensor] | None = None,
    ) -> SKOModel:
        """Model from one block per node, in the tree's numbering.

        Args:
            tree: topology.
            edge_weight: A(p(k), k), `[*batch, m_p, m_k]`; None at a base node.
            joint_map: H(k), `[*batch, d_k, m_k]`, of full row rank.
            inertia: M(k), `[*batch, m_k, m_k]`, symmetric; every hinge inertia D(k) that results
                must be positive definite for forward dynamics.
            coriolis_accel: a(k), `[*batch, m_k]`; zero when left out.
            gyro_force: b(k), `[*batch, m_k]`; zero when left out.
            armature: S(k), `[*batch, d_k]`; zero when left out.
            dof_places: where the dofs of node k stand in dof vectors; node by node when left out.
                Siblings with the same places share one hinge (see `sharing`).
            straight: E(k), `[*batch, d_k, m_k]`: E(k) H*(k) = I, or zero; see the class.

        Raises:
            ShapeError: when a block's shape does not fit; names the node and the shape wanted.
            TreeError: when nodes share dofs that are no siblings.
        """
        names = tree.names
        _check_count(
            tree,
            edge_weight=edge_weight,
            joint_map=joint_map,
            inertia=inertia,
            coriolis_accel=coriolis_accel,
            gyro_force=gyro_force,
            armature=armature,
            straight=straight,
        )
        _check_joint_maps(names, joint_map, dof_places)
        m = [block.shape[-1] for block in joint_map]
        d = [block.shape[-2] for block in joint_map]
        for k in range(tree.num_nodes):
            _check(names[k], "inertia", inertia[k], (m[k], m[k]))
            _check_weight(tree, k, edge_weight[k], m)
        for k, E in enumerate(straight or ()):
            _check(names[k], "straight", E, (d[k], m[k]))
        for label, blocks, sizes in (
            ("coriolis_accel", coriolis_accel, m),
            ("gyro_force", gyro_force, m),
            ("armature", armature, d),
        ):
            for k, block in enumerate(blocks or ()):
                _check(names[k], label, block, (sizes[k],))
        layout = on_device(Layout.of(tree, m, d, dof_places), inertia[0].device)
        zero = [inertia[k].new_zeros(m[k]) for k in range(tree.num_nodes)]
        weights = [
            inertia[k].new_zeros(0, m[k]) if tree.parent[k] < 0 or weight is None else weight
            for k, weight in enumerate(edge_weight)
        ]
        M, D = layout.nodes.width, layout.dofs.width

        def columns(blocks: Sequence[Tensor], rows: int) -> Tensor:
            return stack_blocks(layout, [block[..., None] for block in blocks], rows, 1)

        return SKOModel(
            layout,
            DenseEdges(stack_blocks(layout, weights, M, M)),
            stack_blocks(layout, joint_map, D, M),
            stack_blocks(layout, inertia, M, M),
            columns(coriolis_accel or zero, M),
            columns(gyro_force or zero, M),
            None if armature is None else columns(armature, D),
            straight=None if straight is None else stack_blocks(layout, straight, D, M),
            aligned=(False,) * tree.num_nodes,
        )


def stack_blocks(layout: Layout, blocks: Sequence[Tensor], rows: int, cols: int) -> Tensor:
    """Blocks in the tree's order, zero-padded to (rows, cols), stacked breadth first."""
    padded = [
        torch.nn.functional.pad(b, (0, cols - b.shape[-1], 0, rows - b.shape[-2]))
        for b in (blocks[k] for k in layout.tree.order)
    ]
    batch = broadcast_shapes(*(b.shape[:-2] for b in padded))
    return torch.stack([b.expand(*batch, rows, cols) for b in padded], dim=-3)


def _check_count(tree: Tree, **lists: Sequence[Tensor | None] | None) -> None:
    for label, blocks in lists.items():
        if blocks is not None and len(blocks) != tree.num_nodes:
            raise ShapeError(
                f"{label} has {len(blocks)} blocks for {tree.num_nodes} nodes.",
                "Every node has one, in the tree's numbering.",
                f"Pass a list of {tree.num_nodes}.",
            )


def _check_joint_maps(
    names: Sequence[str],
    joint_map: Sequence[Tensor],
    dof_places: Sequence[Sequence[int]] | None,
) -> None:
    hinges = range(len(names)) if dof_places is None else [tuple(row) for row in dof_places]
    columns: dict[object, int] = {}
    for H, hinge in zip(joint_map, hinges, strict=True):
        columns[hinge] = columns.get(hinge, 0) + H.shape[-1]
    for name, H, hinge in zip(names, joint_map, hinges, strict=True):
        # All nodes of a hinge together have the columns that its rows need.
        if H.ndim < 2 or H.shape[-2] > columns[hinge]:
            raise ShapeError(
                f"joint_map of node {name!r} has shape {list(H.shape)}.",
                "A joint map has one row for each degree of freedom and one column for each velocity "
                "component, and full row rank: no more rows than columns.",
                "Pass a tensor of shape [*batch, d_k, m_k].",
            )


def _check_weight(tree: Tree, k: int, weight: Tensor | None, m: Sequence[int]) -> None:
    p = tree.parent[k]
    if p < 0:
        return  # of a base node it is not read
    if weight is None:
        raise ShapeError(
            f"node {tree.names[k]!r} has a parent, {tree.names[p]!r}, but no edge weight.",
            "Only base nodes may leave it out.",
            f"Pass a tensor of shape [*batch, {m[p]}, {m[k]}].",
        )
    _check(tree.names[k], "edge_weight", weight, (m[p], m[k]))


def _check(name: str, label: str, block: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(block.shape[block.ndim - len(shape) :]) != shape:
        raise ShapeError(
            f"{label} of node {name!r} has shape {list(block.shape)}; its last dimensions "
            f"should be {list(shape)}.",
            "Sizes follow from joint_map: H(k) is [*batch, d_k, m_k], A(p,k) is [*batch, m_p, m_k].",
            f"Pass a tensor of shape [*batch, {', '.join(map(str, shape))}].",
        )
