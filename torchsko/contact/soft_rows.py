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
from torchsko.contact.cost import Cones, EllipticCones, Grounded, Pyramids, SoftRows, of_touching
from torchsko.contact.equality_rows import equality_rows
from torchsko.contact.points import Contacts, all_poses, contact_points, select
from torchsko.contact.scalar_rows import (
    all_lengths,
    equality_blocks,
    largest_forces,
    limit_block,
    loss_block,
    timing_of,
)
from torchsko.contact.shape_pairs import MIN_FRICTION
from torchsko.contact.softness import (
    MIN_VALUE,
    Metric,
    Timing,
    WeightScale,
    scaled_weight,
    softness,
)
from torchsko.mechanism.configuration import transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.candidate_points import FAR
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import broadcast_shapes, concatenate, matvec

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
    points, bodies = contact_points(contact, pose), BodyMotions.of(state, pose)
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
        contacts.append(_contact_rows(contact, points, group, bodies, qd, first, weigh))
        first += group.num_rows
    jacobians = [x.jacobian for x in (*blocks, *contacts) if x.jacobian is not None]
    references = [x.reference for x in (*blocks, *contacts)]
    moving = torch.cat([x.moving for x in (*blocks, *contacts)]).to(mech.dtype)
    batch = broadcast_shapes(*(x.shape[:-1] for x in references), qd.shape[:-1])
    rows = SoftRows(
        concatenate(jacobians, -2, batch),
        concatenate(references, -1, batch),
        concatenate([x.weight for x in blocks], -1, batch),
        largest_forces(mech, contact, sum(x.weight.shape[-1] for x in equalities)),
        tuple(x.cone for x in contacts),
        tuple(x.grounded for x in contacts if x.grounded is not None),
        bodies,
        (moving @ _rate_structure(mech)) > 0,
        contact.has_small_friction,
    )
    # MuJoCo's linear accelerations of free joints are rates of velocities in the inertial axes.
    turning = transport_rate(state.tree, qd, qd)
    if turning is None:
        return rows
    return replace(rows, reference=rows.reference - rows.motion(turning))


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
        jacobian: explicit rows, `[*batch, rows, num_tree_dof]`; None of grounded contacts.
        grounded: placement of grounded contacts; None of others.
    """

    cone: Cones
    reference: Tensor
    moving: Tensor
    jacobian: Tensor | None
    grounded: Grounded | None


def _contact_rows(
    contact: ContactModel, points: Contacts, group: ContactGroup, bodies: BodyMotions, qd: Tensor,
    first: int, scaled: WeightScale | None,
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
    parameters = _ContactParameters.of(contact, points, group)
    moved = select(bodies.moves, group.first, 0) ^ select(bodies.moves, group.second, 0)
    grounded = _grounded(points, bodies, group) if group.is_grounded else None
    if grounded is not None:
        J = None
        v = grounded.motion(bodies.velocities(qd))
    else:
        J = parameters.of_touching(point_jacobians(points, group, bodies, group.condim), 2)
        v = matvec(J, qd[..., None, :])
    is_elliptic = group.condim > 1 and contact.options.cone == "elliptic"
    if scaled is not None:
        every = J if grounded is None else bodies.rows(grounded.placement, moved)
        assert every is not None
        edge = every[..., 0, :]
        if not is_elliptic and group.condim > 1:
            edge = edge + parameters.friction[..., :1] * every[..., 1, :]
        translation = scaled(parameters.translation, edge)
        parameters = parameters._replace(translation=translation)
    make = parameters.elliptic if is_elliptic else parameters.pyramidal
    cone, reference = make(first, tuple(group.at), v)
    return _ContactRows(
        cone,
        parameters.of_touching(reference, 1).flatten(-2),
        moved.repeat_interleave(group.condim, 0),
        None if J is None else J.flatten(-3, -2),
        grounded,
    )


def _grounded(points: Contacts, bodies: BodyMotions, group: ContactGroup) -> Grounded:
    """Placement of contacts with the inertial frame."""
    ground = bodies.moves.shape[0] - 1
    moved = [min(pair) for pair in zip(group.first, group.second, strict=True)]
    axes = select(points.axes, group.at, -3)
    is_first = torch.tensor([second == ground for second in group.second], device=axes.device)
    axes = torch.where(is_first[:, None, None], -axes, axes)
    arm = select(points.position, group.at, -2) - select(bodies.origin, moved, -2)
    return Grounded(tuple(moved), _placement(axes, arm)[..., : group.condim, :])


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


class _ContactParameters(NamedTuple):
    """Parameters of the contacts of one dimension, `[*, C, ...]` each.

    Attributes:
        pairs: number of the pair of bodies of each contact.
        active: whether the distance is below the margin.
        distance: distance less margin, zero where inactive [m].
        translation: sum of the inverse masses of both bodies [1/kg].
        friction: five coefficients.
        solref: reference parameters.
        solref_friction: reference parameters of friction.
        solimp: impedance parameters.
        impratio: ratio of the impedances of friction and normal force.
        timing: of the step.
    """

    pairs: tuple[int, ...]
    active: Tensor
    distance: Tensor
    translation: Tensor
    friction: Tensor
    solref: Tensor
    solref_friction: Tensor
    solimp: Tensor
    impratio: float
    timing: Timing

    @staticmethod
    def of(contact: ContactModel, points: Contacts, group: ContactGroup) -> _ContactParameters:
        pair = [points.pair[c] for c in group.at]
        first, second = ([contact.pair_shapes[k][end] for k in pair] for end in (0, 1))
        margin = select(contact.margin, pair, -1)
        distance = select(points.distance, group.at, -1)
        active = (distance < margin) & (distance < FAR)
        inverse_mass = contact.shape_invweight[..., 0]
        return _ContactParameters(
            group.pairs,
            active,
            torch.where(active, distance - margin, 0.0),
            select(inverse_mass, first, -1) + select(inverse_mass, second, -1),
            select(contact.friction, pair, -2).clamp(min=MIN_FRICTION),
            select(contact.solref, pair, -2),
            select(contact.solref_friction, pair, -2),
            select(contact.solimp, pair, -2),
            contact.options.impratio,
            timing_of(contact),
        )

    def _normal(self) -> tuple[Tensor, Tensor, Tensor]:
        """Softness terms k d (r - m) and b, and the regularisation R of the normal row."""
        soft = softness(self.solref, self.solimp, self.distance, self.timing)
        push = soft.stiffness * soft.impedance * self.distance
        return push, soft.damping, soft.regularisation(self.translation)

    def _of_active(self, x: Tensor, num_dims: int) -> Tensor:
        """Values `[*batch, C, *dims]` of active contacts, zeros for others."""
        x = torch.where(self.active[(..., *(None,) * num_dims)], x, 0.0)
        return self.of_touching(x, num_dims)

    def of_touching(self, x: Tensor, num_dims: int) -> Tensor:
        """Values `[*batch, C, *dims]` of pairs of bodies that touch, as by the function `of_touching`."""
        return of_touching(x, self.active, self.pairs, num_dims)

    def pyramidal(self, first: int, points: tuple[int, ...], v: Tensor) -> tuple[Cones, Tensor]:
        """Pyramids, or contacts without friction, and their reference accelerations `[*batch, C, size]`."""
        push, damping, R = self._normal()
        mu = self.friction[..., : v.shape[-1] - 1]
        if mu.shape[-1]:
            # R is that of the first edge, whose inverse weight includes the square of the coefficient.
            square = mu[..., 0] * mu[..., 0]
            R = torch.clamp(2 * square / self.impratio * (R * (1 + square)), min=MIN_VALUE)
        cone = Pyramids(first, points, self.pairs, self._of_active(1 / R, 0), mu)
        return cone, _reference(v, push, damping, damping)

    def elliptic(self, first: int, points: tuple[int, ...], v: Tensor) -> tuple[Cones, Tensor]:
        """Elliptic cones, and their reference accelerations `[*batch, C, size]`."""
        push, damping, R = self._normal()
        coefficients = self.friction[..., : v.shape[-1] - 1]
        sliding = R[..., None] / self.impratio
        square = coefficients[..., :1] * coefficients[..., :1]
        R = torch.cat([R[..., None], sliding * square / (coefficients * coefficients)], -1)
        own = (self.solref_friction != 0).any(-1, keepdim=True)
        solref = torch.where(own, self.solref_friction, self.solref)
        rate = softness(solref, self.solimp, self.distance, self.timing, friction=True).damping
        mu = coefficients[..., 0] * (R[..., 1] / R[..., 0]).sqrt()
        weight = self._of_active(1 / R, 1)
        cone = EllipticCones.of(first, points, self.pairs, weight, mu, coefficients)
        return cone, _reference(v, push, damping, rate)


def _reference(v: Tensor, push: Tensor, damping: Tensor, sliding: Tensor) -> Tensor:
    """Reference accelerations for velocities, with the damping of normal and sliding rows."""
    normal = -damping * v[..., 0] - push
    return concatenate((normal[..., None], -sliding[..., None] * v[..., 1:]))
