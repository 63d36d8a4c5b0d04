r"""Forces of contacts, equalities, loops and held frames at a state and an acceleration.

Forces of soft constraints follow from their rows. Multipliers of loops and forces of couplings are what the
equations of motion of the tree lack,

.. math::
    \mathrm{ID}(q, \dot q, \ddot q) - \tau_{tree} - J^* f = G^* \lambda + \text{couplings},

with the forces f of all other constraints and the forces of actuators on all joints. Where the rows of loops
are redundant, the multipliers are those of least norm.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.actuators.actuator_forces import ActuatorState
from torchsko.bridge.assemble import model_at
from torchsko.bridge.body_poses import Pose
from torchsko.bridge.kinematics import Kinematics
from torchsko.constraints.row_kinds import FrameRows
from torchsko.contact.drive import Drive
from torchsko.contact.implicit_steps import end_of_step_inertia
from torchsko.contact.points import Contacts, all_poses, contact_points
from torchsko.contact.soft_dynamics import cone_forces
from torchsko.contact.soft_rows import tree_soft_rows
from torchsko.contact.soft_state import SoftState
from torchsko.implicit.pseudo_inverse import symmetric_pinv
from torchsko.mechanism.configuration import transport_rate
from torchsko.mechanism.coordinates import scatter_dofs
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.sensing.body_wrenches import (
    EndWrenches,
    contact_ends,
    exact_ends,
    exact_scalar_forces,
    scalar_forces,
    soft_ends,
)
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import concatenate, matvec
from torchsko.verbs.held.held_mechanism import HeldMechanism
from torchsko.verbs.held.held_rows import HeldRows
from torchsko.verbs.passive_forces import passive_forces

RANK_EXPONENT = 0.75
"""Power of the rounding unit below which an eigenvalue of G G*, relative to the largest, is zero."""


class ConstraintForces(NamedTuple):
    """Forces of constraints.

    Attributes:
        pose: poses of all bodies, then of the inertial frame.
        points: contacts; None for a held mechanism.
        contact: force and moment of each contact on its second shape, in contact axes, `[*batch, C, 6]`.
        ends: wrenches of contacts, then of equalities, of loops and of held frames.
        scalar: force of each equality between joints or tendons, and of each coupling on its dependent joint,
            `[*batch, 1]`.
    """

    pose: Pose
    points: Contacts | None
    contact: Tensor
    ends: tuple[EndWrenches, ...]
    scalar: dict[str, Tensor]

    def on_bodies(self) -> Tensor:
        """Sum of all wrenches on each body, `[*batch, num_bodies, 6]`, in its frame at its origin."""
        count, batch = self.pose.position.shape[-2] - 1, self.contact.shape[:-2]
        total = self.contact.new_zeros(*batch, count, 6)
        return sum((part.on_bodies(self.pose) for part in self.ends), total)


class Held(NamedTuple):
    """A held mechanism and the mask of its active constraints."""

    mechanism: HeldMechanism
    active: Tensor | None

    def accelerate(self, drive: Drive, state: State) -> Tensor:
        """Accelerations under the constraints, `[*batch, num_dof]`."""
        tau = drive.forces(drive.at(state.q, state.qd), state.act)[0]
        return self.mechanism.forward_dynamics(state.q, state.qd, tau, self.active, drive.f_ext)[0]

    def forces(self, drive: Drive, state: State, qdd: Tensor) -> Tensor:
        """Forces of the rows at an acceleration, `[*batch, rows]`."""
        tau = drive.forces(drive.at(state.q, state.qd), state.act)[0]
        return self.mechanism.constraint_forces(
            state.q, state.qd, qdd, tau, self.active, drive.f_ext
        )


def constraint_forces(
    drive: Drive, state: State, qdd: Tensor, held: Held | None = None
) -> ConstraintForces:
    """Forces of all constraints.

    Args:
        drive: the mechanism and what acts on it.
        state: its state.
        qdd: its acceleration, `[*batch, num_dof]`.
        held: constraints that hold in place of contact and of other soft constraints.
    """
    mech, contact, at = drive.mech, drive.contact, drive.at(state.q, state.qd)
    tree, accel, pose = at.tree, at.tree_accels(qdd), all_poses(at)
    if held is None:
        metric = SoftState(at, contact, None, _added_inertia(drive, at, state.act)).metric
        rows = tree_soft_rows(at, contact, metric)
        f = -rows.derivatives(rows.motion(accel) - rows.reference)[0]
        points, forces = contact_points(contact, pose), cone_forces(rows, f)
        ends = [contact_ends(contact, points, forces)] if points.pair else []
        framed = any(isinstance(kind, FrameRows) for kind in contact.equalities_by_kind())
        ends += [soft_ends(contact, pose, f)] if framed else []
        found = ConstraintForces(pose, points, forces, tuple(ends), scalar_forces(contact, f))
        on_joints = rows.generalized_forces(f)
    else:
        rows, f = held.mechanism.constraints.rows, held.forces(drive, state, qdd)
        on_tree = Kinematics(tree, at.tree_q)
        on_joints = matvec(rows.at(on_tree, rows.numbers(tree)).jacobian.mT, f)
        none = f.new_zeros(*f.shape[:-1], 0, 6)
        ends = (exact_ends(rows, tree, pose, f),)
        found = ConstraintForces(pose, None, none, ends, exact_scalar_forces(rows, f))
    if mech.closing is None and mech.coupling is None:
        return found
    tau, on_tree = _joint_force(drive, at, state.act), Kinematics(tree, at.tree_q, at.tree_qd)
    if held is None:
        if contact.options.end_of_step:
            tau = tau + _end_of_step_force(drive, at, state.act, qdd)
        lacking = SoftState(on_tree, contact, drive.f_ext).balance_error(accel, tau)
    else:
        model = model_at(on_tree, drive.f_ext)
        lacking = algorithms.inverse_dynamics(model, accel) + passive_forces(on_tree) - tau
    return _with_exact_forces(found, at, lacking - on_joints)


def _with_exact_forces(
    found: ConstraintForces, at: Kinematics, lacking: Tensor
) -> ConstraintForces:
    """Add the forces of loops and couplings.

    Args:
        found: all other forces.
        at: the mechanism at the state.
        lacking: forces on all joints that loops and couplings exert, `[*batch, num_tree_dof]`.
    """
    mech, tree, ends, scalar = at.mech, at.tree, found.ends, dict(found.scalar)
    loops = [c for c in mech.closures if c.method == "embed"] if mech.closing is not None else []
    if loops:
        rows = HeldRows(tree, loops)
        G = rows.at(Kinematics(tree, at.tree_q), rows.numbers(tree)).jacobian
        f = _multipliers(mech, G, lacking)
        lacking = lacking - matvec(G.mT, f)
        ends = (*ends, exact_ends(rows, tree, found.pose, f))
        scalar |= exact_scalar_forces(rows, f)
    names = {x.joint: x.equality.name for x in mech.file_metadata.coupled}
    for k in mech.coupling.dependent if mech.coupling is not None else ():
        dof, joint = mech.layout.dofs.places[k][0], mech.tree_joint_names[k]
        scalar[names.get(joint, joint)] = lacking[..., dof : dof + 1]
    return found._replace(ends=ends, scalar=scalar)


def _multipliers(mech: Mechanism, G: Tensor, lacking: Tensor) -> Tensor:
    """The least-squares solution of G* f = lacking of least norm, on joints that no coupling determines."""
    both = concatenate([lacking[..., None, :], G], -2)
    if mech.coupling is not None:
        both = mech.coupling.independent_forces(both, mech.coupling_ratio[..., None, :])
    lacking, G = both[..., 0, :], both[..., 1:, :]
    least = torch.finfo(compute_dtype(G)).eps ** RANK_EXPONENT
    inverse = symmetric_pinv(G @ G.mT, rank_tolerance=least)
    return matvec(inverse, matvec(G, lacking))


def _added_inertia(drive: Drive, state: Kinematics, act: Tensor) -> Tensor | None:
    """Matrix of springs and dampers that act at the end of a step; None for other steps."""
    if not drive.contact.options.end_of_step:
        return None
    return end_of_step_inertia(state, drive.forces(state, act)[2], drive.dt)[0]


def _end_of_step_force(drive: Drive, state: Kinematics, act: Tensor, qdd: Tensor) -> Tensor:
    """Change of the forces of springs and dampers on all joints within a step, `[*batch, num_tree_dof]`."""
    slopes, qd = drive.forces(state, act)[2], state.qd
    assert qd is not None
    on_tree = Kinematics(state.tree, state.tree_q, state.tree_qd)
    added, push = end_of_step_inertia(on_tree, slopes, drive.dt)
    turning = transport_rate(state.mech, qd, qd)
    accel = qdd if turning is None else qdd + turning
    return push - matvec(added, state.tree_rates(accel))


def _joint_force(drive: Drive, state: Kinematics, act: Tensor) -> Tensor:
    """Forces of actuators and tendons on all joints of the tree, `[*batch, num_tree_dof]`."""
    if drive.actuators is None:
        assert state.qd is not None
        ctrl = torch.zeros_like(state.qd) if drive.ctrl is None else drive.ctrl
        tau = scatter_dofs(drive.mech, ctrl)
    else:
        assert drive.ctrl is not None
        tau = ActuatorState.at(state, drive.actuators, act, drive.ctrl, drive.dt).applied_force
    return tau if drive.tendons is None else tau + drive.tendons.joint_force(state)
