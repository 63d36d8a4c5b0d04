r"""Newton-Euler inverse dynamics: forces from accelerations, two sweeps.

.. math:: \alpha = A^*(H^* \ddot q + a), \quad f = A(M \alpha + b), \quad T = H f + S \ddot q

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Algorithm 3.1 (its velocity sweep is in the model's a and b already).
"""

from __future__ import annotations

from torch import Tensor

from torchsko.algebra.operators.hinge import apply_blocks, armature_force, project_all, spread_all
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.operators.sweeps import gather, scatter


def inverse_dynamics(model: SKOModel, accel: Tensor) -> Tensor:
    """Generalized forces T = MM qdd + C by Algorithm 3.1, O(N).

    Args:
        model: an SKO model.
        accel: qdd, `[*batch, num_dof]` [rad/s^2 or m/s^2], node by node in the tree's order.

    Returns:
        T, `[*batch, num_dof]` [N m or N].

    Raises:
        ShapeError: when `accel` has another length than num_dof.

    Reference: Jain 2011, Part II, Algorithm 3.1.
    """
    layout, H = model.layout, model.maps
    qdd = layout.dofs.pack(accel[..., None])
    alpha = scatter(layout, model.edge_weight, spread_all(layout, H, qdd) + model.coriolis_accel)
    f = gather(layout, model.edge_weight, apply_blocks(model.inertia, alpha) + model.gyro_force)
    T = project_all(layout, H, f)
    T = T if model.armature is None else T + armature_force(model.armature, qdd)
    T = T if model.hinge_bias is None else T + model.hinge_bias
    return layout.dofs.collect(T)[..., 0]


def bias_force(model: SKOModel) -> Tensor:
    """Generalized forces at zero acceleration, C = H A (M A* a + b), `[*batch, num_dof]`.

    Reference: Jain 2011, Part II, Algorithm 3.1.
    """
    layout = model.layout
    alpha = scatter(layout, model.edge_weight, model.coriolis_accel)
    f = gather(layout, model.edge_weight, apply_blocks(model.inertia, alpha) + model.gyro_force)
    C = project_all(layout, model.maps, f)
    return layout.dofs.collect(C if model.hinge_bias is None else C + model.hinge_bias)[..., 0]
