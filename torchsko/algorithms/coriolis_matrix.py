r"""The Coriolis matrix in the factorisation that makes MMdot - 2 C skew-symmetric, with the mass matrix.

With J = A* H* the velocities of all nodes per unit rate, and their rate along the motion J' = A* X*,

.. math::
    C = J^* (M J' + B J) = H A (M A^* X^* + B A^* H^*), \qquad \mathcal{M} = H A M A^* H^* + S

where B(k) is a block with B + B* = dM/dt as seen from the inertial frame; then
:math:`\dot{\mathcal M} = C + C^*`. Both products decompose as in Lemma 3. With R and Y the diagonal blocks of
A M A* and A B A*, the columns R X* + Y H*, R H* and Y* H* travel up from every node, and meet H and X of each
ancestor.

========== ============================================================ ============
symbol     meaning                                                      code
========== ============================================================ ============
X          rate of the joint map, seen from the inertial frame          ``X``
B          rate of the inertia, split                                   ``B``
R, Y       composite-body inertia, and what gathers of B                ``R``, ``Y``
========== ============================================================ ============

Reference: S. Echeandia, P. Wensing, *Numerical methods to compute the Coriolis matrix and Christoffel
symbols for rigid-body systems*, Journal of Computational and Nonlinear Dynamics 16(9), 2021, Algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.algebra.operators.hinge import level_maps
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.lyapunov import forward_diag
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.pairs import Pairs
from torchsko.algorithms.composite_body import composite_inertia
from torchsko.algorithms.mass_matrix import ancestors, ancestors_map, assembled, together
from torchsko.shapes import broadcast_shapes


def mass_and_coriolis_matrix(
    model: SKOModel, map_rate: Tensor, inertia_rate: Tensor
) -> tuple[Tensor, Tensor]:
    """The mass matrix and the Coriolis matrix in one sweep, O(N * depth), level by level.

    Args:
        model: an SKO model; its a and b are not read.
        map_rate: X, the rate of every H seen from the inertial frame, `[*batch, n, d, m]`.
        inertia_rate: B, `[*batch, n, m, m]`, where B + B* is the rate of M seen from the inertial frame.

    Returns:
        MM, and C with MMdot - 2 C skew-symmetric, each `[*batch, num_dof, num_dof]`.

    Reference: Echeandia and Wensing 2021, Algorithm 1.
    """
    layout, pairs = model.layout, model.layout.pairs
    R = composite_inertia(model)
    Y = forward_diag(layout, model.edge_weight, inertia_rate, model.edge_weight)
    H, X = level_maps(layout, model.maps), layout.split_dofs(map_rate, -2)
    edges = model.edge_weight.split(layout.level_sizes)
    blocks: list[list[Tensor]] = [[], [], []]
    carried: Tensor | None = None
    for depth in reversed(range(len(R))):
        here = _columns(H[depth], X[depth], R[depth], Y[depth])
        own = H[depth] @ here[..., 0, :]
        met = [[H[depth] @ here[..., 1, :]], [own], [own.mT]]
        if carried is not None:
            weight = ancestors(layout, pairs, depth + 1, edges[depth + 1])
            carried = weight.up(carried.flatten(-2)).unflatten(-1, carried.shape[-2:])
            H_l, X_l = (
                ancestors_map(layout, pairs, depth, x[depth], carried.shape[-4]) for x in (H, X)
            )
            force, momentum, turned = carried.unbind(-2)
            met[0].append(H_l @ momentum)
            met[1].append(H_l @ force)
            met[2].append(X_l @ momentum + H_l @ turned)
        blocks = [new + old for new, old in zip(met, blocks, strict=True)]
        carried = _appended(here, carried)
    batch = broadcast_shapes(model.batch_shape, map_rate.shape[:-3], inertia_rate.shape[:-3])
    flat = [[x.expand(*batch, *x.shape[-3:]).flatten(-3) for x in row] for row in blocks]
    MM, upper, lower = (assembled(layout, pairs, entries) for entries in flat)
    C = together(layout, torch.where(_reads_upper(layout, pairs), upper, lower))
    MM, S = together(layout, MM), model.armature_matrix()
    return (MM if S is None else MM + S), C


def _columns(H: Tensor, X: Tensor, R: Tensor, Y: Tensor) -> Tensor:
    """R X* + Y H*, R H* and Y* H* of every node, side by side: `[*batch, n, m, 3, d]`."""
    columns = (R @ X.mT + Y @ H.mT, R @ H.mT, Y.mT @ H.mT)
    return torch.stack(torch.broadcast_tensors(*columns), -2)


def _appended(here: Tensor, carried: Tensor | None) -> Tensor:
    """A level's own columns, then those from below; narrower ones padded with zeros."""
    if carried is None:
        return here
    width = max(here.shape[-1], carried.shape[-1])
    both = [torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (here, carried)]
    return join([x.flatten(-2) for x in both]).unflatten(-1, (3, width))


def _reads_upper(layout: Layout, pairs: Pairs) -> Tensor:
    """Which entries have the ancestor's dof as their row, or lie on or below a node's own diagonal.

    `assembled` reads every block of two nodes with the ancestor's dofs as rows, and one of a single node
    on and below its diagonal, and mirrors them.
    """
    dofs = layout.dofs if layout.apart is None else layout.apart
    node = torch.div(dofs.place, dofs.width, rounding_mode="floor")
    above = pairs.below.index_select(0, node).index_select(1, node)
    same = node[:, None] == node
    return torch.where(same, dofs.place[:, None] >= dofs.place, above)
