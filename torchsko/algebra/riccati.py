r"""The articulated-body Riccati equation, and what one sweep of it yields.

.. math::
    P = E_A P^+ E_A^* + M, \quad D = H P H^* + S, \quad G = P H^* D^{-1}, \quad P^+ = P - G H P

====== ======================================= ===================== ==========
paper  meaning                                 field                 block
====== ======================================= ===================== ==========
P      articulated-body inertia                ``art_inertia``       (m, m)
D      hinge inertia                           ``hinge_inertia``     (d, d)
G      gain, P H* D^-1                         ``gain``              (m, d)
P+     inertia felt across the hinge           ``art_inertia_plus``  (m, m)
U      P H*                                    (inside)              (m, d)
S      armature                                (of the model)        (d,)
====== ======================================= ===================== ==========

Fields hold one tensor per level, breadth first: the form in which the next sweep wants them.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemma 7 and Eq. 33.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.algebra.edges import EdgeWeight
from torchsko.algebra.hinge import project
from torchsko.algebra.layout import Layout
from torchsko.algebra.model import SKOModel
from torchsko.symmetric import mirror, spd_solve


@dataclass(frozen=True, eq=False)
class ArticulatedInertias:
    """Solution of the Riccati equation, level by level (bases first).

    Attributes:
        art_inertia: P, each `[*batch, n_l, m, m]`.
        hinge_inertia: D, each `[*batch, n_l, d_l, d_l]`, 1 on the diagonal of padded dofs.
        gain: G, each `[*batch, n_l, m, d_l]`.
        art_inertia_plus: P+, each `[*batch, n_l, m, m]`; empty for level 0 unless asked for.
    """

    art_inertia: tuple[Tensor, ...]
    hinge_inertia: tuple[Tensor, ...]
    gain: tuple[Tensor, ...]
    art_inertia_plus: tuple[Tensor, ...]


def crossing_weight(model: SKOModel) -> EdgeWeight:
    """The weight that carries P+ to the parent: A, or A (I - H* H) where that equals it exactly.

    For orthonormal H and no armature P+ H* = 0, so both give the same product; the second makes the
    zeros exact instead of the difference of two equal numbers.
    """
    if not model.orthonormal:
        return model.edge_weight
    return model.edge_weight.annihilating(model.joint_map, aligned=model.aligned)


def hinge_offset(model: SKOModel) -> tuple[Tensor | None, ...]:
    """What is added to H P H* on each level: armature, and 1 for padded dofs; None for nothing.

    A padded dof gets D = 1, so its logarithm is 0 and its acceleration is its (zero) force.
    """
    layout = model.layout
    padding = layout.dofs.padding
    full = [
        all(layout.dofs.sizes[k] == d for k in level)
        for level, d in zip(layout.tree.levels, layout.level_dofs, strict=True)
    ]
    if model.armature is None and all(full):
        return (None,) * len(full)
    ones = padding[..., None].to(model.inertia.dtype)
    S = ones if model.armature is None else model.armature + ones
    levels = layout.split_dofs(S, dim=-2)
    return tuple(
        None if exact and model.armature is None else torch.diag_embed(level[..., 0])
        for level, exact in zip(levels, full, strict=True)
    )


def solve_riccati(model: SKOModel, crossing: EdgeWeight | None = None) -> ArticulatedInertias:
    """Solve P = E_A P+ E_A* + M in one sweep from the tips to the bases.

    Args:
        model: an SKO model.
        crossing: `crossing_weight(model)`, when the caller has it already.

    Returns:
        P, D, G and P+ of every node. P+ of the base nodes is included.

    Reference: Jain 2011, Part II, Lemma 7.
    """
    layout: Layout = model.layout
    edges = (crossing or crossing_weight(model)).split(layout.level_sizes)
    H_levels = layout.split_dofs(model.joint_map, dim=-2)
    M_levels = layout.split(model.inertia)
    offsets = hinge_offset(model)
    P_all: list[Tensor] = []
    D_all: list[Tensor] = []
    G_all: list[Tensor] = []
    P_plus_all: list[Tensor] = []
    for depth in reversed(range(len(edges))):
        P = M_levels[depth]
        if P_plus_all:
            handed = edges[depth + 1].congruence(P_plus_all[-1])
            P = P + layout.links[depth + 1].sum_to_parents(handed)
        D, G, P_plus = cross_hinge(P, H_levels[depth], offsets[depth], scalar=model.scalar)
        P_all.append(P)
        D_all.append(D)
        G_all.append(G)
        P_plus_all.append(P_plus)
    return ArticulatedInertias(
        tuple(P_all[::-1]), tuple(D_all[::-1]), tuple(G_all[::-1]), tuple(P_plus_all[::-1])
    )


def cross_hinge(
    P: Tensor, H: Tensor, offset: Tensor | None, *, scalar: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """D, G and P+ from P, at one hinge (or a level of them).

    Args:
        P: `[*, m, m]`.
        H: `[*, d, m]`.
        offset: what is added to H P H*, `[*, d, d]`.
        scalar: see `torchsko.symmetric`.
    """
    U = P @ H.mT
    D = mirror(project(H, U), scalar=scalar)
    D = D if offset is None else D + offset
    G = spd_solve(D, U.mT, scalar=scalar).mT
    # The gain is U / D, so that in a traced program the entries of P+ along the hinge cancel.
    drop = G * U.mT if D.shape[-1] == 1 else G @ U.mT
    return D, G, mirror(P - drop, scalar=scalar)
