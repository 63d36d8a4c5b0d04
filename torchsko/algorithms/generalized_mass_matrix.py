r"""The mass matrix column by column, in two ways that need no composite bodies.

By the Jacobian of all node velocities:

.. math:: J = A^* H^*, \qquad Q = M J, \qquad \mathcal{M} = J^* Q + S

and by inverse dynamics: with a = b = 0, the force for a unit acceleration of one dof is a column.
Both carry all columns through their sweeps together. `mass_matrix` does less work than either.

============ ============================================ ========
slides       meaning                                      here
============ ============================================ ========
Phi, Psi     influence matrix, and (e - Phi)^-1           E_A*, A*
G            free motion axes                             H*
J            velocities of all nodes per unit rate        ``J``
Q            their momenta                                ``Q``
============ ============================================ ========

DEPARTS: the slides call Phi strictly lower triangular; it is when parents are numbered before their
children, which nothing here needs. Phi is nilpotent of degree `Tree.nilpotency` in any numbering.

Reference: Concurrent Dynamics International, *Generalized Mass Matrix of MBS*, 2018.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchsko.algebra.operators.hinge import spread_all
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.operators.sweeps import scatter
from torchsko.algorithms.inverse_dynamics import inverse_dynamics


def node_jacobian(model: SKOModel) -> Tensor:
    """Velocities of all nodes per unit rate of every dof, J = A* H*, O(N^2).

    Args:
        model: an SKO model.

    Returns:
        Packed columns `[*batch, n, m, num_dof]`, nodes breadth first, zero-padded.

    Reference: Concurrent Dynamics 2018, Generalized Mass Matrix, Procedure step 1.
    """
    layout = model.layout
    columns = spread_all(layout, model.maps, layout.dofs.pack(_identity(model)))
    return scatter(layout, model.edge_weight, columns)


def mass_matrix_by_jacobian(model: SKOModel) -> Tensor:
    """The mass matrix J* M J of the Jacobian of all nodes.

    Args:
        model: an SKO model.

    Returns:
        `[*batch, num_dof, num_dof]`, symmetric [kg m^2, kg m or kg].

    Reference: Concurrent Dynamics 2018, Generalized Mass Matrix, Procedure.
    """
    J = node_jacobian(model)
    Q = model.inertia @ J
    MM = J.flatten(-3, -2).mT @ Q.flatten(-3, -2)
    MM, S = MM.expand(*model.batch_shape, *MM.shape[-2:]), model.armature_matrix()
    return MM if S is None else MM + S


def mass_matrix_by_inverse_dynamics(model: SKOModel) -> Tensor:
    """The mass matrix as the forces of num_dof unit accelerations, all at once.

    Args:
        model: an SKO model.

    Returns:
        `[*batch, num_dof, num_dof]`, symmetric to rounding [kg m^2, kg m or kg].

    Reference: Jain 2024, SOA slides 9, inverse dynamics based mass matrix.
    """
    at_rest = replace(
        model,
        coriolis_accel=torch.zeros_like(model.coriolis_accel),
        gyro_force=torch.zeros_like(model.gyro_force),
        hinge_bias=None,
    )
    batch, n = model.batch_shape, model.num_dof
    units = _identity(model).reshape(n, *(1 for _ in batch), n)
    columns = inverse_dynamics(at_rest, units).expand(n, *batch, n)
    return columns.movedim(0, -1)


def _identity(model: SKOModel) -> Tensor:
    M = model.inertia
    return torch.eye(model.num_dof, dtype=M.dtype, device=M.device)
