r"""Articulated-body forward dynamics: accelerations from forces, O(N).

.. math:: \ddot q = [I - H \psi K]^* D^{-1} [T - H \psi (K T + P a + b)] - K^* \psi^* a

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, Lemma 12 and Algorithm 6.1.
"""

from __future__ import annotations

from torch import Tensor

from torchsko.algebra.innovations import innovations
from torchsko.algebra.model import SKOModel


def forward_dynamics(model: SKOModel, gen_force: Tensor) -> Tensor:
    """Generalized accelerations qdd = MM^-1 (T - C) by Algorithm 6.1.

    Args:
        model: an SKO model.
        gen_force: T, `[*batch, num_dof]` [N m or N], node by node in the tree's order.

    Returns:
        qdd, `[*batch, num_dof]` [rad/s^2 or m/s^2].

    Raises:
        ShapeError: when `gen_force` has another length than num_dof.
    """
    return innovations(model).forward_dynamics(gen_force)
