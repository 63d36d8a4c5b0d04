r"""The Coriolis matrix in the factorization that makes MMdot - 2 C skew-symmetric, with the mass matrix.

With J = A* H* the velocities of all nodes per unit rate, and their rate along the motion J' = A* X*,

.. math::
    C = J^* (M J' + B J) = H A (M A^* X^* + B A^* H^*), \qquad \mathcal{M} = H A M A^* H^* + S

where B(k) is a block with B + B* = dM/dt as seen from the inertial frame; then
:math:`\dot{\mathcal M} = C + C^*`. Both products decompose as in Lemma 3. Let R and Y be the diagonal
blocks of A M A* and A B A*. The columns R X* + Y H*, R H* and Y* H* of every node are propagated to its
ancestors and multiplied there with H and X.

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

from torch import Tensor

from torchsko.algebra.operators.model import SKOModel
from torchsko.algorithms.motion_products import Motion, mass_and_motion_matrices


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
    MM, C = mass_and_motion_matrices(model, inertia_rate, [Motion(map_rate)])
    return MM, C
