r"""Contacts of a robot with the ground: acceleration constraints and friction cones.

A point contact at a frame with linear Jacobian J requires

.. math::
    J \ddot q = - \dot J \dot q + \omega \times (\omega \times a) - k J \dot q,

with the arm a from the center of all point contacts of its body. A rotating body that touches at several
points cannot have zero acceleration at all of them. The centripetal acceleration relative to their center is
therefore not constrained. The arm of a single contact is zero.

A surface contact is a rectangle around the origin of a frame. It requires this equation of the origin,
without an arm, and its angular counterpart. Its force and moment are those of forces at the four corners that
lie in their friction cones, by the closed form of Caron et al. Lengths in the equations are in units of the
sum of both half lengths, so that forces and moments have equal units, and so have accelerations.

Reference: S. Caron, Q.-C. Pham, Y. Nakamura, *Stability of surface contacts for humanoid robots: closed-form
formulae of the contact wrench cone for rectangular support areas*, IEEE International Conference on Robotics
and Automation, 2015.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.joint_space.gains import (
    Batches,
    check_nonnegative,
    is_nonnegative,
    merge_batches,
)
from torchsko.errors import MechanismError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.placement import check_rotation
from torchsko.mechanism.validation import check_placement
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import broadcast_shapes, concatenate
from torchsko.verbs.frame import Frame, with_frames
from torchsko.verbs.frames import frame_acceleration, frame_jacobian, frame_pose

MEANING = "Friction and damping oppose sliding, so they are not negative."

DEFAULT_FORCE_WEIGHT = 1e-3
"""Weight of the square of forces in units of the robot's weight, which makes internal forces unique."""

Number = float | Tensor


@dataclass(frozen=True, eq=False)
class Contact:
    """A point of the robot in sticking contact with the ground.

    Attributes:
        frame: a name of ``mech.frame_names``, or a `Frame`; its origin is the contact point.
        friction: coefficient of friction; a number, or one for each sample, `[*batch]`.
        axes: rotation `[*batch, 3, 3]` whose third column is the normal of the ground; default: inertial
            axes.
        damping: decay rate of a sliding velocity, a number or `[*batch]` [1/s].
        active: whether the contact exists, bool `[*batch]`, or zero where it does not, as for kernels, whose
            inputs are floats; default: always. Without it the frame moves freely and its force is zero.
        normal_limits: least and largest normal force, each a number or `[*batch]` [N].
        force: reference of the force in inertial axes, `[*batch, 3]` [N]; default: forces of the least norm
            that carry the robot at rest.
        force_weight: weight of the squared deviation from the reference in units of the robot's weight, a
            number or `[*batch]`.

    Raises:
        MechanismError: on friction, damping or weight that is negative or not finite, or an invalid rotation.
    """

    frame: str | Frame
    friction: Number = 0.7
    axes: Tensor | None = None
    damping: Number = 20.0
    active: Tensor | None = None
    normal_limits: tuple[Number, Number] | None = None
    force: Tensor | None = None
    force_weight: Number = DEFAULT_FORCE_WEIGHT

    def __post_init__(self) -> None:
        """Check the numbers and the axes."""
        of_squares = "Weights of squares are not negative."
        for name, example, meaning in (
            ("friction", 0.7, MEANING), ("damping", 20.0, MEANING), ("force_weight", 1e-3, of_squares),
        ):  # fmt: skip
            value = getattr(self, name)
            if not is_nonnegative(value):
                raise MechanismError(
                    f"the {name} of the contact at {self.frame!r} is {value!r}.",
                    meaning,
                    f"Pass {name}={example}, say.",
                )
        check_rotation(f"axes of the contact at {self.frame!r}", self.axes)

    @property
    def num_rows(self) -> int:
        """Number of components of the force."""
        return 3

    def cone(self, like: Tensor) -> Tensor:
        """Rows times forces <= 0: the inscribed pyramid of the friction cone, `[*batch, rows, num_rows]`."""
        mu = _rows_of(self.friction, like) / math.sqrt(2)
        return like.new_tensor(SIDES) - mu[..., None] * like.new_tensor([0.0, 0.0, 1.0])


@dataclass(frozen=True, eq=False)
class SurfaceContact(Contact):
    """A rectangle of the robot in sticking contact with the ground, such as a sole.

    Attributes:
        frame: see `Contact`; its origin is the center of the rectangle.
        friction, damping, active, normal_limits, force, force_weight: see `Contact`.
        axes: rotation `[*batch, 3, 3]` whose columns are the directions of both sides and the normal of the
            ground; default: the axes of the frame.
        half_lengths: half of both sides, each a number or `[*batch]` [m]; their sum is positive.
    """

    half_lengths: tuple[Number, Number] = field(kw_only=True)

    @property
    def num_rows(self) -> int:
        """Number of components of force and moment."""
        return 6

    @property
    def unit_length(self) -> Number:
        """The unit of lengths in the equations."""
        return self.half_lengths[0] + self.half_lengths[1]

    def cone(self, like: Tensor) -> Tensor:
        """Rows times [force; moment] <= 0.

        Reference: Caron et al. 2015, equations 22 to 27.
        """
        mu = _rows_of(self.friction, like) / math.sqrt(2)
        X, Y = (_rows_of(x / self.unit_length, like) for x in self.half_lengths)
        one, zero = torch.ones_like(mu + X), torch.zeros_like(mu + X)
        rows = [(s * one, zero, -mu, zero, zero, zero) for s in (1, -1)]
        rows += [(zero, s * one, -mu, zero, zero, zero) for s in (1, -1)]
        rows += [(zero, zero, -Y, s * one, zero, zero) for s in (1, -1)]
        rows += [(zero, zero, -X, zero, s * one, zero) for s in (1, -1)]
        for s, t, way in product((1, -1), repeat=3):
            # The yaw moment is limited by the friction that the forces and the other moments leave.
            rows.append((s * Y, t * X, -mu * (X + Y), way * s * mu, way * t * mu, way * one))
        shape = broadcast_shapes(*(x.shape for row in rows for x in row))
        return torch.cat([torch.stack([x.expand(shape) for x in row], -1) for row in rows], -2)


SIDES = ((1.0, 0.0, 0.0), (-1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, -1.0, 0.0))
"""Directions in the contact plane in which the inscribed pyramid of a friction cone bounds the force."""


def _rows_of(x: Number, like: Tensor) -> Tensor:
    """A number as `[*batch, 1]`."""
    return x[..., None] if isinstance(x, Tensor) else like.new_tensor([x])


def contact_batches(mech: Mechanism, contacts: Sequence[Contact]) -> Batches:
    """Batch dimensions of the tensors of contacts."""
    batches: Batches = {}
    for contact in contacts:
        at, meaning = f"of the contact at {contact.frame!r}", "It belongs to one contact."
        for name, shape in (("axes", (3, 3)), ("force", (3,)), ("active", ())):
            what, x = f"{name} {at}", getattr(contact, name)
            if name == "active" and isinstance(x, Tensor):
                x = x.to(mech.dtype)
            batch = check_placement(mech, what, x, shape, meaning)
            batches = merge_batches(batches, {f"the {what}": batch})
        numbers = {name: getattr(contact, name) for name in ("friction", "damping", "force_weight")}
        if isinstance(contact, SurfaceContact):
            numbers |= {f"half_lengths[{k}]": x for k, x in enumerate(contact.half_lengths)}
        for name, x in numbers.items():
            what = f"{name} {at}"
            size = check_nonnegative(mech, what, x, MEANING, "a number")
            batches = merge_batches(batches, {f"the {what}": size})
    return batches


class ContactRows(NamedTuple):
    """The equations of all contacts, c rows in total.

    Attributes:
        J: `[*batch, c, num_dof]` in contact axes; J* maps forces to joint forces.
        acceleration: required J qdd, `[*batch, c]`.
        axes: of each contact, `[*batch, 3, 3]`, or None for inertial axes.
    """

    J: Tensor
    acceleration: Tensor
    axes: list[Tensor | None]


def contact_rows(
    mech: Mechanism, q: Tensor, qd: Tensor, contacts: Sequence[Contact]
) -> ContactRows:
    """The equations of all contacts; those that are not active are zero."""
    if not contacts:
        empty = q.new_zeros(*broadcast_shapes(q.shape[:-1], mech.batch_shape), 0)
        return ContactRows(empty[..., None].expand(*empty.shape, mech.num_dof), empty, [])
    frames, zero = [contact.frame for contact in contacts], torch.zeros_like(qd)
    pose = frame_pose(mech, q, frames)
    jacobians = frame_jacobian(mech, q, frames, reference="mixed")
    bias = frame_acceleration(mech, q, qd, zero, frames, reference="mixed", classical=True)
    velocity = (jacobians @ qd[..., None, :, None])[..., 0]
    omega = velocity[..., :3]
    centripetal = cross(omega, cross(omega, _arms(mech, q, pose.position, contacts)))
    rows, targets, axes = [], [], []
    for i, contact in enumerate(contacts):
        k = _rows_of(contact.damping, q)
        target = -bias[..., i, :] - k * velocity[..., i, :]
        parts = [(jacobians[..., i, 3:, :], target[..., 3:] + centripetal[..., i, :])]
        is_surface = isinstance(contact, SurfaceContact)
        R = pose.rotation[..., i, :, :] if is_surface and contact.axes is None else contact.axes
        if is_surface:
            unit = _rows_of(contact.unit_length, q)
            parts.append((unit[..., None] * jacobians[..., i, :3, :], unit * target[..., :3]))
        for J, a in parts:
            J, a = J if R is None else R.mT @ J, a if R is None else (R.mT @ a[..., None])[..., 0]
            rows.append(_masked(contact, J, 2))
            targets.append(_masked(contact, a, 1))
        axes.append(R)
    return ContactRows(concatenate(rows, -2), concatenate(targets), axes)


def _masked(contact: Contact, x: Tensor, ndim: int) -> Tensor:
    """A tensor with these dimensions behind the batch, zero where a contact is not active."""
    if contact.active is None:
        return x
    return torch.where(contact.active.bool()[(..., *(None,) * ndim)], x, 0.0)


def _arms(mech: Mechanism, q: Tensor, r: Tensor, contacts: Sequence[Contact]) -> Tensor:
    """Vectors from the center of all point contacts of a body to each of them, `[*batch, c, 3]`."""
    extended, numbers = with_frames(mech, [contact.frame for contact in contacts], q=q)
    bodies = [extended.frame_body[k] for k in numbers]
    group = [
        -1 - k if isinstance(contact, SurfaceContact) else body
        for k, (contact, body) in enumerate(zip(contacts, bodies, strict=True))
    ]
    group = torch.tensor(group, device=q.device)
    same_body = (group[:, None] == group).to(q.dtype)
    return r - (same_body / same_body.sum(-1, keepdim=True)) @ r


class ForceBounds(NamedTuple):
    """Bounds of the forces `[*batch, c]` of all contacts, in units of the robot's weight.

    Attributes:
        normal: rows of the limited normal forces, `[*batch, m, c]`.
        least: `[*batch, m]`.
        largest: `[*batch, m]`; inf at contacts that are not active.
        cones: rows times forces <= `cone_limits`, `[*batch, p, c]`.
        cone_limits: 0, or inf at contacts that are not active, `[*batch, p]`.
    """

    normal: Tensor
    least: Tensor
    largest: Tensor
    cones: Tensor
    cone_limits: Tensor


def force_bounds(contacts: Sequence[Contact], weight: Tensor) -> ForceBounds:
    """The bounds of all contacts.

    Args:
        contacts: the contacts.
        weight: of the robot, `[*batch, 1]` [N].
    """
    total, first = sum(contact.num_rows for contact in contacts), 0
    empty, like = weight.new_zeros(0, total), weight.new_zeros(1)
    normal, least, largest, cones, limits = [empty], [like[:0]], [like[:0]], [empty], [like[:0]]
    for contact in contacts:
        place = (first, total - first - contact.num_rows)
        first += contact.num_rows
        cones.append(torch.nn.functional.pad(contact.cone(weight), place))
        limits.append(_unlimited(contact, like.expand(cones[-1].shape[-2])))
        if contact.normal_limits is not None:
            row = like.new_tensor([[0.0, 0.0, 1.0, *(0.0,) * (contact.num_rows - 3)]])
            normal.append(torch.nn.functional.pad(row, place))
            low, high = (_rows_of(x, weight) / weight for x in contact.normal_limits)
            least.append(-_unlimited(contact, -low))
            largest.append(_unlimited(contact, high))
    return ForceBounds(
        concatenate(normal, -2),
        concatenate(least),
        concatenate(largest),
        concatenate(cones, -2),
        concatenate(limits),
    )


def _unlimited(contact: Contact, x: Tensor) -> Tensor:
    """Limits `[*batch, k]`, infinite where a contact is not active."""
    if contact.active is None:
        return x
    return torch.where(contact.active.bool()[..., None], x, torch.inf)


def reference_forces(
    contacts: Sequence[Contact], rows: ContactRows, weight: Tensor, default: Tensor
) -> tuple[Tensor, Tensor]:
    """References of forces in units of the robot's weight, and their weights, `[*batch, c]` each.

    Args:
        contacts: the contacts.
        rows: their equations.
        weight: of the robot, `[*batch, 1]` [N].
        default: references of contacts without their own, `[*batch, c]`.
    """
    references, weights, first = [default[..., :0]], [weight[..., :0]], 0
    for contact, R in zip(contacts, rows.axes, strict=True):
        count = contact.num_rows
        reference = default[..., first : first + count]
        first += count
        if contact.force is not None:
            f = contact.force if R is None else (R.mT @ contact.force[..., None])[..., 0]
            reference = torch.nn.functional.pad(f / weight, (0, count - 3))
        references.append(reference)
        w = _rows_of(contact.force_weight, weight)
        weights.append(w.expand(*w.shape[:-1], count))
    return concatenate(references), concatenate(weights)


def in_inertial_axes(
    contacts: Sequence[Contact], rows: ContactRows, forces: Tensor
) -> tuple[Tensor, Tensor]:
    """Forces and moments in inertial axes, `[*batch, contacts, 3]` each, from all components [N]."""
    found, first = [], 0
    for contact, R in zip(contacts, rows.axes, strict=True):
        own = _masked(contact, forces[..., first : first + contact.num_rows], 1)
        first += contact.num_rows
        force, moment = own[..., :3], torch.zeros_like(own[..., :3])
        if isinstance(contact, SurfaceContact):
            moment = _rows_of(contact.unit_length, forces) * own[..., 3:]
        both = torch.stack([force, moment], -1)
        found.append(both if R is None else R @ both)
    if not found:
        force = forces.unflatten(-1, (0, 3))
        return force, force
    force, moment = torch.stack(torch.broadcast_tensors(*found), -3).unbind(-1)
    return force, moment
