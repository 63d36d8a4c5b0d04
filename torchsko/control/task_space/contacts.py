r"""Point contacts of a robot with the ground: acceleration constraints and friction cones.

A contact at a frame with linear Jacobian J requires

.. math::
    J \ddot q = - \dot J \dot q + \omega \times (\omega \times a) - k J \dot q,

with the arm a from the center of all contacts of its body. A rotating body that touches at several points
cannot have zero acceleration at all of them. The centripetal acceleration relative to their center is
therefore not constrained. The arm of a single contact is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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

PYRAMID_DIRECTIONS = ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))
"""Directions in the contact plane in which the inscribed pyramid of a friction cone bounds the force."""


@dataclass(frozen=True, eq=False)
class Contact:
    """A point of the robot in sticking contact with the ground.

    Attributes:
        frame: a name of ``mech.frame_names``, or a `Frame`; its origin is the contact point.
        friction: coefficient of friction; a number, or one for each sample, `[*batch]`.
        axes: rotation `[*batch, 3, 3]` whose third column is the normal of the ground; default: inertial
            axes.
        damping: decay rate of a sliding velocity, a number or `[*batch]` [1/s].

    Raises:
        MechanismError: on friction or damping that is negative or not finite, or an invalid rotation.
    """

    frame: str | Frame
    friction: float | Tensor = 0.7
    axes: Tensor | None = None
    damping: float | Tensor = 20.0

    def __post_init__(self) -> None:
        """Check the numbers and the axes."""
        for name, example in (("friction", 0.7), ("damping", 20.0)):
            value = getattr(self, name)
            if not is_nonnegative(value):
                raise MechanismError(
                    f"the {name} of the contact at {self.frame!r} is {value!r}.",
                    f"{MEANING}",
                    f"Pass {name}={example}, say.",
                )
        check_rotation(f"axes of the contact at {self.frame!r}", self.axes)


def contact_batches(mech: Mechanism, contacts: Sequence[Contact]) -> Batches:
    """Batch dimensions of the tensors of contacts."""
    batches: Batches = {}
    for contact in contacts:
        at = f"of the contact at {contact.frame!r}"
        axes = check_placement(mech, f"axes {at}", contact.axes, (3, 3))
        batches = merge_batches(batches, {f"the axes {at}": axes})
        for name in ("friction", "damping"):
            x, what = getattr(contact, name), f"{name} {at}"
            size = check_nonnegative(mech, what, x, MEANING, "a number")
            batches = merge_batches(batches, {f"the {what}": size})
    return batches


def contact_rows(
    mech: Mechanism, q: Tensor, qd: Tensor, contacts: Sequence[Contact]
) -> tuple[Tensor, Tensor]:
    """J of all contacts in their axes, `[*batch, 3 c, num_dof]`, and the required acceleration J qdd."""
    if not contacts:
        empty = q.new_zeros(*broadcast_shapes(q.shape[:-1], mech.batch_shape), 0)
        return empty[..., None].expand(*empty.shape, mech.num_dof), empty
    frames, zero = [contact.frame for contact in contacts], torch.zeros_like(qd)
    jacobians = frame_jacobian(mech, q, frames, reference="mixed")
    bias = frame_acceleration(mech, q, qd, zero, frames, reference="mixed", classical=True)[..., 3:]
    omega, velocity = (jacobians @ qd[..., None, :, None])[..., 0].split(3, -1)
    bias = bias - cross(omega, cross(omega, _arms(mech, q, frames)))
    rows, targets = [], []
    for i, contact in enumerate(contacts):
        k = contact.damping[..., None] if isinstance(contact.damping, Tensor) else contact.damping
        J, target = jacobians[..., i, 3:, :], -bias[..., i, :] - k * velocity[..., i, :]
        rows.append(_in_contact_axes(contact, J))
        targets.append(_in_contact_axes(contact, target[..., None])[..., 0])
    J = torch.cat(torch.broadcast_tensors(*rows), -2)
    return J, torch.cat(torch.broadcast_tensors(*targets), -1)


def _in_contact_axes(contact: Contact, x: Tensor) -> Tensor:
    """Columns in the axes of a contact."""
    return x if contact.axes is None else contact.axes.mT @ x


def _arms(mech: Mechanism, q: Tensor, frames: Sequence[str | Frame]) -> Tensor:
    """Vectors from the center of all frames of a body to each of them, in inertial axes, `[*batch, c, 3]`."""
    extended, numbers = with_frames(mech, frames, q=q)
    body = torch.tensor([extended.frame_body[k] for k in numbers], device=q.device)
    same_body = (body[:, None] == body).to(q.dtype)
    mean = same_body / same_body.sum(-1, keepdim=True)
    r = frame_pose(mech, q, frames).position
    return r - mean @ r


def friction_cones(contacts: Sequence[Contact], like: Tensor) -> Tensor:
    """Rows of the inscribed pyramids of all friction cones: rows times forces <= 0.

    Returns:
        `[*batch, 4 c, 3 c]`.
    """
    sides = torch.nn.functional.pad(like.new_tensor(PYRAMID_DIRECTIONS), (0, 1))
    normal = like.new_tensor([0.0, 0.0, 1.0]) / math.sqrt(2)
    rows, count = [like.new_zeros(0, 3 * len(contacts))], len(contacts)
    for i, contact in enumerate(contacts):
        mu = contact.friction
        mu = mu[..., None, None] if isinstance(mu, Tensor) else mu
        pyramid = sides - mu * normal
        rows.append(torch.nn.functional.pad(pyramid, (3 * i, 3 * (count - 1 - i))))
    return concatenate(rows, -2)


def in_inertial_axes(contacts: Sequence[Contact], forces: Tensor) -> Tensor:
    """Rotate forces `[*batch, 3 c]` from contact axes to inertial axes, `[*batch, c, 3]`."""
    rotated = [
        forces[..., 3 * i : 3 * i + 3]
        if contact.axes is None
        else (contact.axes @ forces[..., 3 * i : 3 * i + 3, None])[..., 0]
        for i, contact in enumerate(contacts)
    ]
    return torch.stack(rotated, -2) if rotated else forces.unflatten(-1, (0, 3))
