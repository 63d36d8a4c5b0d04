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
K      shifted gain of a shared hinge          ``shared_gain``       (m, d)
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
        gain: G, each `[*batch, n_l, m, d_l]`; in sweeps zero for nodes that share a hinge.
        art_inertia_plus: P+, each `[*batch, n_l, m, m]`; P for nodes that share a hinge in sweeps, else its
            diagonal blocks.
        shared_gain: sums of A G over the nodes of each shared hinge in sweeps, each
            `[*batch, hinges, m, d_l]`; None for levels without one.
    """

    art_inertia: tuple[Tensor, ...]
    hinge_inertia: tuple[Tensor, ...]
    gain: tuple[Tensor, ...]
    art_inertia_plus: tuple[Tensor, ...]
    shared_gain: tuple[Tensor | None, ...]


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
    found: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]] = []
    handed: Tensor | None = None
    for depth in reversed(range(len(edges))):
        P = M_levels[depth] if handed is None else mirror(M_levels[depth] + handed)
        hinge, link, hinge_link = hinges[depth], layout.links[depth], layout.hinge_links[depth]
        K: Tensor | None = None
        U, D = hinge.inertia(P)
        G, P_plus = hinge.cross_single(P, U, D)
        if depth:
            handed = link.sum_to_parents(edges[depth].congruence(P_plus))
            if hinge_link is not None:
                K, released = hinge.shared_gain(edges[depth].up(U), D)
                handed = handed - hinge_link.sum_to_parents(released)
        found.append((P, D, G, P_plus, K))
    return ArticulatedInertias(*zip(*found[::-1], strict=True))
