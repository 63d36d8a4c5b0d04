"""Motion of the bodies of a mechanism at a state: velocities, accelerations, Jacobians.

All breadth first in the mechanism's tree, in body frames; see `torchsko.bridge.assemble` for the formulas.
"""

from __future__ import annotations

from torch import Tensor

from torchsko.algebra.operators.hinge import spread_all
from torchsko.algebra.operators.sweeps import scatter
from torchsko.bridge.joint_motion import gravity_accel, joint_map_rates
from torchsko.bridge.kinematics import Kinematics
from torchsko.spatial.motion import motion_matrix
from torchsko.utils.shapes import broadcast_shapes


def body_rates(state: Kinematics) -> Tensor:
    """V of every body, `[*batch, n, 6, 1]`, with the batch dimensions of the configuration."""
    return _as_wide(state, state.velocity)


def body_accels(state: Kinematics, qdd: Tensor, gravity: bool = True) -> tuple[Tensor, Tensor]:
    """V and alpha of every body, `[*batch, n, 6, 1]`.

    alpha is the rate of V's components in the body frame, and has the inertial frame's -g, unless
    `gravity` is False.
    """
    return body_rates(state), _accels(state, state.tree_accels(qdd), gravity=gravity)


def tree_body_accels(state: Kinematics, accels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`body_accels` without gravity, of accelerations of all joints of the tree; by default zero."""
    return body_rates(state), _accels(state, accels, gravity=False)


def _accels(state: Kinematics, accels: Tensor | None, *, gravity: bool) -> Tensor:
    """Accelerations of all bodies, `[*batch, n, 6, 1]`."""
    A, hinge = state.edge_weight, state.coriolis_accel
    if accels is not None:
        hinge = state.along_joints(accels[..., None]) + hinge
    hinge = hinge + gravity_accel(state.tree, A) if gravity else hinge
    return _as_wide(state, scatter(state.tree.layout, A, hinge))


def body_jacobians(state: Kinematics, columns: Tensor) -> Tensor:
    """J x of all bodies, `[*batch, n, 6, r]`, for columns x `[*batch, num_dof, r]`."""
    own = state.along_joints(state.tree_columns(columns))
    return _as_wide(state, scatter(state.tree.layout, state.edge_weight, own))


def body_jacobian_rates(state: Kinematics, columns: Tensor) -> tuple[Tensor, Tensor]:
    r"""J x and dJ/dt x of all bodies, `[*batch, n, 6, r]`, for columns x `[*batch, num_dof, r]`.

    From J(k) = A*(p,k) J(p) + H*(k), with dA*/dt = -(H* qd) x_m A*:

    .. math::
        \dot J(k) = A^*(p,k) \dot J(p) - H^* \dot q \times_m (J(k) - H^*(k)) + \dot H^*(k).
    """
    layout, A = state.tree.layout, state.edge_weight
    tree_columns = state.tree_columns(columns)
    own = state.along_joints(tree_columns)
    J = scatter(layout, A, own)
    turned = motion_matrix(state.joint_rate) @ (own - J)
    changing = joint_map_rates(state.tree, state.tree_q, state.tree_qd)
    if changing is not None:
        turned = turned + spread_all(layout, changing, layout.dofs.pack(tree_columns))
    changed = state.tree_column_rates(columns)
    if changed is not None:
        turned = turned + state.along_joints(changed)
    return _as_wide(state, J), _as_wide(state, scatter(layout, A, turned))


def _as_wide(state: Kinematics, x: Tensor) -> Tensor:
    """Columns of bodies with the batch dimensions of the configuration as well."""
    batch = broadcast_shapes(x.shape[:-3], state.edge_weight.batch_shape)
    return x.expand(*batch, *x.shape[-3:])
