"""Rows of the soft constraints of a mechanism at a state, with the contacts last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.body_motions import BodyMotions, tree_moves
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.cost import Cones, EllipticCones, Grounded, Pyramids, Rows, of_touching
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
from torchsko.contact.soft_constraints import (
    MIN_VALUE,
    Metric,
    Timing,
    scaled_weight,
    softness,
)
from torchsko.mechanism.configuration import transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.candidate_points import FAR
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import concatenate, matvec

MIN_GROUNDED = 2
"""Smallest mean number of contacts with the inertial frame per touching body for which stiffnesses of bodies
are cheaper than rows."""


def constraint_rows(state: Kinematics, contact: ContactModel, metric: Metric | None = None) -> Rows:
    """All constraints of a mechanism, as rows of the accelerations of the independent dofs.

    Args:
        state: the mechanism at a configuration and velocity.
        contact: its constraints.
        metric: of a step that adds to the mass matrix.
    """
    rows, reference = tree_constraint_rows(state, contact, metric), None
    if state.mech.closing is not None:
        reference = rows.reference - rows.motion(state.tree_accel_bias)
    return replace(
        rows,
        jacobian=state.independent_rows(rows.jacobian),
        reference=rows.reference if reference is None else reference,
    )


def tree_constraint_rows(
    state: Kinematics, contact: ContactModel, metric: Metric | None = None
) -> Rows:
    """All constraints of a mechanism, as rows of the accelerations of all joints of the tree.

    Args:
        state: the mechanism at a configuration and velocity.
        contact: its constraints.
        metric: of a step that adds to the mass matrix, over the independent dofs.
    """
    mech, qd_tree = state.mech, state.tree_qd

    def scaled(invweight: Tensor, jacobian: Tensor) -> Tensor:
        return scaled_weight(invweight, state.independent_rows(jacobian), metric)

    pose = all_poses(state)
    points = contact_points(contact, pose)
    turning = transport_rate(state.tree, qd_tree, qd_tree)
    bodies = BodyMotions.of(state, pose)
    lengths, equalities = all_lengths(state, contact), []
    if contact.equality_kinds:
        found = equality_rows(state, contact, pose, bodies, lengths)
        equalities = equality_blocks(contact, found, qd_tree, scaled)
    blocks = [
        *equalities,
        loss_block(contact, lengths, qd_tree, scaled),
        limit_block(state, contact, lengths, scaled),
    ]
    jacobians, references = [x.jacobian for x in blocks], [x.reference for x in blocks]
    moving = [x.moving for x in blocks]
    cones: list[Cones] = []
    grounded: list[Grounded] = []
    first = sum(x.shape[-1] for x in references)
    for condim, at, is_grounded in _groups(mech, contact, points):
        parameters, J = _ContactParameters.of(contact, points, at), None
        first_moves, second_moves = (select(bodies.moves, x, 0) for x in _ends(contact, points, at))
        moved = first_moves ^ second_moves
        if is_grounded:
            placed = _grounded(contact, points, bodies, at, condim)
            grounded.append(placed)
            v = placed.motion(bodies.velocities(qd_tree))
        else:
            J = point_jacobians(contact, points, at, bodies, condim)
            J = parameters.of_touching(J, 2)
            jacobians.append(J.flatten(-3, -2))
            v = matvec(J, qd_tree[..., None, :])
        is_elliptic = condim > 1 and contact.options.cone == "elliptic"
        if metric is not None:
            J = bodies.rows(grounded[-1].placement, moved) if J is None else J
            edge = (
                0.0 if is_elliptic or condim == 1 else parameters.friction[..., :1] * J[..., 1, :]
            )
            translation = scaled(parameters.translation, J[..., 0, :] + edge)
            parameters = parameters._replace(translation=translation)
        make = parameters.elliptic if is_elliptic else parameters.pyramidal
        cone, reference = make(first, tuple(at), v)
        cones.append(cone)
        reference = parameters.of_touching(reference, 1)
        references.append(reference.flatten(-2))
        moving.append(moved.repeat_interleave(condim, 0))
        first += condim * len(at)
    batch = torch.broadcast_shapes(*(x.shape[:-1] for x in references), qd_tree.shape[:-1])
    rows = Rows(
        concatenate(jacobians, -2, batch),
        concatenate(references, -1, batch),
        concatenate([x.weight for x in blocks], -1, batch),
        largest_forces(mech, contact, sum(x.weight.shape[-1] for x in equalities)),
        tuple(cones),
        tuple(grounded),
        bodies,
        (torch.cat(moving).to(mech.dtype) @ _rate_structure(mech)) > 0,
        contact.has_small_friction,
    )
    # MuJoCo's linear accelerations of free joints are rates of velocities in the inertial axes.
    if turning is None:
        return rows
    return replace(rows, reference=rows.reference - rows.motion(turning))


def _groups(
    mech: Mechanism, contact: ContactModel, points: Contacts
) -> list[tuple[int, list[int], bool]]:
    """Dimension of the force, contact points, and whether they are grounded, the grounded groups last."""
    ground, touched = [], set()
    for c, k in enumerate(points.pair):
        ends = {contact.shape_bodies[x] for x in contact.pair_shapes[k]}
        if mech.num_bodies in ends:
            ground.append(c)
            touched |= ends - {mech.num_bodies}
    if mech.coupling or mech.closing or len(ground) < MIN_GROUNDED * len(touched):
        ground = []
    groups = []
    for is_grounded in (False, True):
        for condim, at in contact.points_by_condim(points.pair).items():
            selected = [c for c in at if (c in ground) == is_grounded]
            # Contacts of the same bodies follow each other.
            selected.sort(key=lambda c: _body_pairs(contact, points, [c]))
            if selected:
                groups.append((condim, selected, is_grounded))
    return groups


def _grounded(
    contact: ContactModel, points: Contacts, bodies: BodyMotions, at: list[int], condim: int
) -> Grounded:
    """Placement of contacts with the inertial frame."""
    ground, ends = bodies.moves.shape[0] - 1, _ends(contact, points, at)
    is_first = [second == ground for second in ends[1]]
    moved = [min(pair) for pair in zip(*ends, strict=True)]
    axes = select(points.axes, at, -3)
    axes = torch.where(torch.tensor(is_first, device=axes.device)[:, None, None], -axes, axes)
    arm = select(points.position, at, -2) - select(bodies.origin, moved, -2)
    return Grounded(tuple(moved), _placement(axes, arm)[..., :condim, :])


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
    contact: ContactModel, points: Contacts, at: Sequence[int], bodies: BodyMotions, size: int
) -> Tensor:
    """Relative motion of the two bodies at contact points in contact axes, `[*batch, C, size, num_tree_dof]`.

    Rows are the linear motion along the normal and both tangents, and then the angular motion about them.
    Dofs that move both bodies have zeros.
    """
    axes = select(points.axes, at, -3)
    first, second = _ends(contact, points, at)
    moved = [select(bodies.moves, end, 0) for end in (first, second)]
    signed = []
    for end, own, other in zip((second, first), moved[::-1], moved, strict=True):
        placement = _placement(
            axes, select(points.position, at, -2) - select(bodies.origin, end, -2)
        )
        signed.append(bodies.rows(placement[..., :size, :], own & ~other))
    return signed[0] - signed[1]


def _ends(
    contact: ContactModel, points: Contacts, at: Sequence[int]
) -> tuple[list[int], list[int]]:
    """First and second bodies of contacts."""
    pairs = [contact.pair_shapes[points.pair[c]] for c in at]
    first, second = ([contact.shape_bodies[pair[k]] for pair in pairs] for k in (0, 1))
    return first, second


def _body_pairs(contact: ContactModel, points: Contacts, at: Sequence[int]) -> tuple[int, ...]:
    """Numbers of the pairs of bodies of contacts."""
    num = max(contact.shape_bodies) + 1
    ends = zip(*_ends(contact, points, at), strict=True)
    return tuple(min(pair) * num + max(pair) for pair in ends)


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
    def of(contact: ContactModel, points: Contacts, at: list[int]) -> _ContactParameters:
        pair = [points.pair[c] for c in at]
        first, second = ([contact.pair_shapes[k][end] for k in pair] for end in (0, 1))
        margin = select(contact.margin, pair, -1)
        distance = select(points.distance, at, -1)
        active = (distance < margin) & (distance < FAR)
        inverse_mass = contact.shape_invweight[..., 0]
        return _ContactParameters(
            _body_pairs(contact, points, at),
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
