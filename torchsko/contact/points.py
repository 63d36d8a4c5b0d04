"""Contact points of a mechanism at a configuration: `torchsko.contacts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.body_poses import Pose
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.pair_groups import NO_DATA, PairGroup
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.candidate_points import Hull, Placed, contact_axes
from torchsko.shapes.registry import COLLISIONS
from torchsko.utils.shapes import concatenate, matvec


class Contacts(NamedTuple):
    """Candidate contact points, C of all pairs together; the number is fixed.

    Attributes:
        distance: `[*batch, C]` [m]; negative for a penetration, and 1e10 where there is no point.
        position: in the inertial frame, `[*batch, C, 3]` [m], in the middle between both surfaces.
        axes: rows are the normal, from the first shape to the second, and two tangents,
            `[*batch, C, 3, 3]`.
        pair: index of the pair of each point, among ``ContactModel.pair_names``.
        active: whether the distance is below the margin, `[*batch, C]`, bool.
        dropped: number of points below the margin beyond ``max_contacts`` of each pair, which exert no force,
            `[*batch, P]`.
    """

    distance: Tensor
    position: Tensor
    axes: Tensor
    pair: tuple[int, ...]
    active: Tensor
    dropped: Tensor


@verb
def contacts(mech: Mechanism, q: Tensor, *, contact: ContactModel | None = None) -> Contacts:
    """Distances, positions and axes of all candidate contact points.

    Args:
        contact: shapes and parameters; by default those of the robot file.

    Returns:
        The points, with gradients to q and to sizes and placements of shapes.

    Reference: MuJoCo documentation, "Computation", Collision detection.

    Example:
        >>> import torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 1"><freejoint/>
        ...   <geom size="0.1"/></body></worldbody></mujoco>'''
        >>> ball = ts.load(text)
        >>> ts.contacts(ball, ball.neutral()).distance
        tensor([-0.1000], dtype=torch.float64)
    """
    contact = ContactModel.of(mech) if contact is None else contact
    return contact_points(contact, all_poses(Kinematics.of(mech, q)))


def all_poses(state: Kinematics) -> Pose:
    """Poses of all bodies, then of the inertial frame, `[*batch, num_bodies + 1, ...]`."""
    R, r = state.poses
    eye = torch.eye(3, dtype=r.dtype, device=r.device).expand(*R.shape[:-3], 1, 3, 3)
    return Pose(torch.cat([R, eye], -3), torch.cat([r, torch.zeros_like(r[..., :1, :])], -2))


def contact_points(contact: ContactModel, pose: Pose) -> Contacts:
    """Contact points of bodies at given poses, in the order of the groups of pairs."""
    R, r = (select(x, contact.shape_bodies, -3 + k) for k, x in enumerate(pose))
    shapes = Placed(
        R @ contact.shape_rotation, r + matvec(R, contact.shape_position), contact.shape_size
    )
    if not contact.groups:
        empty = r.new_zeros(*shapes.position.shape[:-2], 0)
        return Contacts(empty, empty[..., None].expand(*empty.shape, 3),
                        empty[..., None, None].expand(*empty.shape, 3, 3), (), empty != 0, empty)  # fmt: skip
    found = [_group_points(contact, shapes, group) for group in contact.groups]
    pair = tuple(k for group in found for k in group.pair)
    distance = concatenate([x.distance for x in found])
    order = [k for group in contact.groups for k in group.pairs]
    dropped = concatenate([x.dropped for x in found])
    return Contacts(
        distance,
        concatenate([x.position for x in found], -2),
        concatenate([x.axes for x in found], -3),
        pair,
        distance < select(contact.margin, pair, -1),
        select(dropped, [order.index(k) for k in range(len(order))], -1),
    )


class _GroupPoints(NamedTuple):
    """Contact points of a group of pairs, with the fields of `Contacts`; dropped is `[*batch, p]`."""

    distance: Tensor
    position: Tensor
    axes: Tensor
    pair: list[int]
    dropped: Tensor


def _group_points(contact: ContactModel, shapes: Placed, group: PairGroup) -> _GroupPoints:
    """The deepest points of each pair of a group, pair by pair."""
    candidates = COLLISIONS[group.kinds].points(*_placed_pairs(contact, shapes, group))
    points = candidates.deepest(group.max_contacts)
    margin = select(contact.margin, group.pairs, -1)[..., None]
    near, kept = ((x.distance < margin).sum(-1) for x in (candidates, points))
    return _GroupPoints(
        points.distance.flatten(-2),
        points.position.flatten(-3, -2),
        contact_axes(points).flatten(-4, -3),
        [k for k in group.pairs for _ in range(points.distance.shape[-1])],
        near - kept,
    )


def _placed_pairs(contact: ContactModel, shapes: Placed, group: PairGroup) -> tuple[Placed, Placed]:
    """First and second shapes of the pairs of a group."""
    first, second = (
        Placed(
            select(shapes.rotation, k, -3),
            select(shapes.position, k, -2),
            select(shapes.size, k, -2),
        )
        for k in (group.first, group.second)
    )
    if group.field != NO_DATA:
        first = first._replace(heights=contact.heights[..., group.field, :, :])
    if group.hull != NO_DATA:
        hull = contact.hulls[group.hull]
        start, stop = hull.vertices[0], hull.vertices[-1] + 1
        second = second._replace(hull=Hull(contact.mesh_vertices[..., start:stop, :], hull))
    return first, second


def select(x: Tensor, indices: Sequence[int], dim: int) -> Tensor:
    """Entries of a dimension by their indices."""
    return x.index_select(dim, torch.tensor(indices, dtype=torch.int64, device=x.device))
