r"""The articulated-body Riccati equation, and what one sweep of it yields.

.. math::
    P = E_A P^+ E_A^* + M, \quad D = H P H^* + S, \quad G = P H^* D^{-1}, \quad P^+ = P - G H P

====== ======================================= ===================== ==========
paper  meaning                                 field                 block
====== ======================================= ===================== ==========
P      articulated-body inertia                ``art_inertia``       (m, m)
D      hinge inertia                           ``hinge_inertia``     (d, d)
G      gain, P H* D^-1                         ``gain``              (m, d)
P+     articulated inertia across the hinge    ``art_inertia_plus``  (m, m)
U      P H*                                    (inside)              (m, d)
S      armature                                (of the model)        (d,)
====== ======================================= ===================== ==========

Fields hold one tensor per level, breadth first: the form in which the next sweep wants them.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemma 7 and Eq. 33.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.hinge_step import HingeStep, hinge_steps
from torchsko.algebra.topology.layout import Layout
from torchsko.linalg.symmetric import mirror


@dataclass(frozen=True, eq=False)
class ArticulatedInertias:
    """Solution of the Riccati equation, level by level (bases first).

    Attributes:
        art_inertia: P, each `[*batch, n_l, m, m]`.
        hinge_inertia: D, each `[*batch, n_l, d_l, d_l]`, 1 on the diagonal of padded dofs.
        gain: G, each `[*batch, n_l, m, d_l]`.
        art_inertia_plus: the diagonal blocks of P+, each `[*batch, n_l, m, m]`: all of it, save between
            nodes that share a hinge.
    """

    art_inertia: tuple[Tensor, ...]
    hinge_inertia: tuple[Tensor, ...]
    gain: tuple[Tensor, ...]
    art_inertia_plus: tuple[Tensor, ...]


def solve_riccati(
    model: SKOModel, hinges: Sequence[HingeStep] | None = None
) -> ArticulatedInertias:
    """Solve P = E_A P+ E_A* + M in one sweep from the tips to the bases.

    Args:
        model: an SKO model.
        hinges: `hinge_steps(model)`, when the caller has them already.

    Returns:
        P, D, G and P+ of every node. P+ of the base nodes is included.

    Reference: Jain 2011, Part II, Lemma 7.
    """
    layout: Layout = model.layout
    edges = model.edge_weight.split(layout.level_sizes)
    hinges = hinge_steps(model) if hinges is None else hinges
    M_levels = layout.split(model.inertia)
    P_all: list[Tensor] = []
    D_all: list[Tensor] = []
    G_all: list[Tensor] = []
    P_plus_all: list[Tensor] = []
    for depth in reversed(range(len(edges))):
        P = M_levels[depth]
        if P_plus_all:
            handed = edges[depth + 1].congruence(P_plus_all[-1])
            if layout.shares[depth + 1] is not None:
                K = edges[depth + 1].up(G_all[-1])
                handed = handed - hinges[depth + 1].coupling(K, D_all[-1])
            P = mirror(P + layout.links[depth + 1].sum_to_parents(handed))
        D, G, P_plus = hinges[depth].cross(P)
        P_all.append(P)
        D_all.append(D)
        G_all.append(G)
        P_plus_all.append(P_plus)
    return ArticulatedInertias(
        tuple(P_all[::-1]), tuple(D_all[::-1]), tuple(G_all[::-1]), tuple(P_plus_all[::-1])
    )
