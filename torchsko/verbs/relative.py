r"""Poses, velocities and Jacobians of frames relative to another moving frame.

The frame b, `relative_to`, has the role of the inertial frame in `torchsko.verbs.frames`: "world" is
in its axes at its origin, "mixed" in its axes at the origin of the frame a. With the pose of a in b,

.. math::
    R = R_b^* R_a, \quad r = R_b^* (r_a - r_b), \qquad
    J_{ab} = J_a - X^*(R, r) J_b

in the axes of a; X maps forces from a to b. If a moves in b with V, the rate of X* is - V x_m X*.

Reference: R. Featherstone, *Rigid Body Dynamics Algorithms*, Springer 2008, section 2.8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.bridge.body_poses import Pose
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.motion import cross_motion, motion_matrix
from torchsko.spatial.rigid_transform import force_matrix
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec
from torchsko.verbs.frame import Frame, Frames, listed, with_frames
from torchsko.verbs.frames import (
    check_reference,
    express_at,
    frame_acceleration,
    frame_jacobian,
    frame_jacobian_rate,
    frame_pose,
    frame_velocity,
)


@verb
def relative_pose(mech: Mechanism, q: Tensor, frames: Frames, relative_to: str | Frame) -> Pose:
    """Pose of frames in another frame.

    Args:
        relative_to: name of the other frame, or a `Frame`.

    Returns:
        Rotations `[*batch, len(frames), 3, 3]`, to the other frame's coordinates, and positions
        `[*batch, len(frames), 3]` [m]; of one frame without the dimension of frames.
    """
    mech, names, base = _named(mech, frames, relative_to, q=q)
    R, r = _pose(mech, q, names, base)
    return Pose(R[..., 0, :, :], r[..., 0, :]) if isinstance(frames, str | Frame) else Pose(R, r)


@verb
def relative_velocity(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    frames: Frames,
    relative_to: str | Frame,
    reference: str = "body",
) -> Tensor:
    """Spatial velocity of frames relative to another frame.

    Args:
        relative_to: name of the other frame, or a `Frame`.
        reference: "body", the frame's own axes at its origin; "world", the other frame's axes at its origin;
            or "mixed", the other frame's axes at the frame's origin.

    Returns:
        [omega; v], `[*batch, len(frames), 6]` [rad/s, m/s]; of one frame `[*batch, 6]`.

    Reference: Featherstone 2008, Rigid Body Dynamics Algorithms (coordinate transforms).
    """
    mech, names, base = _named(mech, frames, relative_to, q=q, qd=qd)
    V = frame_velocity(mech, q, qd, (*names, base))[..., None]
    motion = _in_reference(mech, q, names, base, V, reference)[..., 0]
    return motion[..., 0, :] if isinstance(frames, str | Frame) else motion


@verb
def relative_jacobian(
    mech: Mechanism,
    q: Tensor,
    frames: Frames,
    relative_to: str | Frame,
    reference: str = "body",
) -> Tensor:
    """Jacobian of frames relative to another: the matrix that takes qd to `relative_velocity`.

    Columns of joints that carry both frames are zero.

    Args:
        relative_to: name of the other frame, or a `Frame`.
        reference: as in `relative_velocity`.

    Returns:
        `[*batch, len(frames), 6, num_dof]`, rows [omega; v]; of one frame `[*batch, 6, num_dof]`.

    Reference: Featherstone 2008, Rigid Body Dynamics Algorithms (coordinate transforms).

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, _ = arm.random_state()
        >>> ts.relative_jacobian(arm, q, "link6", "link2")[:, :2].abs().max() < 1e-12
        tensor(True)
    """
    mech, names, base = _named(mech, frames, relative_to, q=q)
    J = frame_jacobian(mech, q, (*names, base))
    motion = _in_reference(mech, q, names, base, J, reference)
    return motion[..., 0, :, :] if isinstance(frames, str | Frame) else motion


@verb
def relative_acceleration(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    qdd: Tensor,
    frames: Frames,
    relative_to: str | Frame,
    reference: str = "body",
    classical: bool = False,
) -> Tensor:
    """Acceleration of frames relative to another frame.

    Args:
        relative_to: name of the other frame, or a `Frame`.
        reference: as in `relative_velocity`.
        classical: the acceleration of the reference point as the linear part, as in `frame_acceleration`; in
            "mixed" it is then the rate of the components of `relative_velocity`.

    Returns:
        `[*batch, len(frames), 6]` [rad/s^2, m/s^2]; of one frame `[*batch, 6]`.

    Reference: Featherstone 2008, section 2.11.
    """
    mech, names, base = _named(mech, frames, relative_to, q=q, qd=qd, qdd=qdd)
    check_reference(reference)
    V = frame_velocity(mech, q, qd, (*names, base))[..., None]
    alpha = frame_acceleration(mech, q, qd, qdd, (*names, base))[..., None]
    pose = _pose(mech, q, names, base)
    own, carried = _relative_columns(pose, V)
    rate = _relative_columns(pose, alpha)[0] + cross_motion(*torch.broadcast_tensors(own, carried))
    both = torch.cat(torch.broadcast_tensors(own, rate), -1)
    v, a = express_at(pose, both, reference).unbind(-1)
    if classical:
        a = torch.cat([a[..., :3], a[..., 3:] + cross(v[..., :3], v[..., 3:])], -1)
    return a[..., 0, :] if isinstance(frames, str | Frame) else a


@verb
def relative_jacobian_rate(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    frames: Frames,
    relative_to: str | Frame,
    reference: str = "body",
) -> Tensor:
    """Time derivative of `relative_jacobian`, of every entry, along qd.

    Args:
        relative_to: name of the other frame, or a `Frame`.
        reference: as in `relative_velocity`.

    Returns:
        `[*batch, len(frames), 6, num_dof]`; of one frame `[*batch, 6, num_dof]`.

    Reference: Featherstone 2008, Rigid Body Dynamics Algorithms (moving coordinates).
    """
    mech, names, base = _named(mech, frames, relative_to, q=q, qd=qd)
    check_reference(reference)
    J = frame_jacobian(mech, q, (*names, base))
    rate = frame_jacobian_rate(mech, q, qd, (*names, base))
    pose = _pose(mech, q, names, base)
    own, carried = _relative_columns(pose, J)
    V = own @ qd[..., None, :, None]
    rate = _relative_columns(pose, rate)[0] + motion_matrix(V) @ carried
    if reference != "body":
        still = torch.zeros_like(V[..., 3:, :])
        turning = torch.cat([V[..., :3, :], still], -2) if reference == "mixed" else V
        rate = rate + motion_matrix(turning) @ own
    found = express_at(pose, rate, reference)
    return found[..., 0, :, :] if isinstance(frames, str | Frame) else found


def _relative_columns(pose: Pose, x: Tensor) -> tuple[Tensor, Tensor]:
    """Motion columns of frames relative to the last one, and those of the last; in the axes of each frame."""
    carried = force_matrix(*pose).mT @ x[..., -1:, :, :]
    return x[..., :-1, :, :] - carried, carried


def _named(
    mech: Mechanism, frames: Frames, relative_to: str | Frame, **states: Tensor
) -> tuple[Mechanism, tuple[str, ...], str]:
    """The mechanism with the placed frames added, and the names of all frames."""
    several = listed(frames)
    with_frames(mech, several)  # refuses an empty list
    mech, numbers = with_frames(mech, (*several, relative_to), **states)
    *names, base = (mech.frame_names[k] for k in numbers)
    return mech, tuple(names), base


def _pose(mech: Mechanism, q: Tensor, names: tuple[str, ...], base: str) -> Pose:
    """Pose of frames in a frame, one at least."""
    pose = frame_pose(mech, q, (*names, base))
    turn = pose.rotation[..., -1:, :, :].mT
    shift = pose.position[..., :-1, :] - pose.position[..., -1:, :]
    return Pose(turn @ pose.rotation[..., :-1, :, :], matvec(turn, shift))


def _in_reference(
    mech: Mechanism, q: Tensor, names: tuple[str, ...], base: str, x: Tensor, reference: str
) -> Tensor:
    """Express motion columns of frames relative to the last one in a reference."""
    check_reference(reference)
    pose = _pose(mech, q, names, base)
    return express_at(pose, _relative_columns(pose, x)[0], reference)
