r"""Bodies and named frames: poses, velocities, accelerations and Jacobians, also in a moving frame.

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

A frame b that moves, `relative_to`, may have the role of the inertial frame. With the pose of a in b,

.. math::
    R = R_b^* R_a, \quad r = R_b^* (r_a - r_b), \qquad
    J_{ab} = J_a - X^*(R, r) J_b

in the axes of a; X maps forces from a to b. If a moves in b with V, the rate of X* is - V x_m X*.

Reference: R. Featherstone, *Rigid Body Dynamics Algorithms*, Springer 2008, sections 2.8 to 2.11 (spatial
and classical acceleration).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from torchsko.spatial.motion import cross_motion, motion_matrix
from torchsko.spatial.rigid_transform import force_matrix, rotate_vector, translate_motion
from torchsko.spatial.rotation import cross
from torchsko.utils.computed import computed
from torchsko.utils.shapes import broadcast_shapes, matvec
from torchsko.verbs.frame import Frame, Frames, listed, with_frames

REFERENCES = ("body", "world", "mixed")
"""Axes and point in which the motion of a frame is expressed."""


@verb
def forward_kinematics(mech: Mechanism, q: Tensor) -> Pose:
    """Pose of every body in the inertial frame, in the order of ``mech.body_names``.

    Returns:
        Rotations `[*batch, num_bodies, 3, 3]` and positions `[*batch, num_bodies, 3]` [m].

    Reference: Siciliano et al. 2009, Robotics (direct kinematics).
    """
    return Kinematics.of(mech, q).poses


@verb
def frame_pose(
    mech: Mechanism, q: Tensor, frames: Frames, *, relative_to: str | Frame | None = None
) -> Pose:
    """Pose of named frames: any link of the robot file, merged ones included.

    Returns:
        Rotations `[*batch, len(frames), 3, 3]`, to the coordinates of the inertial frame or of
        `relative_to`, and positions `[*batch, len(frames), 3]` [m]; of one frame without the dimension of
        frames, `[*batch, 3, 3]` and `[*batch, 3]`.

    Reference: Siciliano et al. 2009, Robotics (direct kinematics).
    """
    at = _frames_at(mech, frames, relative_to, q=q)
    return Pose(at.result(at.poses.rotation, 2), at.result(at.poses.position, 1))


@verb
def frame_velocity(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    frames: Frames,
    *,
    reference: str = "body",
    relative_to: str | Frame | None = None,
) -> Tensor:
    """Spatial velocity of named frames, O(N): no Jacobian is formed.

    Returns:
        [omega; v], `[*batch, len(frames), 6]` [rad/s, m/s]; of one frame without the dimension of frames,
        `[*batch, 6]`.

    Reference: Featherstone 2008, section 2.8.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(5)
        >>> ts.frame_velocity(arm, q, qd, arm.frame_names[-1], reference="mixed").shape
        torch.Size([5, 6])
    """
    at = _frames_at(mech, frames, relative_to, reference, q=q, qd=qd)
    V, _ = at.columns(body_rates(at.state))
    return at.result(at.express(V)[..., 0], 1)


@verb
def frame_acceleration(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    qdd: Tensor,
    frames: Frames,
    *,
    reference: str = "body",
    classical: bool = False,
    relative_to: str | Frame | None = None,
) -> Tensor:
    """Acceleration of named frames, spatial or classical, without gravity's -g.

    The spatial acceleration is the rate of the spatial velocity's components, in "body" and in "world";
    in "mixed" it is the same vector in other axes. The classical one has the acceleration of the
    reference point as its linear part, spatial + omega x v; in "mixed" it is the rate of the velocity's
    components. In "world" the point is that of the frame's body which passes the inertial origin. With
    qdd = 0 it is what `frame_jacobian_rate` times qd gives ("body" and "world": spatial, "mixed": classical),
    without forming a matrix.

    Returns:
        `[*batch, len(frames), 6]` [rad/s^2, m/s^2]; of one frame without the dimension of frames,
        `[*batch, 6]`.

    Reference: Featherstone 2008, section 2.11.
    """
    at = _frames_at(mech, frames, relative_to, reference, q=q, qd=qd, qdd=qdd)
    motion = torch.cat(torch.broadcast_tensors(*body_accels(at.state, qdd, gravity=False)), -1)
    motion, carried = at.columns(motion)
    if carried is not None:
        V, alpha = motion.split(1, -1)
        alpha = alpha + cross_motion(*torch.broadcast_tensors(V, carried[..., :1]))
        motion = torch.cat(torch.broadcast_tensors(V, alpha), -1)
    V, a = at.express(motion).unbind(-1)
    if classical:
        swing = cross(V[..., :3], V[..., 3:])
        a = torch.cat([a[..., :3], a[..., 3:] + swing], -1)
    return at.result(a, 1)


@verb
def frame_jacobian(
    mech: Mechanism,
    q: Tensor,
    frames: Frames,
    *,
    reference: str = "body",
    relative_to: str | Frame | None = None,
) -> Tensor:
    """Jacobian of named frames: the matrix that takes qd to `frame_velocity`.

    Relative to another frame, columns of joints that carry both are zero.

    Returns:
        `[*batch, len(frames), 6, num_dof]`, rows [omega; v], times qd [rad/s; m/s]. Of one
        frame without the dimension of frames, `[*batch, 6, num_dof]`.

    Reference: Concurrent Dynamics 2018, Generalized Mass Matrix, Eq. 7 (at centers of mass); Lynch, Park
    2017, Modern Robotics (body and space Jacobian).

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, _ = arm.random_state()
        >>> ts.frame_jacobian(arm, q, "link6", relative_to="link2")[:, :2].abs().max() < 1e-12
        tensor(True)
    """
    at = _frames_at(mech, frames, relative_to, reference, q=q)
    J, _ = at.columns(body_jacobians(at.state, at.state.identity()))
    return at.result(at.express(J), 2)


@verb
def frame_jacobian_rate(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    frames: Frames,
    *,
    reference: str = "body",
    relative_to: str | Frame | None = None,
) -> Tensor:
    """Time derivative of `frame_jacobian`, of every entry, along qd.

    Its product with qd alone is cheaper by `frame_acceleration` at qdd = 0.

    Returns:
        `[*batch, len(frames), 6, num_dof]`; of one frame without the dimension of frames,
        `[*batch, 6, num_dof]`.

    Reference: Featherstone 2008, Rigid Body Dynamics Algorithms (moving coordinates).
    """
    at = _frames_at(mech, frames, relative_to, reference, q=q, qd=qd)
    J, rate = body_jacobian_rates(at.state, at.state.identity())
    (J, carried), (rate, _) = at.columns(J), at.columns(rate)
    if carried is not None:
        rate = rate + motion_matrix(J @ qd[..., None, :, None]) @ carried
    if reference != "body":
        V = J @ qd[..., None, :, None]
        if reference == "mixed":
            V = torch.cat([V[..., :3, :], torch.zeros_like(V[..., 3:, :])], -2)
        rate = rate + motion_matrix(V) @ J
    return at.result(at.express(rate), 2)


@dataclass(frozen=True, eq=False)
class _FramesAt:
    """The frames of one call.

    Attributes:
        state: the mechanism, with placed frames added, at the state of the call.
        numbers: indices of the frames.
        base: index of the frame relative to which they move; None for the inertial frame.
        reference: one of `REFERENCES`.
        is_one: whether one frame was given alone, so that results have no dimension of frames.
    """

    state: Kinematics
    numbers: tuple[int, ...]
    base: int | None
    reference: str
    is_one: bool

    @computed
    def poses(self) -> Pose:
        """Poses in the inertial frame, or in the base."""
        if self.base is None:
            return frame_poses(self.state, self.numbers)
        R, r = frame_poses(self.state, (*self.numbers, self.base))
        turn, shift = R[..., -1:, :, :].mT, r[..., :-1, :] - r[..., -1:, :]
        return Pose(turn @ R[..., :-1, :, :], matvec(turn, shift))

    def columns(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Motion columns of bodies as those of frames, relative to the base, and those of the base.

        Both are in the axes of each frame, `[*batch, F, 6, r]`.
        """
        if self.base is None:
            return at_frames(self.state.mech, x, self.numbers), None
        x = at_frames(self.state.mech, x, (*self.numbers, self.base))
        carried = force_matrix(*self.poses).mT @ x[..., -1:, :, :]
        return x[..., :-1, :, :] - carried, carried

    def express(self, x: Tensor) -> Tensor:
        """Motion columns in the axes of each frame, expressed in the reference."""
        return x if self.reference == "body" else express_at(self.poses, x, self.reference)

    def result(self, x: Tensor, rank: int) -> Tensor:
        """A result of all frames, whose last dimensions, this many, are those of one frame."""
        return x.select(-1 - rank, 0) if self.is_one else x


def _frames_at(
    mech: Mechanism,
    frames: Frames,
    relative_to: str | Frame | None,
    reference: str = "body",
    **states: Tensor,
) -> _FramesAt:
    check_reference(reference)
    is_one = isinstance(frames, str | Frame)
    frames = listed(frames)
    if relative_to is None:
        mech, numbers = with_frames(mech, frames, **states)
        base = None
    else:
        with_frames(mech, frames)  # refuses an empty list
        mech, (*numbers, base) = with_frames(mech, (*frames, relative_to), **states)
    state = Kinematics.of(mech, states["q"], states.get("qd"))
    return _FramesAt(state, tuple(numbers), base, reference, is_one)


def frame_poses(state: Kinematics, numbers: Sequence[int]) -> Pose:
    """Poses of frames, by index, in the inertial frame."""
    mech, bodies = state.mech, state.poses
    batch = broadcast_shapes(
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
