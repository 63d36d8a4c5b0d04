"""Rows of the soft constraints of a mechanism at a state, with the contacts last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.body_motions import BodyMotions, tree_moves
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.contact_parameters import ContactParameters
from torchsko.contact.cost import Cones, SoftRows
from torchsko.contact.equality_rows import equality_rows
from torchsko.contact.points import Contacts, all_poses, contact_points, select
from torchsko.contact.row_placements import Between, Grounded, common_length
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
from torchsko.implicit.table_loop import Read, Write, table_loop
from torchsko.mechanism.configuration import transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import broadcast_shapes, concatenate

MIN_GROUNDED = 2
"""Smallest mean number of contacts with the inertial frame per touching body for which stiffnesses of bodies
are cheaper than rows."""


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
        placements=tuple(_independent(state, x) for x in rows.placements),
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
    bodies = BodyMotions.of(state, pose)
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
    for group in _groups(mech, contact, points):
        weigh = None if metric is None else scaled
        contacts.append(_contact_rows(mech, contact, points, group, bodies, qd, first, weigh))
        first += group.num_rows
    references = [x.reference for x in (*blocks, *contacts)]
    moving = torch.cat([x.moving for x in (*blocks, *contacts)]).to(mech.dtype)
    batch = broadcast_shapes(*(x.shape[:-1] for x in references), qd.shape[:-1])
    rows = SoftRows(
        concatenate([x.jacobian for x in blocks], -2, batch),
        concatenate(references, -1, batch),
        concatenate([x.weight for x in blocks], -1, batch),
        largest_forces(mech, contact, sum(x.weight.shape[-1] for x in equalities)),
        tuple(x.cone for x in contacts),
        tuple(x.placement for x in contacts),
        bodies,
        (moving @ _rate_structure(mech)) > 0,
        contact.has_small_friction,
    )
    # MuJoCo's linear accelerations of free joints are rates of velocities in the inertial axes.
    turning = transport_rate(state.tree, qd, qd)
    if turning is None:
        return rows
    return replace(rows, reference=-rows.motion(turning, rows.reference))


class ContactGroup(NamedTuple):
    """Contacts with forces of one dimension, one row of a table for each.

    Attributes:
        at: indices of the contact points.
        pairs: number of the pair of bodies of each contact.
        first: first body of each contact.
        second: second body of each contact.
        condim: dimension of the force, and number of rows of a contact.
        is_grounded: whether the rows are kept as placements of bodies on the inertial frame.
    """

    at: list[int]
    pairs: tuple[int, ...]
    first: list[int]
    second: list[int]
    condim: int
    is_grounded: bool

    @staticmethod
    def of(
        contact: ContactModel, points: Contacts, at: Sequence[int], condim: int, is_grounded: bool
    ) -> ContactGroup:
        """The bodies of contacts."""
        shapes = [contact.pair_shapes[points.pair[c]] for c in at]
        first, second = ([contact.shape_bodies[pair[k]] for pair in shapes] for k in (0, 1))
        count = max(contact.shape_bodies) + 1
        ends = zip(first, second, strict=True)
        pairs = tuple(min(pair) * count + max(pair) for pair in ends)
        return ContactGroup(list(at), pairs, first, second, condim, is_grounded)

    def sorted(self) -> ContactGroup:
        """The group with contacts of the same bodies after each other."""
        order = sorted(range(len(self.at)), key=self.pairs.__getitem__)
        at, pairs, first, second = ([x[k] for k in order] for x in self[:4])
        return self._replace(at=at, pairs=tuple(pairs), first=first, second=second)

    @property
    def num_rows(self) -> int:
        """Number of rows of all contacts."""
        return self.condim * len(self.at)


def _groups(mech: Mechanism, contact: ContactModel, points: Contacts) -> Iterator[ContactGroup]:
    """Groups of all contacts, the grounded ones last."""
    ground, touched = set(), set()
    for c, k in enumerate(points.pair):
        ends = {contact.shape_bodies[x] for x in contact.pair_shapes[k]}
        if mech.num_bodies in ends:
            ground.add(c)
            touched |= ends - {mech.num_bodies}
    if mech.coupling or mech.closing or len(ground) < MIN_GROUNDED * len(touched):
        ground = set()
    for is_grounded in (False, True):
        for condim, at in contact.points_by_condim(points.pair).items():
            selected = [c for c in at if (c in ground) == is_grounded]
            if selected:
                group = ContactGroup.of(contact, points, selected, condim, is_grounded)
                yield group.sorted()


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
    mech: Mechanism, contact: ContactModel, points: Contacts, group: ContactGroup, bodies: BodyMotions,
    qd: Tensor, first: int, scaled: WeightScale | None,
) -> _ContactRows:  # fmt: skip
    """Rows of a group of contacts.

    Args:
        mech: the mechanism.
        contact: parameters.
        points: all contacts.
        group: the contacts.
        bodies: motion of the bodies.
        qd: velocity of the tree.
        first: index of the first row among those of all constraints.
        scaled: see `WeightScale`; None without the metric of a step.
    """
    active = select(points.active, group.at, -1)
    moved = select(bodies.moves, group.first, 0) ^ select(bodies.moves, group.second, 0)
    placed: Grounded | Between
    if group.is_grounded:
        placed = _grounded(points, bodies, group, active)
        v = placed.motion(active, bodies.velocities(qd))
    else:
        placed = _between(mech, points, bodies, group, active)
        v = placed.motion(active, qd)
    parameters = ContactParameters.of(contact, points, group.at, active)
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
    cone, reference = make(first, tuple(group.at), v)
    moving = moved.repeat_interleave(group.condim, 0)
    return _ContactRows(cone, reference.flatten(-2), moving, placed)


def _independent(state: Kinematics, placed: Grounded | Between) -> Grounded | Between:
    """The placement of contacts over independent dofs."""
    mech = state.mech
    if isinstance(placed, Grounded) or not (mech.closing or mech.coupling):
        return placed
    J = state.independent_rows(placed.jacobian.flatten(-3, -2)).unflatten(
        -2, (len(placed.dofs), -1)
    )
    return Between.of((tuple(range(J.shape[-1])),) * len(placed.dofs), J)


def _grounded(
    points: Contacts, bodies: BodyMotions, group: ContactGroup, active: Tensor
) -> Grounded:
    """Placement of contacts with the inertial frame."""
    ground, condim = bodies.moves.shape[0] - 1, group.condim
    sign = active.new_tensor(
        [-1.0 if b == ground else 1.0 for b in group.second], dtype=points.axes.dtype
    )
    moved = tuple(min(pair) for pair in zip(group.first, group.second, strict=True))

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


def _between(
    mech: Mechanism, points: Contacts, bodies: BodyMotions, group: ContactGroup, active: Tensor
) -> Between:
    """Relative motion of the two bodies of contacts in contact axes.

    Rows are the linear motion along the normal and both tangents, and then the angular motion about them.
    """
    first, second, condim = group.first, group.second, group.condim
    moves = bodies.moves.tolist()
    dofs = [
        [d for d, (x, y) in enumerate(zip(moves[i], moves[j], strict=True)) if x != y]
        for i, j in zip(first, second, strict=True)
    ]
    signs = [[1.0 if moves[j][d] else -1.0 for d in x] for x, j in zip(dofs, second, strict=True)]
    if mech.closing or mech.coupling:
        every = range(len(moves[0]))
        signs = [
            [s.get(d, 0.0) for d in every]
            for s in (dict(zip(*x, strict=True)) for x in zip(dofs, signs, strict=True))
        ]
        dofs = [[*every]] * len(group.at)
    table = common_length(dofs)
    sign = points.axes.new_tensor([[*x, *(0.0,) * (len(table[0]) - len(x))] for x in signs])
    moved = [next(b for b, row in enumerate(moves) if row[d]) for d in range(len(moves[0]))]
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
        Read(bodies.columns, -2, table),
        Read(bodies.origin, -2, [[moved[d] for d in x] for x in table]),
        Read(sign, -2),
    ]
    return Between.of(
        table, table_loop(of_contacts, reads, [Write(-3, is_sparse=True)], guarded=True)[0]
    )


def moving_dofs(mech: Mechanism) -> Tensor:
    """Mask of the dofs that move each body, then the inertial frame, `[num_bodies + 1, num_dof]`, bool."""
    return (tree_moves(mech).to(mech.dtype) @ _rate_structure(mech)) > 0


def _rate_structure(mech: Mechanism) -> Tensor:
    """1 where a rate of the tree depends on an independent one, `[num_tree_dof, num_dof]`, else 0."""
    found = torch.eye(mech.num_dof, dtype=mech.dtype, device=mech.device)
    if mech.closing is not None:
        parts = [found]
        for node in mech.closing.nodes:
            inside = (node.columns < node.independent.shape[0]).to(found)
            parts.append(inside.expand(node.dependent.shape[0], -1))
        found = torch.cat(parts).index_select(0, mech.closing.row_place)
    if mech.coupling is not None:
        ones = torch.ones(mech.coupling_ratio.shape[-1], dtype=mech.dtype, device=mech.device)
        found = mech.coupling.tree_rates(found.mT, ones).mT
    return found


def point_jacobians(
    points: Contacts, group: ContactGroup, bodies: BodyMotions, size: int
) -> Tensor:
    """Relative motion of the two bodies at contact points in contact axes, `[*batch, C, size, num_tree_dof]`.

    Rows are the linear motion along the normal and both tangents, and then the angular motion about them.
    Dofs that move both bodies have zeros.
    """
    axes, position = select(points.axes, group.at, -3), select(points.position, group.at, -2)
    by_first, by_second = (select(bodies.moves, x, 0) for x in (group.first, group.second))
    signed = []
    for on, moved in ((group.second, by_second & ~by_first), (group.first, by_first & ~by_second)):
        placement = _placement(axes, position - select(bodies.origin, on, -2))
        signed.append(bodies.rows(placement[..., :size, :], moved))
    return signed[0] - signed[1]


def _placement(axes: Tensor, arm: Tensor) -> Tensor:
    """Motion along and about contact axes at an arm, per velocity at the origin, `[*batch, C, 6, 6]`."""
    linear = torch.cat([cross(arm[..., None, :], axes), axes], -1)
    return torch.cat([linear, torch.nn.functional.pad(axes, (0, 3))], -2)
