"""The Coriolis matrix of a mechanism, in the factorization that makes dM/dt - 2 C skew-symmetric.

`coriolis_inertia` splits the rate of each body's inertia in the inertial frame.

Reference: S. Echeandia, P. Wensing, *Numerical methods to compute the Coriolis matrix and Christoffel
symbols for rigid-body systems*, Journal of Computational and Nonlinear Dynamics 16(9), 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.bridge.assemble import tree_model
from torchsko.bridge.joint_motion import joint_map_rates
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import coriolis_inertia
from torchsko.spatial.motion import motion_matrix
from torchsko.utils.shapes import broadcast_shapes


@verb
def coriolis_matrix(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """The matrix C(q, qd) of Coriolis and centrifugal forces, linear in qd.

    ``C @ qd`` is the `bias_force` without gravity and passive forces. The rate of the mass
    matrix along the motion is C + C*, so dM/dt - 2 C is skew-symmetric. Several matrices have both
    properties; where qd is the rate of q, this one consists of Christoffel symbols.

    Returns:
        `[*batch, num_dof, num_dof]` [N m s/rad, N s or N s/m].

    Reference: Echeandia and Wensing 2021, Algorithm 1.

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(5)
        >>> ts.coriolis_matrix(arm, q, qd).shape
        torch.Size([5, 7, 7])
    """
    return mass_and_coriolis_matrix(Kinematics.of(mech, q, qd))[1]


@verb
def christoffel_symbols(mech: Mechanism, q: Tensor) -> Tensor:
    r"""Christoffel symbols of the first kind of the mass matrix: coefficients of `coriolis_matrix`.

    .. math:: C_{ij} = \sum_k \Gamma_{ijk} \dot q_k

    Where rates are those of coordinates, :math:`\Gamma_{ijk} = (\partial_k M_{ij} + \partial_j M_{ik} -
    \partial_i M_{jk}) / 2`, symmetric in j and k; at spherical and free joints generalized ones, whose
    forces :math:`\sum_{jk} \Gamma_{ijk} \dot q_j \dot q_k` are the same.

    Returns:
        `[*batch, num_dof, num_dof, num_dof]`: i, j, k; times two velocities a joint force [N m or N].

    Reference: Echeandia and Wensing 2021, section 4.
    """
    unit = torch.eye(mech.num_dof, dtype=q.dtype, device=q.device)
    # Batched parameters of the mechanism need the new dimension as well, so it comes first.
    unit = unit.reshape(mech.num_dof, *[1] * max(q.ndim - 1, len(mech.batch_shape)), mech.num_dof)
    found = mass_and_coriolis_matrix(Kinematics.of(mech, q, unit))[1].movedim(0, -1)
    return found.expand(*broadcast_shapes(q.shape[:-1], mech.batch_shape), *found.shape[-3:])


def mass_and_coriolis_matrix(state: Kinematics) -> tuple[Tensor, Tensor]:
    """The mass matrix and the Coriolis matrix at a state, each `[*batch, num_dof, num_dof]`."""
    model = tree_model(state, at_rest=True)
    X = model.joint_map @ motion_matrix(state.velocity).mT
    own = joint_map_rates(state.tree, state.tree_q, state.tree_qd)
    X = X if own is None else X + own
    B = coriolis_inertia(model.inertia, state.velocity)
    M_tree, C_tree = algorithms.mass_and_coriolis_matrix(model, X, B)
    M, C = (state.independent_matrix(A) for A in (M_tree, C_tree))
    change = state.tree_column_rates(state.identity())
    return M, C if change is None else C + state.independent_rows((M_tree @ change).mT).mT
