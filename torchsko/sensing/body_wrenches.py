"""Wrenches of contacts and constraints on the bodies that they join.

A constraint between frames exerts a wrench [moment; force] on each of its two ends: L_1* f and L_2* f for
the forces f of its rows, whose velocity is L_1 V_1 + L_2 V_2. Constraints between lengths exert forces along
joints and no wrench.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.body_poses import Pose
from torchsko.constraints.constraint_kinds import KINDS
from torchsko.constraints.row_kinds import FrameRows, JointRows, Marker
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.equality_rows import BodyMotion, equality_rows
from torchsko.contact.points import Contacts, select
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import concatenate, matvec
from torchsko.verbs.constrained.hold import ConstraintRows


class EndWrenches(NamedTuple):
    """Wrenches on the ends of constraints between frames, the two ends of a constraint after each other.

    Attributes:
        names: of the c constraints; empty for contacts and held frames.
        bodies: of the ends, 2 c; num_bodies stands for the inertial frame.
        position: of the ends in the inertial frame, `[*batch, 2 c, 3]` [m].
        wrench: [moment; force] on the ends in inertial axes, `[*batch, 2 c, 6]` [N m, N].
    """

    names: tuple[str, ...]
    bodies: tuple[int, ...]
    position: Tensor
    wrench: Tensor

    def on_bodies(self, pose: Pose) -> Tensor:
        """Sum for each body, `[*batch, num_bodies, 6]`, in its frame at its origin.

        Args:
            pose: poses of all bodies, then of the inertial frame.
        """
        count = pose.position.shape[-2] - 1
        R = select(pose.rotation, self.bodies, -3)
        moment, force = self.wrench.split(3, -1)
        moment = moment + cross(self.position - select(pose.position, self.bodies, -2), force)
        local = concatenate([matvec(R.mT, x) for x in (moment, force)], -1)
        is_on = [[float(k == body) for body in self.bodies] for k in range(count)]
        return local.new_tensor(is_on).reshape(count, len(self.bodies)) @ local


def contact_ends(contact: ContactModel, points: Contacts, forces: Tensor) -> EndWrenches:
    """Wrenches of contacts on both shapes.

    Args:
        contact: shapes.
        points: of contact.
        forces: on the second shape in contact axes, `[*batch, C, 6]`.
    """
    bodies = [contact.shape_bodies[k] for pair in points.pair for k in contact.pair_shapes[pair]]
    force, moment = (matvec(points.axes.mT, x) for x in forces.split(3, -1))
    wrench = torch.cat([moment, force], -1)
    return EndWrenches(
        ("",) * len(points.pair),
        tuple(bodies),
        points.position.repeat_interleave(2, -2),
        torch.stack([-wrench, wrench], -2).flatten(-3, -2),
    )


def soft_ends(contact: ContactModel, pose: Pose, forces: Tensor) -> EndWrenches:
    """Wrenches of soft equalities between frames, one at least.

    Args:
        contact: the equalities.
        pose: poses of all bodies, then of the inertial frame.
        forces: of all rows, those of equalities first, `[*batch, r]`.
    """
    framed = [k for k, kind in enumerate(contact.equality_kinds) if is_framed(kind)]
    bodies = [body for k in framed for body in contact.equality_ends[k]]
    count, places = len(bodies), {k: (2 * n, 2 * n + 1) for n, k in enumerate(framed)}
    # With a separate body at each end, the rows per velocity of these bodies are L_1 and L_2.
    at = Pose(select(pose.rotation, bodies, -3), select(pose.position, bodies, -2))
    still = torch.zeros_like(torch.cat([at.position, at.position], -1))
    unit = torch.eye(6 * count, dtype=still.dtype, device=still.device).unflatten(0, (count, 6))
    ends = tuple(places.get(k, (0, 0)) for k in range(len(contact.equality_ends)))
    rows = equality_rows(
        replace(contact, equality_ends=ends),
        BodyMotion(at, unit, still, still),
        torch.ones(count, 1, dtype=torch.bool, device=still.device),
        (still.new_zeros(1), still.new_zeros(1, 6 * count)),
    )
    L = concatenate([x.jacobian for x in rows], -2)
    wrench = matvec(L.mT, forces[..., : L.shape[-2]]).unflatten(-1, (count, 6))
    arm = matvec(at.rotation, select(contact.equality_position, framed, -3).flatten(-3, -2))
    moment, force = wrench.split(3, -1)
    names = tuple(contact.equality_names[k] for k in framed)
    wrench = concatenate([moment - cross(arm, force), force])
    return EndWrenches(names, tuple(bodies), at.position + arm, wrench)


def scalar_forces(contact: ContactModel, forces: Tensor) -> dict[str, Tensor]:
    """Forces of soft equalities between joints or tendons by name, `[*batch, 1]` each.

    Args:
        contact: the equalities.
        forces: of all rows, those of equalities first, `[*batch, r]`.
    """
    found, first = {}, 0
    for kind in dict.fromkeys(contact.equality_kinds):
        for k, of in enumerate(contact.equality_kinds):
            if of == kind:
                if not is_framed(kind):
                    found[contact.equality_names[k]] = forces[..., first : first + 1]
                first += KINDS[kind].num_rows
    return found


def is_framed(kind: str) -> bool:
    """True if a kind of constraint is one between frames."""
    return isinstance(KINDS[kind], FrameRows)


def exact_ends(rows: ConstraintRows, tree: Mechanism, pose: Pose, forces: Tensor) -> EndWrenches:
    """Wrenches of held frames and of loops.

    Args:
        rows: the constraints.
        tree: the mechanism without couplings and loops.
        pose: poses of all bodies, then of the inertial frame.
        forces: of all rows, `[*batch, r]`.
    """
    numbers = rows.numbers(tree)
    names, bodies, positions, wrenches, first = [], [], [], [], 0
    for link, constraint in zip(rows.structure.links, rows.constraints, strict=True):
        f = forces[..., first : first + link.kind.num_rows]
        first += link.kind.num_rows
        if not isinstance(link.kind, FrameRows):
            continue
        markers = []
        for body in link.ends:
            end = len(bodies)
            R = pose.rotation[..., body, :, :]  # of the inertial frame, -1, the last one
            turn = R @ numbers.rotation[..., end, :, :]
            arm = matvec(R, numbers.position[..., end, :])
            markers.append(Marker(turn, pose.position[..., body, :] + arm))
            bodies.append(tree.num_bodies if body < 0 else body)
        names.append(constraint.name if isinstance(constraint, Closure) else "")
        positions += [marker.position[..., None, :] for marker in markers]
        wrenches += [matvec(L.mT, f)[..., None, :] for L in link.kind.maps(*markers)]
    if not bodies:
        none = forces.new_zeros(0, 6)
        return EndWrenches((), (), none[:, :3], none)
    return EndWrenches(
        tuple(names), tuple(bodies), concatenate(positions, -2), concatenate(wrenches, -2)
    )


def exact_scalar_forces(rows: ConstraintRows, forces: Tensor) -> dict[str, Tensor]:
    """Forces of closures between joints by name, `[*batch, 1]` each.

    Args:
        rows: the constraints.
        forces: of all rows, `[*batch, r]`.
    """
    found, first = {}, 0
    for link, constraint in zip(rows.structure.links, rows.constraints, strict=True):
        if isinstance(link.kind, JointRows) and isinstance(constraint, Closure):
            found[constraint.name] = forces[..., first : first + 1]
        first += link.kind.num_rows
    return found
