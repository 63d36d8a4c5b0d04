r"""Forward dynamics: accelerations from forces, in O(N) or through the mass matrix.

.. math:: \ddot q = [I - H \psi K]^* D^{-1} [T - H \psi (K T + P a + b)] - K^* \psi^* a
               = \mathcal{M}^{-1} (T - C)

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemma 12 and Algorithm 6.1.
"""

from __future__ import annotations

from torch import Tensor

from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.innovations import swept_innovations
from torchsko.algorithms.inverse_dynamics import bias_force
from torchsko.algorithms.mass_matrix import mass_matrix
from torchsko.linalg.symmetric import spd_solve


def forward_dynamics(model: SKOModel, gen_force: Tensor) -> Tensor:
    """Generalized accelerations qdd = MM^-1 (T - C) by the articulated-body sweeps, O(N).

    Args:
        model: an SKO model.
        gen_force: T, `[*batch, num_dof]` [N m or N], node by node in the tree's order.

    Returns:
        qdd, `[*batch, num_dof]` [rad/s^2 or m/s^2].

    Raises:
        ShapeError: when `gen_force` has another length than num_dof.

    Reference: Jain 2011, Part II, Algorithm 6.1.
    """
    return swept_innovations(model).forward_dynamics(gen_force)


def composite_forward_dynamics(model: SKOModel, gen_force: Tensor) -> Tensor:
    """Generalized accelerations from the mass matrix and its Cholesky factor.

    O(N * depth) for the matrix and O(num_dof^3) for the factor; few, large tensor operations. The slides
    list forward dynamics of O(N^2), which is the cost of the matrix.

    Args:
        model: an SKO model.
        gen_force: T, `[*batch, num_dof]` [N m or N], node by node in the tree's order.

    Returns:
        qdd, `[*batch, num_dof]` [rad/s^2 or m/s^2].

    Raises:
        ShapeError: when `gen_force` has another length than num_dof.

    Reference: Jain 2024, SOA slides 9, forward dynamics by the mass matrix.
    """
    model.layout.dofs.refuse(gen_force.shape[-1])
    rhs = (gen_force - bias_force(model))[..., None]
    return spd_solve(mass_matrix(model), rhs)[..., 0]
