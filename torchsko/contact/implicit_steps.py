r"""Velocity changes of a time step with forces that act at its end.

In the coordinates of MuJoCo, in which linear velocities of free joints have the inertial axes, the
acceleration x of a step of length h solves

.. math::
    (\mathcal M + h D)\, x = \mathcal M\, \ddot q, \qquad D = -\partial \tau / \partial \dot q,

where D contains the damping of joints and actuators. Bodies on a free joint that carry no other body also
have the derivative of their gyroscopic forces, so that spinning bodies do not gain energy.

Reference: MuJoCo documentation, "Computation", Numerical integration.
"""

from __future__ import annotations

from functools import reduce
from operator import add

import torch
from torch import Tensor

from torchsko.actuators.implicit_forces import ForceSlopes
from torchsko.bridge.fluid_forces import fluid_damping
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.cost import SoftRows
from torchsko.contact.inverse_weights import transmission_matrix
from torchsko.contact.newton import solve_from_leaves
from torchsko.contact.soft_state import SoftState
from torchsko.linalg.unpivoted import solve_without_pivots
from torchsko.mechanism.configuration import transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import spatial_inertia
from torchsko.spatial.rotation import skew
from torchsko.utils.shapes import concatenate, matvec
from torchsko.verbs.passive.damping import damping_slope
from torchsko.verbs.passive.springs import spring_slope


def euler_acceleration(
    state: SoftState,
    qdd: Tensor,
    dt: float,
    slopes: ForceSlopes | None = None,
    *,
    all_forces: bool = False,
) -> Tensor:
    """Acceleration of an Euler step with implicit damping of joints, or of all forces, `[*batch, num_dof]`.

    Args:
        state: the mechanism at the start; options of its contact model select the damping of joints.
        qdd: constrained acceleration at the start, `[*batch, num_dof]`.
        dt: time step [s].
        slopes: of the forces of actuators and tendons.
        all_forces: whether all damping acts implicitly, also of actuators, tendons and the fluid.
    """
    slopes = slopes if all_forces else None
    joints = all_forces or state.contact.options.eulerdamp
    damping = damping_of_forces(state.kinematics, slopes, joints=joints, fluid=all_forces)
    return implicit_acceleration(state, qdd, damping, dt, gyroscopic=all_forces)


def implicit_acceleration(
    state: SoftState,
    qdd: Tensor,
    damping: Tensor | None,
    dt: float,
    *,
    gyroscopic: bool,
) -> Tensor:
    """Acceleration of a step whose damping acts at its end, `[*batch, num_dof]`.

    Args:
        state: the mechanism at the start, whose inertia includes what the step adds to it.
        qdd: acceleration at the start, `[*batch, num_dof]`.
        damping: D without gyroscopic forces, `[*batch, num_dof, num_dof]`; None for zero. Its symmetric part
            acts, but on bodies that are alone on a free joint all of it.
        dt: time step [s].
        gyroscopic: whether D contains the gyroscopic forces of bodies on a free joint.
    """
    mech, qd = state.mech, state.kinematics.qd
    assert qd is not None
    bodies = standalone_bodies(mech) if gyroscopic else []
    if damping is None and not bodies:
        return qdd
    M = state.step_inertia
    D = torch.zeros_like(M) if damping is None else damping
    turning, found = transport_rate(mech, qd, qd), qdd

    def equation(D: Tensor) -> tuple[Tensor, Tensor]:
        force = matvec(M, qdd)
        return M + dt * D, force if turning is None else force - dt * matvec(D, turning)

    if damping is not None:
        A, force = equation((D + D.mT) / 2 if mech.has_fluid else D)
        found = solve_from_leaves(A, force)
    for body in bodies:
        found = _with_gyroscopic_forces(mech, body, *equation(D), found, qd, dt)
    return found


def standalone_bodies(mech: Mechanism) -> list[int]:
    """Bodies on a free joint to the inertial frame that carry no other body; none beside embedded loops."""
    if mech.closing is not None:
        return []
    return [
        k
        for k, kind in enumerate(mech.joints.kinds)
        if kind.is_free and mech.parents[k] < 0 and k not in mech.parents
    ]


def constrained_dofs(rows: SoftRows) -> Tensor:
    """Mask of the dofs on which constraints act, `[*batch, num_dof]`, bool."""
    cones = [cone.active.repeat_interleave(cone.size, -1) for cone in rows.cones]
    active = torch.cat([rows.weight > 0, *cones], -1)
    return (active[..., None] & rows.moving).any(-2)


def _with_gyroscopic_forces(
    mech: Mechanism, body: int, A: Tensor, force: Tensor, qdd: Tensor, qd: Tensor, dt: float
) -> Tensor:
    """The acceleration with that of one body solved with its gyroscopic forces; A is M + h D."""
    dofs = mech.dof_slice(mech.tree_joint_names[body])
    w = qd[..., dofs][..., :3]
    M = spatial_inertia(mech.mass[..., body], mech.com[..., body, :], mech.inertia[..., body, :, :])
    I_o, C = M[..., :3, :3], M[..., :3, 3:]  # C = m skew(c)
    W = skew(w)
    angular = W @ I_o - skew(matvec(I_o, w))  # of w x I_o w
    linear = skew(matvec(C, w)) - W @ C  # of m w x (w x c)
    slope = torch.cat(torch.broadcast_tensors(angular, linear), -2)
    block = A[..., dofs, dofs] + dt * torch.nn.functional.pad(slope, (0, 3))
    found = solve_without_pivots(block, force[..., dofs])
    return concatenate((qdd[..., : dofs.start], found, qdd[..., dofs.stop :]))


def damping_of_forces(
    state: Kinematics, slopes: ForceSlopes | None, *, joints: bool, fluid: bool
) -> Tensor | None:
    """Damping of the forces of a step over the velocities, `[*batch, num_dof, num_dof]`; None for zero.

    Args:
        state: the mechanism at the start.
        slopes: of the forces of actuators and tendons; None leaves them out.
        joints: whether the damping of joints is included.
        fluid: whether that of the fluid is included.
    """
    mech, parts = state.mech, []
    if joints and mech.has_losses:
        slope = torch.diag_embed(damping_slope(mech, state.tree_qd))
        parts.append(state.independent_matrix(slope))
    if slopes is not None:
        D = transmission_matrix(mech, slopes.transmission, slopes.damping)
        parts.append(state.independent_matrix(D))
    if fluid and mech.has_fluid:
        parts.append(_damping_of_fluid(state, drag_only=False))
    return reduce(add, parts) if parts else None


def _damping_of_fluid(state: Kinematics, *, drag_only: bool) -> Tensor:
    """Damping of the fluid over the velocities of a mechanism, `[*batch, num_dof, num_dof]`."""
    return state.independent_matrix(fluid_damping(state, drag_only=drag_only))


def end_of_step_inertia(
    state: Kinematics, slopes: ForceSlopes | None, dt: float
) -> tuple[Tensor, Tensor]:
    r"""The matrix h D + h^2 K of springs and dampers at the end of a step, and the joint forces -h K v.

    D and K are the negative derivatives of the forces of joints, actuators and fluid with respect to
    velocities and positions, without negative entries, as in MuJoCo's integrator "discrete". Of the fluid,
    drag acts at the end of the step.

    Args:
        state: the mechanism at the start.
        slopes: of the forces of actuators.
        dt: time step h [s].
    """
    rates, tree = state.tree_qd, state.tree
    stiffness = spring_slope(tree, state.tree_q).clamp(min=0)
    diagonal = dt * damping_slope(tree, rates).clamp(min=0) + dt * dt * stiffness
    added, push = torch.diag_embed(diagonal), -dt * stiffness * rates
    if slopes is not None:
        B, k = slopes.transmission, slopes.stiffness.clamp(min=0)
        scale = dt * slopes.damping.clamp(min=0) + dt * dt * k
        single, multi = (B.index_select(-2, x) for x in (slopes.single_joint, slopes.multi_joint))
        diagonal = matvec((single * single).mT, scale.index_select(-1, slopes.single_joint))
        of_multi = scale.index_select(-1, slopes.multi_joint)
        added = added + torch.diag_embed(diagonal) + multi.mT @ (of_multi[..., None] * multi)
        push = push - dt * matvec(B.mT, k * matvec(B, rates))
    added = state.independent_matrix(added)
    if state.mech.has_fluid:
        drag = _damping_of_fluid(state, drag_only=True)
        added = added + dt * (drag + drag.mT) / 2
    return added, state.independent_forces(push)
