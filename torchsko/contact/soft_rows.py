"""Rows of the soft constraints of a mechanism at a state, with the contacts last."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.body_motions import BodyMotions
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.contact_parameters import ContactParameters
from torchsko.contact.contact_tables import ContactGroup
from torchsko.contact.cost import Cones, SoftRows
from torchsko.contact.equality_rows import equality_rows
from torchsko.contact.points import Contacts, all_poses, contact_points, select
from torchsko.contact.row_placements import Between, Grounded
from torchsko.contact.scalar_rows import (
    all_lengths,
    equality_blocks,
    largest_forces,
    limit_block,
    loss_block,
)
from torchsko.contact.softness import (
    Metric,
    WeightScale,
    scaled_weight,
)
from torchsko.implicit.jacobian_products import Tensors
from torchsko.implicit.table_loop import Read, Table, Write, table_loop
from torchsko.mechanism.configuration import transport_rate
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import broadcast_shapes, concatenate


def soft_rows(state: Kinematics, contact: ContactModel, metric: Metric | None = None) -> SoftRows:
    """All constraints of a mechanism, as rows of the accelerations of the independent dofs.

    Args:
        state: the mechanism at a configuration and velocity.
        contact: its constraints.
        metric: of a step that adds to the mass matrix.
    """
    rows, reference = tree_soft_rows(state, contact, metric), None
    if state.mech.closing is not None:
        reference = rows.reference - rows.motion(state.tree_accel_bias)
    return replace(
        rows,
        jacobian=state.independent_rows(rows.jacobian),
        placements=tuple(
            _independent(state, x, group)
            for x, group in zip(rows.placements, contact.tables.groups, strict=True)
        ),
        reference=rows.reference if reference is None else reference,
    )


def tree_soft_rows(
    state: Kinematics, contact: ContactModel, metric: Metric | None = None
) -> SoftRows:
    """All constraints of a mechanism, as rows of the accelerations of all joints of the tree.

    Args:
        state: the mechanism at a configuration and velocity.
        contact: its constraints.
        metric: of a step that adds to the mass matrix, over the independent dofs.
    """
    mech, qd = state.mech, state.tree_qd

    def scaled(invweight: Tensor, jacobian: Tensor) -> Tensor:
        return scaled_weight(invweight, state.independent_rows(jacobian), metric)

    pose = all_poses(state)
    points = contact_points(contact, pose, of_active=True)
    bodies = BodyMotions.of(state, pose, contact.tables.moves, contact.tables.roots)
    lengths, equalities = all_lengths(state, contact), []
    if contact.equality_kinds:
        found = equality_rows(state, contact, pose, bodies, lengths)
        equalities = equality_blocks(contact, found, qd, scaled)
    blocks = [
        *equalities,
        loss_block(contact, lengths, qd, scaled),
        limit_block(state, contact, lengths, scaled),
    ]
    first, contacts = sum(x.reference.shape[-1] for x in blocks), []
    for group in contact.tables.groups:
        weigh = None if metric is None else scaled
        contacts.append(_contact_rows(contact, points, group, bodies, qd, first, weigh))
        first += group.num_rows
    references = [x.reference for x in (*blocks, *contacts)]
    moving = torch.cat([x.moving for x in (*blocks, *contacts)])
    batch = broadcast_shapes(*(x.shape[:-1] for x in references), qd.shape[:-1])
    rows = SoftRows(
        concatenate([x.jacobian for x in blocks], -2, batch),
        concatenate(references, -1, batch),
        concatenate([x.weight for x in blocks], -1, batch),
        largest_forces(mech, contact, sum(x.weight.shape[-1] for x in equalities)),
        tuple(x.cone for x in contacts),
        tuple(x.placement for x in contacts),
        bodies,
        contact.tables.over_independent(moving),
        contact.has_small_friction,
    )
    # MuJoCo's linear accelerations of free joints are rates of velocities in the inertial axes.
    turning = transport_rate(state.tree, qd, qd)
    if turning is None:
        return rows
    return replace(rows, reference=-rows.motion(turning, rows.reference))


class _ContactRows(NamedTuple):
    """Rows of a group of contacts.

    Attributes:
        cone: their friction cones.
        reference: reference accelerations, `[*batch, rows]`.
        moving: dofs that move each row, `[rows, num_tree_dof]`, bool.
        placement: motion of their contact axes.
    """

    cone: Cones
    reference: Tensor
    moving: Tensor
    placement: Grounded | Between


def _contact_rows(
    contact: ContactModel, points: Contacts, group: ContactGroup, bodies: BodyMotions,
    qd: Tensor, first: int, scaled: WeightScale | None,
) -> _ContactRows:  # fmt: skip
    """Rows of a group of contacts.

    Args:
        contact: parameters.
        points: all contacts.
        group: the contacts.
        bodies: motion of the bodies.
        qd: velocity of the tree.
        first: index of the first row among those of all constraints.
        scaled: see `WeightScale`; None without the metric of a step.
    """
    active = select(points.active, group.at, -1)
    moved = torch.tensor(group.moving, device=qd.device)
    placed: Grounded | Between
    if group.grounded is not None:
        placed = _grounded(points, bodies, group, group.grounded, active)
        v = placed.motion(active, bodies.velocities(qd))
    else:
        placed = _between(points, bodies, group, active)
        v = placed.motion(active, qd)
    parameters = ContactParameters.of(contact, points, group, active)
    is_elliptic = group.condim > 1 and contact.options.cone == "elliptic"
    if scaled is not None:
        if isinstance(placed, Between):
            every = placed.dense(qd.shape[-1])
        else:
            every = bodies.rows(placed.placement, moved)
        edge = every[..., 0, :]
        if not is_elliptic and group.condim > 1:
            edge = edge + parameters.friction[..., :1] * every[..., 1, :]
        translation = scaled(parameters.translation, edge)
        parameters = parameters._replace(translation=translation)
    make = parameters.elliptic if is_elliptic else parameters.pyramidal
    cone, reference = make(first, tuple(group.at.index.tolist()), v)
    moving = moved.repeat_interleave(group.condim, 0)
    return _ContactRows(cone, reference.flatten(-2), moving, placed)


def _independent(
    state: Kinematics, placed: Grounded | Between, group: ContactGroup
) -> Grounded | Between:
    """The placement of contacts over independent dofs."""
    if isinstance(placed, Grounded) or group.independent is None or group.independent is group.dofs:
        return placed
    J = state.independent_rows(placed.jacobian.flatten(-3, -2))
    return Between(group.independent, J.unflatten(-2, (-1, group.condim)))


def _grounded(
    points: Contacts, bodies: BodyMotions, group: ContactGroup, moved: Table, active: Tensor
) -> Grounded:
    """Placement of contacts with the inertial frame."""
    condim, sign = group.condim, points.axes.new_tensor(group.sign)

    def of_contacts(_: Tensor, axes: Tensor, at: Tensor, origin: Tensor, sign: Tensor) -> Tensors:
        return (_placement(axes * sign[..., None, None], at - origin)[..., :condim, :],)

    reads = [
        Read(active, -1),
        Read(select(points.axes, group.at, -3), -3),
        Read(select(points.position, group.at, -2), -2),
        Read(bodies.origin, -2, moved),
        Read(sign, -1),
    ]
    return Grounded(
        moved, table_loop(of_contacts, reads, [Write(-3, is_sparse=True)], guarded=True)[0]
    )


def _between(points: Contacts, bodies: BodyMotions, group: ContactGroup, active: Tensor) -> Between:
    """Relative motion of the two bodies of contacts in contact axes.

    Rows are the linear motion along the normal and both tangents, and then the angular motion about them.
    """
    table, condim, sign = group.dofs, group.condim, points.axes.new_tensor(group.sign)
    assert table is not None
    num = min(condim, 3)

    def of_contacts(
        _: Tensor, axes: Tensor, at: Tensor, columns: Tensor, origin: Tensor, sign: Tensor
    ) -> Tensors:
        turn, shift = columns.split(3, -1)
        shift = shift + cross(turn, at[..., None, :] - origin)
        J = axes[..., :num, :] @ shift.mT
        if condim > 3:
            J = torch.cat([J, axes[..., : condim - 3, :] @ turn.mT], -2)
        return (J * sign[..., None, :],)

    reads = [
        Read(active, -1),
        Read(select(points.axes, group.at, -3), -3),
        Read(select(points.position, group.at, -2), -2),
        Read(bodies.columns, -2, table.dofs),
        Read(bodies.origin, -2, group.origins),
        Read(sign, -2),
    ]
    return Between(
        table, table_loop(of_contacts, reads, [Write(-3, is_sparse=True)], guarded=True)[0]
    )


def point_jacobians(points: Contacts, contact: ContactModel, bodies: BodyMotions) -> Tensor:
    """Relative linear motion of both bodies in contact axes, `[*batch, C, 3, num_tree_dof]`.

    Dofs that move both bodies have zeros.
    """
    ends = [[contact.shape_bodies[k] for k in contact.pair_shapes[pair]] for pair in points.pair]
    first, second = zip(*ends, strict=True)
    by_first, by_second = (select(bodies.moves, x, 0) for x in (first, second))
    signed = []
    for on, moved in ((second, by_second & ~by_first), (first, by_first & ~by_second)):
        placement = _placement(points.axes, points.position - select(bodies.origin, on, -2))
        signed.append(bodies.rows(placement[..., :3, :], moved))
    return signed[0] - signed[1]


def _placement(axes: Tensor, arm: Tensor) -> Tensor:
    """Motion along and about contact axes at an arm, per velocity at the origin, `[*batch, C, 6, 6]`."""
    linear = torch.cat([cross(arm[..., None, :], axes), axes], -1)
    return torch.cat([linear, torch.nn.functional.pad(axes, (0, 3))], -2)
