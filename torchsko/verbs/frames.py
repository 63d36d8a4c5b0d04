r"""Named frames: poses, velocities, accelerations and Jacobians.

Spatial vectors are angular first, [omega; v] or rates of it. A motion is expressed in one of three
references:

======== ========================= ============================= =======================================
name     axes                      point                         in Pinocchio (which is linear first)
======== ========================= ============================= =======================================
"body"   the frame's own           the frame's origin            LOCAL
"world"  the inertial frame's      the inertial frame's origin   WORLD
"mixed"  the inertial frame's      the frame's origin            LOCAL_WORLD_ALIGNED
======== ========================= ============================= =======================================

With R taking the frame's coordinates to inertial ones, and r its origin, the vectors of the three are
related by constant matrices at one configuration,

.. math::
    X_{body} = 1, \qquad X_{mixed} = \begin{bmatrix} R & 0 \\ 0 & R \end{bmatrix}, \qquad
    X_{world} = \begin{bmatrix} R & 0 \\ \tilde r R & R \end{bmatrix},

which move at the rates X U x_m, with U = 0, [omega; 0] and [omega; v] of the frame in its own axes.

Reference: R. Featherstone, *Rigid Body Dynamics Algorithms*, Springer 2008, sections 2.8 to 2.11 (spatial
and classical acceleration).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.bridge.body_motion import (
    body_accels,
    body_jacobian_rates,
    body_jacobians,
    body_rates,
)
from torchsko.bridge.body_poses import Pose
from torchsko.bridge.kinematics import Kinematics
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.motion import motion_matrix
from torchsko.spatial.rigid_transform import force_matrix, rotate_vector, translate_motion
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec
from torchsko.verbs.frame import Frame, Frames, with_frames

REFERENCES = ("body", "world", "mixed")
"""Axes and point in which the motion of a frame is expressed."""


@verb
def frame_pose(mech: Mechanism, q: Tensor, frames: Frames) -> Pose:
    """Pose of named frames (any link of the robot file, merged ones included) in the inertial frame.

    Returns:
        Rotations `[*batch, len(frames), 3, 3]` and positions `[*batch, len(frames), 3]` [m]; of one
        name without the dimension of frames, `[*batch, 3, 3]` and `[*batch, 3]`.

    Reference: Siciliano et al. 2009, Robotics (direct kinematics).
    """
    mech, numbers = with_frames(mech, frames, q=q)
    poses = frame_poses(Kinematics.of(mech, q), numbers)
    if isinstance(frames, str | Frame):
        return Pose(poses.rotation[..., 0, :, :], poses.position[..., 0, :])
    return poses


def frame_poses(state: Kinematics, numbers: Sequence[int]) -> Pose:
    """Poses of frames, by index, in the inertial frame."""
    mech, bodies = state.mech, state.poses
    batch = torch.broadcast_shapes(
        bodies.rotation.shape[:-3], mech.frame_rotation.shape[:-3], mech.frame_position.shape[:-2]
    )
    rotations, positions = [], []
    for k in numbers:
        R, r = mech.frame_rotation[..., k, :, :], mech.frame_position[..., k, :]
        if (body := mech.frame_body[k]) >= 0:
            R_body, r_body = bodies.rotation[..., body, :, :], bodies.position[..., body, :]
            R, r = R_body @ R, r_body + matvec(R_body, r)
        rotations.append(R.expand(*batch, 3, 3))
        positions.append(r.expand(*batch, 3))
    return Pose(torch.stack(rotations, -3), torch.stack(positions, -2))


@verb
def frame_velocity(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    frames: Frames,
    reference: str = "body",
) -> Tensor:
    """Spatial velocity of named frames, O(N): no Jacobian is formed.

    Returns:
        [omega; v], `[*batch, len(frames), 6]` [rad/s, m/s]; of one name without the dimension of frames,
        `[*batch, 6]`.

    Reference: Featherstone 2008, section 2.8.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(5)
        >>> ts.frame_velocity(arm, q, qd, arm.frame_names[-1], reference="mixed").shape
        torch.Size([5, 6])
    """
    mech, numbers = with_frames(mech, frames, q=q, qd=qd)
    state = Kinematics.of(mech, q, qd)
    V = at_frames(mech, body_rates(state), numbers)
    found = express(state, numbers, V, reference)[..., 0]
    return found[..., 0, :] if isinstance(frames, str | Frame) else found


@verb
def frame_acceleration(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    qdd: Tensor,
    frames: Frames,
    reference: str = "body",
    classical: bool = False,
) -> Tensor:
    """Acceleration of named frames, spatial or classical, without gravity's -g.

    The spatial acceleration is the rate of the spatial velocity's components, in "body" and in "world";
    in "mixed" it is the same vector in other axes. The classical one has the acceleration of the
    reference point as its linear part, spatial + omega x v; in "mixed" it is the rate of the velocity's
    components. With qdd = 0 it is what `frame_jacobian_rate` times qd gives ("body" and "world":
    spatial, "mixed": classical), without forming a matrix.

    Args:
        reference: as in `frame_velocity`. In "world" the point is that of the frame's body which passes
            the inertial origin.

    Returns:
        `[*batch, len(frames), 6]` [rad/s^2, m/s^2]; of one name without the dimension of frames,
        `[*batch, 6]`.

    Reference: Featherstone 2008, section 2.11.
    """
    mech, numbers = with_frames(mech, frames, q=q, qd=qd, qdd=qdd)
    state = Kinematics.of(mech, q, qd)
    motion = torch.cat(torch.broadcast_tensors(*body_accels(state, qdd, gravity=False)), -1)
    found = express(state, numbers, at_frames(mech, motion, numbers), reference)
    V, a = found.unbind(-1)
    if classical:
        swing = cross(V[..., :3], V[..., 3:])
        a = torch.cat([a[..., :3], a[..., 3:] + swing], -1)
    return a[..., 0, :] if isinstance(frames, str | Frame) else a


@verb
def frame_jacobian(mech: Mechanism, q: Tensor, frames: Frames, reference: str = "body") -> Tensor:
    """Jacobian of named frames: the matrix that takes qd to `frame_velocity`.

    Returns:
        `[*batch, len(frames), 6, num_dof]`, rows [omega; v], times qd [rad/s; m/s]. Of one
        name without the dimension of frames, `[*batch, 6, num_dof]`.

    Reference: Concurrent Dynamics 2018, Generalized Mass Matrix, Eq. 7 (at centres of mass); Lynch, Park
    2017, Modern Robotics (body and space Jacobian).
    """
    mech, numbers = with_frames(mech, frames, q=q)
    state = Kinematics.of(mech, q)
    J = at_frames(mech, body_jacobians(state, state.identity()), numbers)
    found = express(state, numbers, J, reference)
    return found[..., 0, :, :] if isinstance(frames, str | Frame) else found


@verb
def frame_jacobian_rate(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    frames: Frames,
    reference: str = "body",
) -> Tensor:
    """Time derivative of `frame_jacobian`, of every entry, along qd.

    Its product with qd alone is cheaper by `frame_acceleration` at qdd = 0.

    Returns:
        `[*batch, len(frames), 6, num_dof]`; of one name without the dimension of frames,
        `[*batch, 6, num_dof]`.

    Reference: Featherstone 2008, Rigid Body Dynamics Algorithms (moving coordinates).
    """
    mech, numbers = with_frames(mech, frames, q=q, qd=qd)
    state = Kinematics.of(mech, q, qd)
    both = body_jacobian_rates(state, state.identity())
    J, rate = (at_frames(mech, x, numbers) for x in both)
    if reference != "body":
        V = J @ qd[..., None, :, None]
        if reference == "mixed":
            V = torch.cat([V[..., :3, :], torch.zeros_like(V[..., 3:, :])], -2)
        rate = rate + motion_matrix(V) @ J
    found = express(state, numbers, rate, reference)
    return found[..., 0, :, :] if isinstance(frames, str | Frame) else found


def at_frames(mech: Mechanism, x: Tensor, numbers: Sequence[int]) -> Tensor:
    """Motion columns of bodies, breadth first, as those of frames in their own axes, `[*, F, 6, r]`."""
    x = mech.layout.tree_order(x, -3)
    found = []
    for k in numbers:
        body = mech.frame_body[k]
        if body < 0:
            found.append(torch.zeros_like(x[..., 0, :, :]))
            continue
        X = force_matrix(mech.frame_rotation[..., k, :, :], mech.frame_position[..., k, :])
        found.append(X.mT @ x[..., body, :, :])
    return torch.stack(torch.broadcast_tensors(*found), -3)


def express(state: Kinematics, numbers: Sequence[int], x: Tensor, reference: str) -> Tensor:
    """Express motion columns of frames, given in their own axes, in a reference."""
    if reference == "body":
        return x
    check_reference(reference)
    return express_at(frame_poses(state, numbers), x, reference)


def express_at(pose: Pose, x: Tensor, reference: str) -> Tensor:
    """Express motion columns `[*, F, 6, r]`, given in the axes of frames with these poses, in a reference."""
    if reference == "body":
        return x
    x = rotate_vector(pose.rotation, x)
    return x if reference == "mixed" else translate_motion(-pose.position, x)


def check_reference(reference: str) -> None:
    """Refuse a reference that is not in `REFERENCES`.

    Raises:
        MechanismError: lists the valid references.
    """
    if reference not in REFERENCES:
        raise MechanismError(*unknown_name("reference", reference, REFERENCES))
