r"""The operators of an SKO model, and of its Riccati solution, by name.

====== =================== ============== ====== ======================= ==============
paper  field               maps           paper  field                   equals
====== =================== ============== ====== ======================= ==============
E_A    ``sko``             nodes to nodes D      ``hinge_inertia``       H P H* + S
A      ``spo``             nodes to nodes G      ``gain``                P H* D^-1
H      ``joint_map``       nodes to dofs  K      ``shifted_gain``        E_A G
M      ``inertia``         nodes to nodes tau    ``projection``          G H
S      ``armature``        dofs to dofs   tau-   ``coprojection``        I - G H
MM     ``mass_matrix``     dofs to dofs   E_psi  ``art_sko``             E_A (I - G H)
P      ``art_inertia``     nodes to nodes psi    ``art_spo``             (I - E_psi)^-1
====== =================== ============== ====== ======================= ==============

DEPARTS: with an armature S the paper's identities split in two. Those that follow from
E_psi = E_A - K H hold as printed: psi^-1 - A^-1 = K H, the products of psi and A that follow from
it, and the innovations factorization with its inverse. Further ones that hold are M = P - E_A P E_psi*
and A M psi* = P + A~ P + P psi~*. The same is true of A M A* = P + A~ P + P A~* + A K D K* A*. The rest
contain S: G H is no projection, and

.. math::
    H G = I - S D^{-1}, \quad I + HAK = HAG + S D^{-1}, \quad
    P^+ = \bar\tau P \bar\tau^* + G S G^*,

    M = P - E_\psi P E_\psi^* - K S K^*, \quad
    A M A^* H^* = [I + AKH] P A^* H^* + A K S,

    H \psi M \psi^* H^* + [I - H \psi K] S [I - H \psi K]^* = D.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, section 2 and Lemmas 7-11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.algebra.operators.composition import TreeOperator, compose
from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.hinge import armature_blocks
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.operators.operators import SKO, SPO, BlockDiagonal, Identity
from torchsko.algebra.recursions.riccati import ArticulatedInertias, solve_riccati
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.sharing import total
from torchsko.linalg.symmetric import spd_solve


@dataclass(frozen=True, eq=False)
class ModelOperators:
    """The operators of an SKO model; made by `operators`.

    Attributes:
        sko: E_A.
        spo: A.
        joint_map: H.
        inertia: M.
        armature: S, or None for zero.
        identity: I on node vectors.
        dof_identity: I on dof vectors.
    """

    sko: SKO
    spo: SPO
    joint_map: BlockDiagonal
    inertia: BlockDiagonal
    armature: BlockDiagonal | None
    identity: Identity
    dof_identity: Identity

    @property
    def mass_matrix(self) -> TreeOperator:
        """The mass matrix H A M A* H* + S: its product with a vector costs two sweeps."""
        H, A, M = self.joint_map, self.spo, self.inertia
        newton_euler = compose(H, A, M, A.T, H.T)
        return newton_euler if self.armature is None else newton_euler + self.armature


@dataclass(frozen=True, eq=False)
class ArticulatedOperators:
    """The operators of a Riccati solution; made by `articulated_operators`.

    Attributes:
        art_inertia: P.
        hinge_inertia: D.
        hinge_compliance: D^-1.
        gain: G.
        shifted_gain: K.
        projection: G H; idempotent without armature.
        coprojection: I - G H.
        art_inertia_plus: P+ = P - G D G*.
        art_sko: E_psi.
        art_spo: psi.
    """

    art_inertia: BlockDiagonal
    hinge_inertia: BlockDiagonal
    hinge_compliance: BlockDiagonal
    gain: BlockDiagonal
    shifted_gain: TreeOperator
    projection: TreeOperator
    coprojection: TreeOperator
    art_inertia_plus: TreeOperator
    art_sko: SKO
    art_spo: SPO


def operators(model: SKOModel) -> ModelOperators:
    """The operators E_A, A, H, M (and S) of a model.

    Example:
        A chain of two sliding unit masses; its mass matrix by the Newton-Euler factorization:

        >>> from torchsko.algebra.topology.tree import Tree
        >>> one, tree = torch.ones(1, 1), Tree.from_parents([-1, 0])
        >>> ops = operators(SKOModel.from_blocks(tree, [None, one], [one, one], [one, one]))
        >>> H, A, M = ops.joint_map, ops.spo, ops.inertia
        >>> (H @ A @ M @ A.T @ H.T).to_dense().tolist()
        [[2.0, 1.0], [1.0, 1.0]]
    """
    layout, S, dtype = model.layout, model.armature, model.inertia.dtype
    return ModelOperators(
        sko=SKO(layout, model.edge_weight),
        spo=SPO(layout, model.edge_weight),
        joint_map=BlockDiagonal(layout, model.joint_map, "dofs", "nodes"),
        inertia=BlockDiagonal(layout, model.inertia),
        armature=None
        if S is None
        else BlockDiagonal(layout, total(layout.share, armature_blocks(S)), "dofs", "dofs"),
        identity=Identity(layout, "nodes", dtype),
        dof_identity=Identity(layout, "dofs", dtype),
    )


def articulated_operators(
    model: SKOModel, riccati: ArticulatedInertias | None = None
) -> ArticulatedOperators:
    """The operators P, D, G, K, tau, tau-bar, P+, E_psi and psi of a model.

    Args:
        model: an SKO model.
        riccati: its articulated inertias, when the caller has them already.

    Reference: Jain 2011, Part II, Lemmas 7-10.
    """
    layout, H = model.layout, model.joint_map
    solution = solve_riccati(model) if riccati is None else riccati
    hinges = solution.hinge_inertia
    D_inv = [spd_solve(D, _eye(D)) for D in hinges]
    D = _packed(layout, hinges, "dofs", "dofs")
    P = BlockDiagonal(layout, join(list(solution.art_inertia)))
    G = (
        _packed(layout, solution.gain, "nodes", "dofs")
        if layout.share is None
        else P.blocks @ H.mT @ _packed(layout, D_inv, "dofs", "dofs")
    )
    gain = BlockDiagonal(layout, G, "nodes", "dofs")
    hinge_inertia = BlockDiagonal(layout, D, "dofs", "dofs")
    if layout.share is None:
        GH = BlockDiagonal(layout, G @ H)
        coprojection: TreeOperator = BlockDiagonal(layout, _eye(GH.blocks) - GH.blocks)
        P_plus: TreeOperator = BlockDiagonal(layout, join(list(solution.art_inertia_plus)))
    else:  # nodes that share a hinge have blocks with one another
        GH = compose(gain, BlockDiagonal(layout, H, "dofs", "nodes"))
        coprojection = Identity(layout, "nodes", H.dtype) - GH
        P_plus = P - compose(gain, hinge_inertia, gain.T)
    art_weight = DenseEdges(art_weights(model, G))
    return ArticulatedOperators(
        art_inertia=P,
        hinge_inertia=hinge_inertia,
        hinge_compliance=BlockDiagonal(
            layout, _packed(layout, D_inv, "dofs", "dofs"), "dofs", "dofs"
        ),
        gain=gain,
        shifted_gain=compose(SKO(layout, model.edge_weight), gain),
        projection=GH,
        coprojection=coprojection,
        art_inertia_plus=P_plus,
        art_sko=SKO(layout, art_weight),
        art_spo=SPO(layout, art_weight),
    )


def art_weights(model: SKOModel, gain: Tensor) -> Tensor:
    """The weights of E_psi = E_A - K H, `[*batch, n, m, m]`, from G `[*batch, n, m, d]`."""
    A = model.edge_weight.dense()
    if model.layout.share is None:
        return A @ (_eye(A) - gain @ model.joint_map)
    return A - model.layout.share.total(A @ gain) @ model.joint_map


def _eye(x: Tensor) -> Tensor:
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def _packed(layout: Layout, levels: Sequence[Tensor], rows: str, cols: str) -> Tensor:
    """Blocks of every level, dof dimensions padded to the common width, as one packed tensor."""
    width, narrow = layout.dofs.width, torch.nn.functional.pad
    padded = [
        narrow(x, (0, width - x.shape[-1] if cols == "dofs" else 0,
                   0, width - x.shape[-2] if rows == "dofs" else 0))
        for x in levels
    ]  # fmt: skip
    return join(padded)
