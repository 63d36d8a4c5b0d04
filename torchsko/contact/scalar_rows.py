"""Rows of soft equalities, of dry friction and of limits, with their softness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.actuators.actuators import q_of_dof
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.equality_rows import EqualityRows, moving_rows
from torchsko.contact.points import select
from torchsko.contact.softness import Timing, WeightScale, softness
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.candidate_points import unit
from torchsko.spatial.rotation import quaternion_log, unit_quaternion
from torchsko.utils.shapes import broadcast_shapes, concatenate, matvec, norm


class Block(NamedTuple):
    """Rows before they are joined: Jacobian, reference acceleration, weight, and the dofs that move them."""

    jacobian: Tensor
    reference: Tensor
    weight: Tensor
    moving: Tensor


def timing_of(contact: ContactModel) -> Timing:
    """Treatment of the time step by constraints."""
    options = contact.options
    return Timing(options.timestep, options.refsafe, options.end_of_step)


def all_lengths(state: Kinematics, contact: ContactModel) -> tuple[Tensor, Tensor]:
    """All lengths `[*batch, N]`, and their rates per rate of all dofs of the tree."""
    mech = state.mech
    x = select(state.tree_q, q_of_dof(mech), -1)
    transmission = contact.tendon_transmission
    tendons = matvec(transmission, x)
    x = torch.cat([x.expand(*tendons.shape[:-1], -1), tendons], -1)
    return x, _length_rows(mech, transmission)


def _length_rows(mech: Mechanism, transmission: Tensor) -> Tensor:
    """Rates of all lengths over rates of all joints, `[*batch, num_tree_dof + T, num_tree_dof]`."""
    unit = torch.eye(mech.num_tree_dof, dtype=transmission.dtype, device=transmission.device)
    return torch.cat([unit.expand(*transmission.shape[:-2], *unit.shape), transmission], -2)


def largest_forces(mech: Mechanism, contact: ContactModel, num_equal: int) -> Tensor:
    """Largest forces of rows of equalities, which are infinite, and of dry friction, `[*, num_equal + F]`."""
    friction, tendons = mech.friction, contact.tendon_friction
    batch = broadcast_shapes(friction.shape[:-1], tendons.shape[:-1])
    every = torch.cat([x.expand(*batch, x.shape[-1]) for x in (friction, tendons)], -1)
    loss = select(every, contact.loss_dof, -1)
    return torch.nn.functional.pad(loss, (num_equal, 0), value=torch.inf)


def equality_blocks(
    contact: ContactModel, rows: Sequence[EqualityRows], qd: Tensor, scaled: WeightScale
) -> list[Block]:
    """Rows of equalities, one block for each kind."""
    blocks = []
    for x in rows:
        solref, solimp = (
            select(y, x.equality, -2) for y in (contact.equality_solref, contact.equality_solimp)
        )
        soft = softness(solref, solimp, x.size, timing_of(contact))
        mass, inertia = select(contact.equality_invweight, x.equality, -2).unbind(-1)
        is_angular = torch.tensor(x.is_angular, device=qd.device)
        R = soft.regularization(scaled(torch.where(is_angular, inertia, mass), x.jacobian))
        weight = select(contact.equality_active, x.equality, -1) / R
        reference = soft.acceleration(matvec(x.jacobian, qd), x.residual) - x.bias / soft.gain
        blocks.append(Block(x.jacobian, reference, weight, x.moving))
    return blocks


def loss_block(
    contact: ContactModel, lengths: tuple[Tensor, Tensor], qd: Tensor, scaled: WeightScale
) -> Block:
    """Rows of dry friction."""
    J = select(lengths[1], contact.loss_dof, -2)
    v = matvec(J, qd)
    soft = softness(
        contact.loss_solref,
        contact.loss_solimp,
        torch.zeros_like(v),
        timing_of(contact),
        friction=True,
    )
    weight = 1 / soft.regularization(scaled(contact.loss_invweight, J))
    return Block(J, -soft.damping * v, weight, moving_rows(J))


def limit_block(
    state: Kinematics,
    contact: ContactModel,
    lengths: tuple[Tensor, Tensor],
    scaled: WeightScale,
) -> Block:
    """Rows of limits."""
    distance, J, moving = limit_distances(state, contact, lengths)
    distance = distance - contact.limit_margin
    active = distance < 0
    distance = torch.where(active, distance, 0.0)
    soft = softness(contact.limit_solref, contact.limit_solimp, distance, timing_of(contact))
    R = soft.regularization(scaled(contact.limit_invweight, J))
    reference = soft.acceleration(matvec(J, state.tree_qd), distance)
    return Block(J, reference, torch.where(active, 1 / R, 0.0), moving)


def limit_distances(
    state: Kinematics, contact: ContactModel, lengths: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Distances from limits of joints and tendons, each the nearer one or that of one side, and of balls.

    Args:
        state: the mechanism at a configuration.
        contact: its constraints.
        lengths: see `all_lengths`.

    Returns:
        Distances `[*batch, L + B]`, their rates per rate of all dofs `[*batch, L + B, num_tree_dof]`, and the
        dofs that move them, `[L + B, num_tree_dof]`.
    """
    q = state.tree_q
    x, rows = select(lengths[0], contact.limit_dof, -1), select(lengths[1], contact.limit_dof, -2)
    lower, upper = _limits(state.mech, contact)
    below, above = x - lower, upper - x
    side = torch.tensor(contact.limit_side, device=q.device)
    is_low = torch.where(side == 0, below < above, side < 0)
    distance = torch.where(is_low, below, above)
    J = torch.where(is_low, 1.0, -1.0).to(q.dtype)[..., None] * rows
    if not contact.ball_q:
        return distance, J, moving_rows(rows)
    of_balls, J_balls, moving = _ball_distances(contact, q, rows.shape[-1])
    batch = broadcast_shapes(distance.shape[:-1], of_balls.shape[:-1])
    J, J_balls = (y.expand(*batch, *y.shape[-2:]) for y in (J, J_balls))
    distance, of_balls = (y.expand(*batch, y.shape[-1]) for y in (distance, of_balls))
    return (
        torch.cat([distance, of_balls], -1),
        torch.cat([J, J_balls], -2),
        torch.cat([moving_rows(rows), moving]),
    )


def _limits(mech: Mechanism, contact: ContactModel) -> tuple[Tensor, Tensor]:
    """Lower and upper limits of all lengths with limits, `[*, L]`."""
    found = []
    for k, ends in enumerate((mech.lower, mech.upper)):
        every = concatenate((ends, contact.tendon_range[..., k], contact.coupled_range[..., k]))
        found.append(select(every, contact.limit_q, -1))
    return found[0], found[1]


def _ball_distances(
    contact: ContactModel, q: Tensor, num_dof: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotations of ball joints from their neutral orientation, below the largest ones."""
    places = [first + i for first in contact.ball_q for i in range(4)]
    quat = select(q, places, -1).unflatten(-1, (-1, 4))
    turn = quaternion_log(unit_quaternion(quat))
    axis = unit(turn, torch.zeros_like(turn) + turn.new_tensor([1.0, 0.0, 0.0]))
    eye = torch.eye(num_dof, dtype=q.dtype, device=q.device)
    dofs = [first + i for first in contact.ball_dof for i in range(3)]
    columns = select(eye, dofs, -2).unflatten(-2, (-1, 3))
    J = -(axis[..., None, :] @ columns)[..., 0, :]
    return contact.ball_angle - norm(turn), J, columns.any(-2)
