r"""The articulated Riccati equation without levels: a parallel scan along unbranched runs.

Crossing one node of a run maps the articulated inertia X = P+ outboard of it to the P+ inboard of it.
Every such map, and every composition of them, has the form

.. math:: X \mapsto C + E\,(I + X J)^{-1} X\, E^*,

the covariance step of a Kalman filter whose process noise is M, whose measurement is the hinge and whose
measurement noise is the armature. Compositions stay in the form,

.. math::
    E = E_j (I + C_i J_j)^{-1} E_i, \quad
    C = C_j + E_j (I + C_i J_j)^{-1} C_i E_j^*, \quad
    J = J_i + E_i^* J_j (I + C_i J_j)^{-1} E_i

for i crossed before j, and are associative: runs of 2^i nodes come from two of half the length. The P+ of
a node is the C of everything outboard of it. Branches add up, which no such composition can express. Runs
that end in tips are therefore scanned first, all at once, then the runs that they hang on, and so on
(`jumps.peel`); a tree with t tips takes at most 1 + log2 t such rounds.

======= =================================================== ==========
letter  meaning                                             block
======= =================================================== ==========
X, P+   articulated inertia across the hinge                (m, m)
E       transmission of a force through the nodes crossed   (m, m)
C       articulated inertia with nothing outboard           (m, m)
J       compliance of the hinges crossed                    (m, m)
======= =================================================== ==========

E and C of a single node are known exactly along its hinge and imposed, as in `hinge_step`. I + C J is the
only matrix of a linear solve.

Compositions are accumulated in float64, also for float32 models. In float32 they are as
accurate as the sweep on a long chain at random angles, but not on every chain. C J is the inertia of one run
times the compliance of the next: its norm is 1e3 on chains of equal links and 5e5 where masses alternate.
I + C J loses that much precision. Errors of float32 forward dynamics, 256 links, by
``benchmarks/log_depth.py``:

======================================== ======== ============= =============
chain                                    sweep    float32 scan  float64 scan
======================================== ======== ============= =============
random angles, equal links               6e-6     4e-6          2e-6
almost straight, equal links             4e-6     7e-5          1e-6
random angles, every second link 1000 x  1e-5     4e-4          1e-6
random angles, 1000 x at the tip         4e-4     4e-3          4e-5
======================================== ======== ============= =============

The scan starts every node from nothing outboard, so each M(k) alone must resist its hinge: H M H* + S
positive definite, not just D. A massless body with a massive one outboard is refused by name for
mechanisms (`torchsko.forward_dynamics`); in a user-defined model it gives inf or nan for its sample.

Reference: S. Sarkka, A. Garcia-Fernandez, *Temporal parallelization of Bayesian smoothers*, IEEE
Transactions on Automatic Control 66(1), 2021 (the operator of linear Gaussian filtering). A. Jain,
*Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System Dynamics 26(3), 2011,
Lemma 7.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.hinge_step import HingeStep, packed_hinges
from torchsko.algebra.recursions.riccati import ArticulatedInertias
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.jumps import Jump, Round
from torchsko.algebra.topology.layout import Layout
from torchsko.linalg.symmetric import spd_solve
from torchsko.utils.shapes import broadcast_shapes


class Crossing(NamedTuple):
    """Maps X to C + E (I + X J)^-1 X E* for some nodes; fields `[*batch, n, m, m]`."""

    E: Tensor
    C: Tensor
    J: Tensor


def solve_riccati_scan(
    model: SKOModel, accumulate: torch.dtype = torch.float64
) -> ArticulatedInertias:
    """Solve P = E_A P+ E_A* + M in O(log depth) operations per round of the tree.

    Args:
        model: an SKO model; H M H* + S of every node must be positive definite.
        accumulate: floating-point type of the compositions; the results have the model's own.

    Returns:
        P, D, G and P+, each as one run of all nodes, breadth first, dofs padded to the common width.

    Reference: Sarkka and Garcia-Fernandez 2021, Temporal parallelization, filtering operator; Jain
    2011, Part II, Lemma 7.
    """
    layout, hinges = model.layout, packed_hinges(_converted(model, accumulate))
    A, M = model.edge_weight.dense().to(accumulate), model.inertia.to(accumulate)
    P_plus, coupled = _peel(layout, A, M, hinges)
    # One more step of the recursion, all nodes at once, settles what the scan left of rounding.
    P = M
    if layout.jumps:
        jump = layout.jumps[0]
        weight = jump.jumping(A)
        P = M + jump.sum_at_targets(weight @ jump.jumping(P_plus) @ weight.mT)
        P = P if coupled is None else P - coupled
    D, G, _ = hinges.cross(P)
    run = ((x.to(model.inertia.dtype),) for x in (P, D, G, P_plus))
    return ArticulatedInertias(*run, shared_gain=(None,))


def _converted(model: SKOModel, dtype: torch.dtype) -> SKOModel:
    """The model with what hinges are made of in another type."""

    def to(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(dtype)

    H, E = model.joint_map.to(dtype), to(model.straight)
    M = model.inertia.to(dtype)
    return replace(model, maps=H, straight=E, armature=to(model.armature), inertia=M)


def _peel(layout: Layout, A: Tensor, M: Tensor, hinges: HingeStep) -> tuple[Tensor, Tensor | None]:
    """Articulated inertias P+ of every node, round by round, and the coupling of nodes that share a hinge.

    Both are `[*batch, n, m, m]`; the second is None without shared hinges.
    """
    P, places, found = M, [], []
    coupled: Tensor | None = None
    for one in layout.rounds:
        A_r, P_r = (x.index_select(-3, one.nodes) for x in (A, P))
        here = hinges.select(one.nodes, one.share)
        D, G, C = here.cross(P_r)
        P_plus = _scan(one.jumps, _single(one, A_r, here, D, G, C))
        places.append(one.nodes)
        found.append(P_plus)
        if one.tops.shape[0]:
            weight = A_r.index_select(-3, one.tops)
            P = _added(P, one, weight @ P_plus.index_select(-3, one.tops) @ weight.mT)
            if one.top_share is not None:
                # Nodes that share a hinge are runs by themselves: P_r was all of their P.
                D, G = (x.index_select(-3, one.tops) for x in (D, G))
                taken = here.select(one.tops, one.top_share).coupling(weight @ G, D)
                P = _added(P, one, -taken)
                coupled = _added(torch.zeros_like(M) if coupled is None else coupled, one, taken)
    return join(found).index_select(-3, torch.argsort(torch.cat(places))), coupled


def _added(x: Tensor, one: Round, y: Tensor) -> Tensor:
    """X with blocks y of the innermost nodes of a round added at the nodes that these hang on."""
    batch = broadcast_shapes(x.shape[:-3], y.shape[:-3])
    x, y = (z.expand(*batch, *z.shape[-3:]) for z in (x, y))
    return x.index_add(-3, one.below, y)


def _single(one: Round, A: Tensor, hinges: HingeStep, D: Tensor, G: Tensor, C: Tensor) -> Crossing:
    """The maps of the nodes of a round, each from the next node outboard in its run."""
    if not one.jumps:
        return Crossing(torch.zeros_like(C), C, torch.zeros_like(C))
    jump = one.jumps[0]
    weight = jump.targets(A)
    HA = jump.jumping(hinges.joint_map) @ weight
    E = jump.jumping(hinges.passing(D, G)) @ weight
    J = HA.mT @ spd_solve(jump.jumping(D), HA)
    return Crossing(*torch.broadcast_tensors(jump.at_jumping(E), C, jump.at_jumping(J)))


def _scan(jumps: tuple[Jump, ...], crossing: Crossing) -> Tensor:
    """C of everything outboard of each node, itself included."""
    for jump in jumps:
        outer = Crossing(*map(jump.targets, crossing))
        inner = Crossing(*map(jump.jumping, crossing))
        joined = compose(outer, inner)
        crossing = Crossing(*map(jump.exchange, crossing, joined))
    return crossing.C


def compose(outer: Crossing, inner: Crossing) -> Crossing:
    """The map of two runs, the outer one crossed first.

    Reference: Sarkka and Garcia-Fernandez 2021, Temporal parallelization, filtering operator (A, C, J).
    """
    m = outer.C.shape[-1]
    identity = torch.eye(m, dtype=outer.C.dtype, device=outer.C.device)
    met = identity + outer.C @ inner.J
    # Not solve: its forward derivative is wrong under vmap, and when differentiated again (torch 2.13).
    solved = torch.linalg.inv_ex(met).inverse @ torch.cat([outer.E, outer.C], -1)
    E, X = (inner.E @ solved).split(m, -1)
    C = inner.C + X @ inner.E.mT
    J = outer.J + outer.E.mT @ (inner.J @ solved.narrow(-1, 0, m))
    return Crossing(E, (C + C.mT) / 2, (J + J.mT) / 2)
