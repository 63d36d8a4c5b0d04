"""Wrenches of contacts and constraints on the bodies that they join.

A constraint between frames exerts a wrench [moment; force] on each of its two ends: L_1* f and L_2* f for
the forces f of its rows, whose velocity is L_1 V_1 + L_2 V_2. Constraints between lengths exert forces along
joints and no wrench.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.body_poses import Pose
from torchsko.constraints.row_kinds import FrameRows, JointRows, Marker
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.equality_rows import markers_of
from torchsko.contact.points import Contacts, select
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import concatenate, matvec
from torchsko.verbs.held.held_rows import HeldRows


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
    names, bodies, positions, wrenches, first = [], [], [], [], 0
    for kind, at in contact.equalities_by_kind().items():
        f = forces[..., first : first + kind.num_rows * len(at)].unflatten(-1, (len(at), -1))
        first += kind.num_rows * len(at)
        if isinstance(kind, FrameRows):
            one, two = markers_of(contact, at, pose)
            numbers = select(contact.equality_numbers, at, -2)[..., : len(kind.parameters)]
            maps = kind.maps(one.marker, two.marker, numbers)
            names += [contact.equality_names[k] for k in at]
            bodies += [body for k in at for body in contact.equality_ends[k]]
            positions.append(
                torch.stack([x.marker.position for x in (one, two)], -2).flatten(-3, -2)
            )
            of_ends = torch.stack([matvec(L.mT, f) for L in maps], -2)
            wrenches.append(of_ends.flatten(-3, -2))
    return EndWrenches(
        tuple(names), tuple(bodies), concatenate(positions, -2), concatenate(wrenches, -2)
    )


def scalar_forces(contact: ContactModel, forces: Tensor) -> dict[str, Tensor]:
    """Forces of soft equalities between joints or tendons by name, `[*batch, 1]` each.

    Args:
        contact: the equalities.
        forces: of all rows, those of equalities first, `[*batch, r]`.
    """
    found, first = {}, 0
    for kind, at in contact.equalities_by_kind().items():
        if isinstance(kind, JointRows):
            for k, place in enumerate(at):
                found[contact.equality_names[place]] = forces[..., first + k : first + k + 1]
        first += kind.num_rows * len(at)
    return found


def exact_ends(rows: HeldRows, tree: Mechanism, pose: Pose, forces: Tensor) -> EndWrenches:
    """Wrenches of held frames and of loops.

    Args:
        rows: the constraints.
        tree: the mechanism without couplings and loops.
        pose: poses of all bodies, then of the inertial frame.
        forces: of all rows, `[*batch, r]`.
    """
    numbers, kinds = rows.numbers(tree), [link.kind for link in rows.structure.links]
    parameters = numbers.parameters.split([len(kind.parameters) for kind in kinds], -1)
    parts = forces.split([kind.num_rows for kind in kinds], -1)
    names, bodies, positions, wrenches = [], [], [], []
    for link, constraint, f, x in zip(
        rows.structure.links, rows.constraints, parts, parameters, strict=True
    ):
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
        wrenches += [
            matvec(L.mT, f)[..., None, :] for L in link.kind.maps(markers[0], markers[1], x)
        ]
    if not bodies:
        none = forces.new_zeros(0, 6)
        return EndWrenches((), (), none[:, :3], none)
    return EndWrenches(
        tuple(names), tuple(bodies), concatenate(positions, -2), concatenate(wrenches, -2)
    )


def exact_scalar_forces(rows: HeldRows, forces: Tensor) -> dict[str, Tensor]:
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
