"""Rows of soft equalities: residuals, Jacobians and biases.

The impedance of all rows of an equality is that of the norm of its residual. As in MuJoCo, the reference
acceleration of rows between frames is one of J qdd + Jdot qd, and that of rows between lengths one of J qdd.

Reference: MuJoCo documentation, "Computation", Constraint model (equality).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.body_motion import tree_body_accels
from torchsko.bridge.body_poses import Pose
from torchsko.bridge.kinematics import Kinematics
from torchsko.constraints.row_kinds import FrameRows, JointRows, Marker
from torchsko.contact.body_motions import BodyMotions
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.points import select
from torchsko.mechanism.configuration import transport_rate
from torchsko.mechanism.loops.row_set import LengthMotion, Rows, frame_rows, joint_rows
from torchsko.mechanism.loops.subtree_motion import MarkerMotion
from torchsko.spatial.rigid_transform import rotate_vector
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec, norm


class EqualityRows(NamedTuple):
    """Rows of the equalities of one kind, one equality after the other.

    Attributes:
        equality: index of each row's equality.
        is_angular: whether the inverse weight of each row is the inverse inertia.
        jacobian: `[*batch, rows, num_tree_dof]`.
        residual: `[*batch, rows]`.
        bias: Jdot qd, `[*batch, rows]`.
        size: norms of the residuals of the equalities, repeated for each row, `[*batch, rows]`.
        moving: dofs that move each row, `[rows, num_tree_dof]`, bool.
    """

    equality: list[int]
    is_angular: list[bool]
    jacobian: Tensor
    residual: Tensor
    bias: Tensor
    size: Tensor
    moving: Tensor


class _Equalities(NamedTuple):
    """The equalities of one kind: their indices, first and second ends, and parameters `[*, e, p]`."""

    at: list[int]
    one: list[int]
    two: list[int]
    numbers: Tensor


def equality_rows(
    state: Kinematics,
    contact: ContactModel,
    pose: Pose,
    bodies: BodyMotions,
    lengths: tuple[Tensor, Tensor],
) -> list[EqualityRows]:
    """Rows of all equalities by kind.

    Args:
        state: the mechanism at a configuration and velocity.
        contact: its constraints.
        pose: poses of all bodies, then of the inertial frame.
        bodies: motion of the bodies.
        lengths: all lengths, `[*batch, N]`, and their rates per rate of all dofs, `[*, N, num_tree_dof]`.
    """
    found, motion = [], None
    for kind, at in contact.equalities_by_kind().items():
        one, two = ([contact.equality_ends[k][end] for k in at] for end in (0, 1))
        numbers = select(contact.equality_numbers, at, -2)[..., : len(kind.parameters)]
        chosen = _Equalities(at, one, two, numbers)
        if isinstance(kind, JointRows):
            rows, moving = _of_lengths(kind, chosen, lengths)
        else:
            motion = _body_motion(state) if motion is None else motion
            rows = _of_frames(contact, kind, chosen, pose, bodies, motion)
            moving = select(bodies.moves, one, 0) | select(bodies.moves, two, 0)
        residual, J, bias = rows
        count = residual.shape[-1]
        size = norm(residual)[..., None] if count > 1 else residual
        found.append(
            EqualityRows(
                [k for k in at for _ in range(count)],
                [row in kind.angular_rows for _ in at for row in range(count)],
                J.flatten(-3, -2),
                residual.flatten(-2),
                (torch.zeros_like(residual) if bias is None else bias).flatten(-2),
                size.expand(residual.shape).flatten(-2),
                moving[:, None].expand(-1, count, -1).flatten(0, 1),
            )
        )
    return found


def _of_lengths(
    kind: JointRows, chosen: _Equalities, lengths: tuple[Tensor, Tensor]
) -> tuple[Rows, Tensor]:
    """Rows `[*batch, e, 1]` without bias, and the dofs that move them."""
    one, two = (
        LengthMotion(select(lengths[0], k, -1), select(lengths[1], k, -2), None)
        for k in (chosen.one, chosen.two)
    )
    residual, J, _ = joint_rows(kind, one, two, chosen.numbers)
    moving = moving_rows(one.jacobian) | moving_rows(two.jacobian)
    return Rows(residual[..., None], J[..., None, :], None), moving


def _of_frames(
    contact: ContactModel,
    kind: FrameRows,
    chosen: _Equalities,
    pose: Pose,
    bodies: BodyMotions,
    motion: tuple[Tensor, Tensor],
) -> Rows:
    """Rows `[*batch, e, rows]`."""
    ends = []
    for end in markers_of(contact, chosen.at, pose):
        V, A = (select(x, end.bodies, -2) for x in motion)
        w, dw = V[..., :3], A[..., :3]
        rate = cross(w, end.arm)
        dv = A[..., 3:] + cross(dw, end.arm) + cross(w, rate)
        J = bodies.at_points(end.bodies, pose.position, end.arm)
        velocity = torch.cat([w.expand(rate.shape), V[..., 3:] + rate], -1)
        accel = torch.cat([dw.expand(dv.shape), dv], -1)
        ends.append(MarkerMotion(*end.marker, J, velocity, accel))
    return frame_rows(kind, ends[0], ends[1], chosen.numbers)


class EndMarkers(NamedTuple):
    """First or second markers of equalities between frames, in the inertial frame.

    Attributes:
        bodies: of the markers, num_bodies for the inertial frame.
        arm: markers relative to the origins of their bodies, `[*batch, e, 3]` [m].
        marker: poses, `[*batch, e, ...]`.
    """

    bodies: list[int]
    arm: Tensor
    marker: Marker


def markers_of(
    contact: ContactModel, at: Sequence[int], pose: Pose
) -> tuple[EndMarkers, EndMarkers]:
    """First and second markers of equalities between frames.

    Args:
        contact: the equalities.
        at: indices of the equalities.
        pose: poses of all bodies, then of the inertial frame.
    """
    rotation = select(contact.equality_rotation, at, -4)
    position = select(contact.equality_position, at, -3)
    found = []
    for end in (0, 1):
        bodies = [contact.equality_ends[k][end] for k in at]
        R = select(pose.rotation, bodies, -3)
        arm = matvec(R, position[..., end, :])
        origin = select(pose.position, bodies, -2)
        found.append(EndMarkers(bodies, arm, Marker(R @ rotation[..., end, :, :], origin + arm)))
    return found[0], found[1]


def _body_motion(state: Kinematics) -> tuple[Tensor, Tensor]:
    """Velocities [omega; v] and their rates at zero rates of MuJoCo's velocities, `[*batch, bodies + 1, 6]`.

    They are those of the origins of all bodies, then of the inertial frame, in inertial axes.
    """
    turning = transport_rate(state.tree, state.tree_qd, state.tree_qd)
    accels = [] if turning is None else [-turning]
    both = torch.cat(torch.broadcast_tensors(*tree_body_accels(state, *accels)), -1)
    motion = rotate_vector(state.poses.rotation, state.tree.layout.tree_order(both, -3))
    V, a = torch.nn.functional.pad(motion, (0, 0, 0, 0, 0, 1)).unbind(-1)
    turn, shift = a.split(3, -1)
    return V, torch.cat([turn, shift + cross(V[..., :3], V[..., 3:])], -1)


def moving_rows(J: Tensor) -> Tensor:
    """True where an entry of a row is not zero in any sample, `[*batch, r, n]` to `[r, n]`, bool."""
    moving = J != 0
    return moving.flatten(0, -3).any(0) if moving.ndim > 2 else moving
