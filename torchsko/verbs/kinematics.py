"""Where the bodies and frames are, and how fast: forward kinematics and Jacobians."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.kinematics import body_jacobians, joint_poses
from torchsko.errors import MechanismError
from torchsko.mechanism.coordinates import all_q, uncoupled
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.mechanism.verb import verb
from torchsko.spatial.transform import force_matrix


class Pose(NamedTuple):
    """Placement of several frames in the inertial frame.

    Attributes:
        rotation: frame to inertial coordinates, `[*batch, n, 3, 3]`.
        position: frame origins, `[*batch, n, 3]` [m].
    """

    rotation: Tensor
    position: Tensor


@verb
def forward_kinematics(mech: Mechanism, q: Tensor) -> Pose:
    """Pose of every body in the inertial frame, in the order of ``mech.body_names``.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.

    Returns:
        Rotations `[*batch, num_bodies, 3, 3]` and positions `[*batch, num_bodies, 3]` [m].

    Raises:
        ShapeError: when q does not fit the mechanism.
    """
    check_state(mech, q=q)
    q, mech = all_q(mech, q), uncoupled(mech)
    layout = mech.layout
    placed = layout.breadth_first(mech.joint_rotation, -3)
    origin = layout.breadth_first(mech.joint_position, -2)[..., None]
    turn, shift = joint_poses(mech, q)
    step = origin if shift is None else origin + placed @ shift[..., None]
    turned = placed if turn is None else placed @ turn
    batch = torch.broadcast_shapes(turned.shape[:-3], step.shape[:-3])
    local = torch.cat([turned.expand(*batch, -1, -1, -1), step.expand(*batch, -1, -1, -1)], -1)
    levels = list(layout.split(local))
    for depth in range(1, len(levels)):
        above = layout.links[depth].to_children(levels[depth - 1])
        moved = above[..., :3] @ levels[depth]
        levels[depth] = torch.cat([moved[..., :3], moved[..., 3:] + above[..., 3:]], -1)
    pose = layout.tree_order(torch.cat(levels, -3), -3)
    return Pose(pose[..., :3], pose[..., 3])


@verb
def frame_pose(mech: Mechanism, q: Tensor, frames: str | Sequence[str]) -> Pose:
    """Pose of named frames (any link of the robot file, merged ones included) in the inertial frame.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        frames: names from ``mech.frame_names``, or one name.

    Returns:
        Rotations `[*batch, len(frames), 3, 3]` and positions `[*batch, len(frames), 3]` [m]; of one
        name without the dimension of frames, `[*batch, 3, 3]` and `[*batch, 3]`.

    Raises:
        MechanismError: on an unknown frame, or none.
        ShapeError: when q does not fit the mechanism.
    """
    numbers = frame_numbers(mech, frames)
    bodies = forward_kinematics(mech, q)
    batch = torch.broadcast_shapes(
        bodies.rotation.shape[:-3], mech.frame_rotation.shape[:-3], mech.frame_position.shape[:-2]
    )
    rotations, positions = [], []
    for k in numbers:
        R, r = mech.frame_rotation[..., k, :, :], mech.frame_position[..., k, :]
        if (body := mech.frame_body[k]) >= 0:
            R_body, r_body = bodies.rotation[..., body, :, :], bodies.position[..., body, :]
            R, r = R_body @ R, r_body + (R_body @ r[..., None])[..., 0]
        rotations.append(R.expand(*batch, 3, 3))
        positions.append(r.expand(*batch, 3))
    if isinstance(frames, str):
        return Pose(rotations[0], positions[0])
    return Pose(torch.stack(rotations, -3), torch.stack(positions, -2))


@verb
def frame_jacobian(mech: Mechanism, q: Tensor, frames: str | Sequence[str]) -> Tensor:
    """Jacobian of named frames: spatial velocity [omega; v] in the frame's own axes at its origin.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        frames: names from ``mech.frame_names``, or one name.

    Returns:
        `[*batch, len(frames), 6, num_dof]`; times qd gives the velocity of each frame. Of one name
        without the dimension of frames, `[*batch, 6, num_dof]`.

    Raises:
        MechanismError: on an unknown frame, or none.
        ShapeError: when q does not fit the mechanism.
    """
    check_state(mech, q=q)
    numbers = frame_numbers(mech, frames)
    identity = torch.eye(mech.num_dof, dtype=q.dtype, device=q.device)
    J = mech.layout.tree_order(body_jacobians(mech, q, identity), -3)
    found = []
    for k in numbers:
        body = mech.frame_body[k]
        if body < 0:
            found.append(torch.zeros_like(J[..., 0, :, :]))
            continue
        X = force_matrix(mech.frame_rotation[..., k, :, :], mech.frame_position[..., k, :])
        found.append(X.mT @ J[..., body, :, :])
    if isinstance(frames, str):
        return found[0]
    return torch.stack(torch.broadcast_tensors(*found), -3)


def frame_numbers(mech: Mechanism, frames: str | Sequence[str]) -> tuple[int, ...]:
    """Numbers of named frames, one at least.

    Args:
        mech: the mechanism.
        frames: names from ``mech.frame_names``, or one name.

    Raises:
        MechanismError: on an unknown frame, or none.
    """
    names = (frames,) if isinstance(frames, str) else tuple(frames)
    if not names:
        raise MechanismError(
            f"frames={frames!r} names no frames.\n"
            "There is nothing to compute.\n"
            f"Pass {mech.frame_names[-1]!r}, or a list of such names."
        )
    return tuple(mech.frame_index(name) for name in names)
