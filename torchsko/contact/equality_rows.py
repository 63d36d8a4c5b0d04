r"""Rows of soft equalities: residuals and their Jacobians, as MuJoCo defines them.

The angular rows of a weld are the vector part of the quaternion q of the second frame relative to the first,
times the torque scale s,

.. math::
    \phi = s\, q_v, \qquad \dot\phi = \tfrac s2 (q_w\, \omega + \omega \times q_v), \qquad
    \omega = R_1^* (\omega_2 - \omega_1).

The impedance of all rows of an equality is that of the norm of its residual. As in MuJoCo, the reference
acceleration of rows between frames is one of J qdd + Jdot qd, and that of rows between lengths one of J qdd.

Reference: MuJoCo documentation, "Computation", Constraint model (equality).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.body_poses import Pose
from torchsko.constraints.constraint_kinds import KINDS
from torchsko.constraints.row_kinds import FrameRows, JointRows, Marker
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.lengths import moving_rows
from torchsko.contact.points import select
from torchsko.spatial.rotation import cross, matrix_to_quaternion, skew
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


class BodyMotion(NamedTuple):
    """Motion of all bodies, then of the inertial frame, in inertial axes at the origins of the bodies.

    Attributes:
        pose: `[*batch, num_bodies + 1, ...]`.
        jacobian: [omega; v] per rate of all dofs of the tree, `[*batch, num_bodies + 1, 6, num_tree_dof]`.
        velocity: [omega; v], `[*batch, num_bodies + 1, 6]`.
        accel: rates of them at zero rates of MuJoCo's velocities, `[*batch, num_bodies + 1, 6]`.
    """

    pose: Pose
    jacobian: Tensor
    velocity: Tensor
    accel: Tensor


def equality_rows(
    contact: ContactModel,
    motion: BodyMotion,
    moves: Tensor,
    lengths: tuple[Tensor, Tensor],
) -> list[EqualityRows]:
    """Rows of all equalities by kind.

    Args:
        contact: constraints of the mechanism.
        motion: motion of the bodies.
        moves: dofs that move each body, `[num_bodies + 1, num_tree_dof]`, bool.
        lengths: all lengths, `[*batch, N]`, and their rates per rate of all dofs, `[*, N, num_tree_dof]`.
    """
    found = []
    for name in dict.fromkeys(contact.equality_kinds):
        at = [k for k, kind in enumerate(contact.equality_kinds) if kind == name]
        kind = KINDS[name]
        ends = [[contact.equality_ends[k][end] for k in at] for end in (0, 1)]
        numbers = select(contact.equality_numbers, at, -2)
        angular: tuple[int, ...] = ()
        if isinstance(kind, JointRows):
            residual, J, bias = _of_lengths(kind, ends, numbers, lengths)
            one, two = (moving_rows(select(lengths[1], k, -2)) for k in ends)
            moving = one | two
        else:
            angular = kind.angular_rows
            residual, J, bias = _of_frames(contact, kind, at, ends, numbers, motion)
            moving = select(moves, ends[0], 0) | select(moves, ends[1], 0)
        count = residual.shape[-1]
        size = norm(residual)[..., None] if count > 1 else residual
        found.append(
            EqualityRows(
                [k for k in at for _ in range(count)],
                [row in angular for _ in at for row in range(count)],
                J.flatten(-3, -2),
                residual.flatten(-2),
                bias.flatten(-2),
                size.expand(residual.shape).flatten(-2),
                moving[:, None].expand(-1, count, -1).flatten(0, 1),
            )
        )
    return found


def _of_lengths(
    kind: JointRows, ends: list[list[int]], numbers: Tensor, lengths: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Residuals `[*batch, e, 1]`, Jacobians `[*batch, e, 1, num_tree_dof]` and zero biases."""
    x1, x2 = (select(lengths[0], k, -1) for k in ends)
    rows1, rows2 = (select(lengths[1], k, -2) for k in ends)
    numbers = numbers[..., : len(kind.parameters)]
    slope1, slope2 = kind.slopes(x1, x2, numbers)
    J = slope1[..., None] * rows1 + slope2[..., None] * rows2
    residual = kind.residual(x1, x2, numbers)[..., None]
    return residual, J[..., None, :], torch.zeros_like(residual)


def _of_frames(
    contact: ContactModel,
    kind: FrameRows,
    at: Sequence[int],
    ends: list[list[int]],
    numbers: Tensor,
    motion: BodyMotion,
) -> tuple[Tensor, Tensor, Tensor]:
    """Residuals `[*batch, e, rows]`, Jacobians `[*batch, e, rows, num_tree_dof]` and biases."""
    rotation = select(contact.equality_rotation, at, -4)
    position = select(contact.equality_position, at, -3)
    markers, moved, velocities, accels = [], [], [], []
    for end, bodies in enumerate(ends):
        R = select(motion.pose.rotation, bodies, -3)
        arm = matvec(R, position[..., end, :])
        markers.append(
            Marker(R @ rotation[..., end, :, :], select(motion.pose.position, bodies, -2) + arm)
        )
        turn, shift = select(motion.jacobian, bodies, -3).split(3, -2)
        shift = shift + cross(turn.mT, arm[..., None, :]).mT
        moved.append(torch.cat([turn.expand(shift.shape), shift], -2))
        w, v = select(motion.velocity, bodies, -2).split(3, -1)
        dw, dv = select(motion.accel, bodies, -2).split(3, -1)
        rate = cross(w, arm)
        velocities.append(torch.cat([w.expand(rate.shape), v + rate], -1))
        dv = dv + cross(dw, arm) + cross(w, rate)
        accels.append(torch.cat([dw.expand(dv.shape), dv], -1))
    one, two = markers
    if kind.name == "weld":
        residual, L1, L2, bias = _weld(one, two, numbers[..., :1], velocities)
    else:
        residual = kind.residual(one, two, numbers[..., : len(kind.parameters)])
        L1, L2 = kind.maps(one, two)
        bias = kind.bias(one, two, velocities[0], velocities[1])
    bias = matvec(L1, accels[0]) + matvec(L2, accels[1]) + bias
    return residual, L1 @ moved[0] + L2 @ moved[1], bias


def _weld(
    one: Marker, two: Marker, scale: Tensor, velocities: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Residual `[*batch, e, 6]`, its maps L1 and L2, `[*batch, e, 6, 6]`, and the bias of the maps."""
    q = matrix_to_quaternion(one.rotation.mT @ two.rotation)
    w, v = q[..., :1], q[..., 1:]
    unit = torch.eye(3, dtype=q.dtype, device=q.device)
    turn = scale[..., None] / 2 * (w[..., None] * unit - skew(v)) @ one.rotation.mT
    zero = torch.zeros_like(turn)
    L2 = torch.cat(
        [torch.cat([turn, zero], -1), torch.cat([zero, unit.expand(turn.shape)], -1)], -2
    )
    residual = torch.cat(torch.broadcast_tensors(scale * v, two.position - one.position), -1)
    w1, w2 = (x[..., :3] for x in velocities)
    spin = matvec(one.rotation.mT, w2 - w1)
    turned = -matvec(one.rotation.mT, cross(w1, w2 - w1))
    w_rate = -(spin * v).sum(-1, keepdim=True) / 2
    v_rate = (w * spin + cross(spin, v)) / 2
    bias = scale / 2 * (w_rate * spin + cross(spin, v_rate) + w * turned + cross(turned, v))
    return residual, -L2, L2, torch.cat([bias, torch.zeros_like(bias)], -1)
