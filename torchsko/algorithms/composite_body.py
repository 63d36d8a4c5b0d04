r"""Composite bodies: every node with all that is outboard of it frozen, and inverse dynamics by them.

.. math::
    R = E_A R E_A^* + M, \qquad A M A^* = R + \tilde{A} R + R \tilde{A}^*

======== ================================================ =========
paper    meaning                                          code
======== ================================================ =========
R        composite-body inertia                           ``R``
x        hinge acceleration, H* qdd + a                   ``x``
alpha    node acceleration, A* x                          ``alpha``
y        force that does not follow from alpha alone      ``y``
======== ================================================ =========

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemma 4 and Algorithm 4.1.
"""

from __future__ import annotations

from torch import Tensor

from torchsko.algebra.operators.hinge import apply_blocks, armature_force, project_all, spread_all
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.operators.sweeps import gather, gather_tilde, scatter
from torchsko.algebra.recursions.lyapunov import forward_diag
from torchsko.algebra.topology.gathering import join


def composite_inertia(model: SKOModel) -> tuple[Tensor, ...]:
    """Composite-body inertias R, the diagonal blocks of A M A*, O(N).

    R(k) is the inertia of node k with everything outboard of it frozen.

    Args:
        model: an SKO model.

    Returns:
        One tensor `[*batch, n_l, m, m]` per level, bases first.

    Reference: Jain 2011, Part II, Algorithm 4.1.
    """
    return forward_diag(model.layout, model.edge_weight, model.inertia)


def composite_inverse_dynamics(model: SKOModel, accel: Tensor) -> Tensor:
    r"""Generalized forces T = MM qdd + C through composite bodies, O(N).

    With x = H* qdd + a, the decomposition of A M A* splits the force on a node into what its own
    acceleration does to its composite body, and a remainder gathered from outboard:

    .. math:: f = R \alpha + y, \qquad \alpha = A^* x, \qquad y = \tilde A R x + A b.

    The two sweeps do not wait for one another, as those of `inverse_dynamics` do.

    Args:
        model: an SKO model.
        accel: qdd, `[*batch, num_dof]` [rad/s^2 or m/s^2], node by node in the tree's order.

    Returns:
        T, `[*batch, num_dof]` [N m or N].

    Raises:
        ShapeError: when `accel` has another length than num_dof.

    Reference: Jain 2011, Part II, Lemma 4 (the decomposition); Jain 2024, SOA slides 9 (its use).
    """
    layout, weight, H = model.layout, model.edge_weight, model.maps
    qdd = layout.dofs.pack(accel[..., None])
    x = spread_all(layout, H, qdd) + model.coriolis_accel
    R = join(list(composite_inertia(model)))
    alpha = scatter(layout, weight, x)
    y = gather_tilde(layout, weight, apply_blocks(R, x)) + gather(layout, weight, model.gyro_force)
    T = project_all(layout, H, apply_blocks(R, alpha) + y)
    T = T if model.armature is None else T + armature_force(model.armature, qdd)
    T = T if model.hinge_bias is None else T + model.hinge_bias
    return layout.dofs.collect(T)[..., 0]
