"""Rows of the soft constraints of a mechanism at a state, with the contacts last."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.contact.candidate_points import FAR
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.cost import Cones, Rows
from torchsko.contact.equality_rows import BodyMotion, equality_rows
from torchsko.contact.points import Contacts, body_poses, contact_points, select
from torchsko.contact.scalar_rows import (
    Block,
    all_lengths,
    equality_blocks,
    largest_forces,
    limit_block,
    loss_block,
    timing_of,
)
from torchsko.contact.soft_constraints import (
    MIN_VALUE,
    Metric,
    Timing,
    WeightScale,
    scaled_weight,
    softness,
)
from torchsko.mechanism.coordinates import independent_rows, tree_state, uncoupled
from torchsko.mechanism.joints.configuration import transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec
from torchsko.verbs.frames import frame_acceleration, frame_jacobian
from torchsko.verbs.kinematics import Pose


def constraint_rows(
    mech: Mechanism, contact: ContactModel, q: Tensor, qd: Tensor, metric: Metric | None = None
) -> Rows:
    """All constraints of a mechanism.

    They are rows of the accelerations of all joints of the tree, X qdd + xi (see `torchsko.expand`), and are
    returned as rows of those of the independent dofs.

    Args:
        mech: the mechanism.
        contact: its constraints.
        q: `[*batch, num_q]`.
        qd: `[*batch, num_dof]`.
        metric: of a step that adds to the mass matrix.
    """
    tree, (q_tree, qd_tree, bias) = uncoupled(mech), tree_state(mech, q, qd, torch.zeros_like(qd))

    def scaled(invweight: Tensor, jacobian: Tensor) -> Tensor:
        return scaled_weight(invweight, independent_rows(mech, q_tree, jacobian), metric)

    pose = body_poses(tree, q_tree)
    points = contact_points(contact, pose)
    turning = transport_rate(tree, qd_tree, qd_tree)
    motion = _body_motion(tree, contact, pose, (q_tree, qd_tree), turning)
    moves = _tree_moves(mech)
    lengths = all_lengths(mech, contact, q_tree)
    equalities = equality_blocks(
        contact, equality_rows(contact, motion, moves, lengths), qd_tree, scaled
    )
    blocks = [
        *equalities,
        loss_block(contact, lengths, qd_tree, scaled),
        limit_block(mech, contact, q_tree, lengths, qd_tree, scaled),
    ]
    scalar, cones = _contact_blocks(contact, points, motion, moves, qd_tree, scaled)
    blocks += scalar
    batch = torch.broadcast_shapes(*(x.reference.shape[:-1] for x in blocks), qd.shape[:-1])
    weight = torch.cat([x.weight.expand(*batch, x.weight.shape[-1]) for x in blocks], -1)
    made, first = [], weight.shape[-1]
    for block, mu, coefficients in cones:
        count, size = block.weight.shape[-2:]
        made.append(Cones.of(first, block.weight, mu, coefficients))
        blocks.append(
            block._replace(
                jacobian=block.jacobian.flatten(-3, -2), reference=block.reference.flatten(-2)
            )
        )
        first += count * size
    jacobian = torch.cat([x.jacobian.expand(*batch, *x.jacobian.shape[-2:]) for x in blocks], -2)
    reference = torch.cat([x.reference.expand(*batch, x.reference.shape[-1]) for x in blocks], -1)
    # MuJoCo's linear accelerations of free joints are rates of velocities in the inertial axes.
    if turning is not None:
        reference = reference - matvec(jacobian, turning)
    if mech.closing is not None:
        reference = reference - matvec(jacobian, bias)
    moving = torch.cat([x.moving for x in blocks])
    return Rows(
        independent_rows(mech, q_tree, jacobian),
        reference,
        weight,
        largest_forces(mech, contact, sum(x.weight.shape[-1] for x in equalities)),
        tuple(made),
        (moving.to(mech.dtype) @ _rate_structure(mech)) > 0,
    )


def _body_motion(
    tree: Mechanism,
    contact: ContactModel,
    pose: Pose,
    state: tuple[Tensor, Tensor],
    turning: Tensor | None,
) -> BodyMotion:
    """Motion of all bodies at a state of the tree; without equalities accelerations are not needed."""
    q, qd = state
    J = body_jacobians(tree, q)
    velocity = matvec(J, qd[..., None, :])
    if not contact.equality_kinds:
        return BodyMotion(pose, J, velocity, torch.zeros_like(velocity))
    qdd = torch.zeros_like(qd) if turning is None else -turning
    accel = frame_acceleration(tree, q, qd, qdd, tree.body_names, "mixed", classical=True)
    return BodyMotion(pose, J, velocity, torch.nn.functional.pad(accel, (0, 0, 0, 1)))


def body_jacobians(tree: Mechanism, q: Tensor) -> Tensor:
    """[omega; v] of all bodies, then of the inertial frame, in inertial axes, per rate of all dofs."""
    J = frame_jacobian(tree, q, tree.body_names, "mixed")
    return torch.nn.functional.pad(J, (0, 0, 0, 0, 0, 1))


def moving_dofs(mech: Mechanism) -> Tensor:
    """Mask of the dofs that move each body, then the inertial frame, `[num_bodies + 1, num_dof]`, bool."""
    return (_tree_moves(mech).to(mech.dtype) @ _rate_structure(mech)) > 0


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


def _tree_moves(mech: Mechanism) -> Tensor:
    """Mask of the dofs of the tree that move each body, then the inertial frame, bool."""
    rows = [[False] * mech.num_tree_dof for _ in range(mech.num_bodies + 1)]
    for k, name in enumerate(mech.tree_joint_names):
        if mech.parents[k] >= 0:
            rows[k] = list(rows[mech.parents[k]])
        for dof in range(mech.num_tree_dof)[mech.tree_dof_slice(name)]:
            rows[k][dof] = True
    return torch.tensor(rows, dtype=torch.bool, device=mech.device)


def point_jacobians(
    contact: ContactModel, points: Contacts, pose: Pose, jacobians: Tensor
) -> Tensor:
    """Relative motion of the two bodies at contact points in contact axes, `[*batch, C, 6, num_tree_dof]`.

    Rows are the linear motion along the normal and both tangents, and then the angular motion about them.
    """
    total = None
    for end, sign in ((1, 1.0), (0, -1.0)):
        shapes = [contact.pair_shapes[k][end] for k in points.pair]
        bodies = [contact.shape_bodies[k] for k in shapes]
        turn, shift = select(jacobians, bodies, -3).split(3, -2)
        arm = points.position - select(pose.position, bodies, -2)
        shift = shift + cross(turn.mT, arm[..., None, :]).mT
        moved = sign * torch.cat([points.axes @ shift, points.axes @ turn], -2)
        total = moved if total is None else total + moved
    assert total is not None
    return total


def _contact_blocks(
    contact: ContactModel,
    points: Contacts,
    motion: BodyMotion,
    moves: Tensor,
    qd: Tensor,
    scaled: WeightScale,
) -> tuple[list[Block], list[tuple[Block, Tensor, Tensor]]]:
    """Scalar rows, and elliptic cones with their friction coefficients."""
    if not points.pair:
        return [], []
    J = point_jacobians(contact, points, motion.pose, motion.jacobian)
    velocity = matvec(J, qd[..., None, :])
    scalar, cones = [], []
    ends = [contact.pair_shapes[k] for k in points.pair]
    moved = [[contact.shape_bodies[pair[end]] for pair in ends] for end in (0, 1)]
    moving = select(moves, moved[0], 0) | select(moves, moved[1], 0)
    for condim, at in contact.points_by_condim(points.pair).items():
        cone = _Cone.of(contact, points, at, select(moving, at, 0))
        rows, v = select(J, at, -3)[..., :condim, :], select(velocity, at, -2)[..., :condim]
        first = rows[..., 0, :]
        if condim > 1 and contact.options.cone != "elliptic":
            first = first + cone.friction[..., 0, None] * rows[..., 1, :]
        cone = cone._replace(translation=scaled(cone.translation, first))
        if condim == 1:
            scalar.append(cone.frictionless(rows[..., 0, :], v[..., 0]))
        elif contact.options.cone == "elliptic":
            cones.append(cone.elliptic(rows, v))
        else:
            scalar.append(cone.pyramidal(rows, v))
    return scalar, cones


class _Cone(NamedTuple):
    """Parameters of the contacts of one dimension, `[*, C, ...]` each.

    Attributes:
        active: whether the distance is below the margin less the gap.
        distance: distance less margin, zero where inactive [m].
        translation: sum of the inverse masses of both bodies [1/kg].
        friction: five coefficients.
        solref: reference parameters.
        solref_friction: reference parameters of friction.
        solimp: impedance parameters.
        impratio: ratio of the impedances of friction and normal force.
        timing: of the step.
        moving: whether each dof moves the contact, `[C, num_dof]`, bool.
    """

    active: Tensor
    distance: Tensor
    translation: Tensor
    friction: Tensor
    solref: Tensor
    solref_friction: Tensor
    solimp: Tensor
    impratio: float
    timing: Timing
    moving: Tensor

    @staticmethod
    def of(contact: ContactModel, points: Contacts, at: list[int], moving: Tensor) -> _Cone:
        pair = [points.pair[c] for c in at]
        first, second = ([contact.pair_shapes[k][end] for k in pair] for end in (0, 1))
        margin = select(contact.margin - contact.gap, pair, -1)
        distance = select(points.distance, at, -1)
        active = (distance < margin) & (distance < FAR)
        inverse_mass = contact.shape_invweight[..., 0]
        return _Cone(
            active,
            torch.where(active, distance - margin, 0.0),
            select(inverse_mass, first, -1) + select(inverse_mass, second, -1),
            select(contact.friction, pair, -2),
            select(contact.solref, pair, -2),
            select(contact.solref_friction, pair, -2),
            select(contact.solimp, pair, -2),
            contact.options.impratio,
            timing_of(contact),
            moving,
        )

    def _normal(self) -> tuple[Tensor, Tensor, Tensor]:
        """Softness terms k d (r - m) and b, and the regularisation R of the normal row."""
        soft = softness(self.solref, self.solimp, self.distance, self.timing)
        push = soft.stiffness * soft.impedance * self.distance
        return push, soft.damping, soft.regularisation(self.translation)

    def _weight(self, R: Tensor) -> Tensor:
        return torch.where(
            self.active.reshape(*self.active.shape, *(1,) * (R.ndim - self.active.ndim)), 1 / R, 0.0
        )

    def frictionless(self, J: Tensor, v: Tensor) -> Block:
        """One row for each contact."""
        push, damping, R = self._normal()
        return Block(J, -damping * v - push, self._weight(R), self.moving)

    def pyramidal(self, J: Tensor, v: Tensor) -> Block:
        """Two rows for each friction direction, along the edges of a pyramid."""
        condim = J.shape[-2]
        push, damping, R = self._normal()
        mu = self.friction[..., : condim - 1]
        first = mu[..., 0]
        # R is that of the first edge, whose inverse weight includes the square of the coefficient.
        R = R * (1 + first * first)
        R = torch.clamp(2 * first * first / self.impratio * R, min=MIN_VALUE)
        edges, speeds = [], []
        for k in range(condim - 1):
            for sign in (1.0, -1.0):
                edges.append(J[..., 0, :] + sign * mu[..., k, None] * J[..., k + 1, :])
                speeds.append(v[..., 0] + sign * mu[..., k] * v[..., k + 1])
        speed = torch.stack(speeds, -1)
        reference = -damping[..., None] * speed - push[..., None]
        weight = self._weight(R[..., None].expand(speed.shape))
        return Block(
            torch.stack(edges, -2).flatten(-3, -2),
            reference.flatten(-2),
            weight.flatten(-2),
            self._repeated(len(edges)),
        )

    def _repeated(self, count: int) -> Tensor:
        """The dofs that move each of several rows of the contacts."""
        return self.moving[:, None].expand(-1, count, -1).flatten(0, 1)

    def elliptic(self, J: Tensor, v: Tensor) -> tuple[Block, Tensor, Tensor]:
        """Rows of a cone for each contact, the normal first."""
        push, damping, R = self._normal()
        coefficients = self.friction[..., : J.shape[-2] - 1]
        first = coefficients[..., :1]
        sliding = R[..., None] / self.impratio
        R = torch.cat([R[..., None], sliding * first * first / (coefficients * coefficients)], -1)
        own = (self.solref_friction != 0).any(-1, keepdim=True)
        solref = torch.where(own, self.solref_friction, self.solref)
        rate = softness(solref, self.solimp, self.distance, self.timing, friction=True).damping
        reference = torch.cat(
            [(-damping * v[..., 0] - push)[..., None], -rate[..., None] * v[..., 1:]], -1
        )
        mu = coefficients[..., 0] * (R[..., 1] / R[..., 0]).sqrt()
        return Block(J, reference, self._weight(R), self._repeated(J.shape[-2])), mu, coefficients
