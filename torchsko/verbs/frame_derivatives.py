r"""Derivatives of the motion of named frames, in closed form, in tangent coordinates.

They are derivatives of the components of `frame_velocity` and `frame_acceleration`. In "mixed" and "world"
the axes, and in "world" the point, move with the frame as the joints step. A vector x of the frame therefore
changes by X (dx + U x_m x), with X and U of `torchsko.verbs.frames` for the motion of the step.

References: J. Carpentier, N. Mansard, *Analytical derivatives of rigid body dynamics algorithms*, Robotics:
Science and Systems 2018; S. Singh, R. Russell, P. Wensing, *Efficient analytical derivatives of rigid-body
dynamics using spatial vector algebra*, IEEE Robotics and Automation Letters 7(2), 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.bridge.tangents import BodyTangents, body_tangents
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.motion import motion_matrix
from torchsko.spatial.rotation import skew
from torchsko.utils.shapes import concatenate
from torchsko.verbs.frame import Frame, Frames, with_frames
from torchsko.verbs.frames import (
    at_frames,
    express,
    frame_acceleration,
    frame_jacobian,
    frame_velocity,
)
from torchsko.verbs.joint_tangents import joint_bends
from torchsko.verbs.manifold_derivatives import state_jacobians


@verb
def frame_velocity_derivatives(
    mech: Mechanism, q: Tensor, qd: Tensor, frames: Frames, *, reference: str = "body"
) -> tuple[Tensor, Tensor]:
    """Derivatives of `frame_velocity` to tangent steps of q, and to qd.

    Returns:
        Two matrices `[*batch, len(frames), 6, num_dof]`, rows [omega; v], of one name without the
        dimension of frames: to steps d of ``integrate(mech, q, d)`` at d = 0, and to qd, which is the
        `frame_jacobian`.

    Reference: Carpentier, Mansard 2018.
    """
    given, numbers = with_frames(mech, frames, q=q, qd=qd)
    if mech.closing is not None:
        velocity = lambda q, qd: frame_velocity(mech, q, qd, frames, reference=reference)  # noqa: E731
        return state_jacobians(mech, velocity, q, qd)
    state = Kinematics.of(given, q, qd)
    at = _of_frames(state, numbers, torch.zeros_like(qd))
    V_q = at.V_q - motion_matrix(at.V) @ _turning(at.J, reference)
    V_q, J = _in_reference(state, numbers, (V_q, at.J), reference)
    return (V_q[..., 0, :, :], J[..., 0, :, :]) if isinstance(frames, str | Frame) else (V_q, J)


@verb
def frame_acceleration_derivatives(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    qdd: Tensor,
    frames: Frames,
    *,
    reference: str = "body",
    classical: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of `frame_acceleration` to tangent steps of q, to qd and to qdd.

    Returns:
        Three matrices `[*batch, len(frames), 6, num_dof]`, of one name without the dimension of frames:
        to steps d of ``integrate(mech, q, d)`` at d = 0, to qd, and to qdd, the `frame_jacobian`.

    Reference: Carpentier, Mansard 2018.
    """
    given, numbers = with_frames(mech, frames, q=q, qd=qd, qdd=qdd)
    if mech.closing is not None:

        def accel(q: Tensor, qd: Tensor) -> Tensor:
            options = {"reference": reference, "classical": classical}
            return frame_acceleration(mech, q, qd, qdd, frames, **options)

        to_q, to_qd = state_jacobians(mech, accel, q, qd, qdd.shape[:-1])
        return to_q, to_qd, frame_jacobian(mech, q, frames, reference=reference).expand_as(to_q)
    found = frame_tangents(Kinematics.of(given, q, qd), numbers, qdd, reference, classical)
    tangents = (found.A_q, found.A_qd, found.J)
    a_q, a_qd, J = (x[..., 0, :, :] if isinstance(frames, str | Frame) else x for x in tangents)
    return a_q, a_qd, J


class FrameTangents(NamedTuple):
    """Motion of frames in a reference, and its derivatives in tangent coordinates.

    Attributes:
        V: velocity, `[*batch, F, 6, 1]`.
        A: acceleration, `[*batch, F, 6, 1]`.
        J: Jacobian, `[*batch, F, 6, n]`.
        V_q: derivative of V to q, `[*batch, F, 6, n]`.
        A_q: derivative of A to q.
        A_qd: derivative of A to qd.
    """

    V: Tensor
    A: Tensor
    J: Tensor
    V_q: Tensor
    A_q: Tensor
    A_qd: Tensor


def frame_tangents(
    state: Kinematics, numbers: Sequence[int], qdd: Tensor, reference: str, classical: bool
) -> FrameTangents:
    """`FrameTangents` of frames by index, of a mechanism without loops."""
    at = _of_frames(state, numbers, qdd)
    turning = _turning(at.J, reference)
    a_q = at.alpha_q - motion_matrix(at.alpha) @ turning
    V_q = at.V_q - motion_matrix(at.V) @ turning
    columns = (at.V, at.alpha, at.J, V_q, a_q, at.alpha_qd)
    found = FrameTangents(*_in_reference(state, numbers, columns, reference))
    if not classical:
        return found
    V, a, J, V_q, a_q, a_qd = found
    swing = torch.cat([torch.zeros_like(V[..., :3, :]), skew(V[..., :3, 0]) @ V[..., 3:, :]], -2)
    return FrameTangents(V, a + swing, J, V_q, a_q + _swing(V, V_q), a_qd + _swing(V, J))


def _of_frames(state: Kinematics, numbers: Sequence[int], qdd: Tensor) -> BodyTangents:
    """`BodyTangents` of frames in their own axes, `[*batch, F, 6, r]` each."""
    bend = joint_bends(state.tree, state.tree_q, state.tree_qd)
    columns = state.tree_columns(state.identity())
    of_bodies = body_tangents(state, state.tree_rates(qdd), bend, columns)
    return BodyTangents(*(at_frames(state.mech, x, numbers) for x in of_bodies))


def _turning(J: Tensor, reference: str) -> Tensor:
    """U of the motions of tangent steps, a column each: motion of the axes and point of a reference."""
    if reference == "body":
        return torch.zeros_like(J)
    if reference == "mixed":
        return torch.cat([J[..., :3, :], torch.zeros_like(J[..., 3:, :])], -2)
    return J


def _in_reference(
    state: Kinematics, numbers: Sequence[int], parts: Sequence[Tensor], reference: str
) -> Sequence[Tensor]:
    """Express columns of frames, given in their own axes, in a reference."""
    sizes = [x.shape[-1] for x in parts]
    # Where a body's motion does not depend on q, parts lack its batch dimensions.
    side_by_side = concatenate(parts, batch=(*state.tree_q.shape[:-1], 1, 1))
    return express(state, numbers, side_by_side, reference).split(sizes, -1)


def _swing(V: Tensor, change: Tensor) -> Tensor:
    """Derivative of [0; omega x v] to changes of the velocity, a column each."""
    linear = skew(V[..., :3, 0]) @ change[..., 3:, :] - skew(V[..., 3:, 0]) @ change[..., :3, :]
    return torch.cat([torch.zeros_like(linear), linear], -2)
