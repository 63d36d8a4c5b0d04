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
from torchsko.shapes.candidate_points import Hull, Placed, Points, contact_axes
from torchsko.shapes.registry import COLLISIONS
from torchsko.utils.shapes import matvec


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
    found, axes, pair, dropped, count = [], [], [], [], shapes.position.shape[:-2]
    for group in contact.groups:
        margin = select(contact.margin, group.pairs, -1)
        first, second = _placed_pairs(contact, shapes, group)
        candidates = COLLISIONS[group.kinds].points(first, second)
        points = candidates.deepest(group.max_contacts)
        size = points.distance.shape[-1]
        num = [(x.distance < margin[..., None]).sum(-1) for x in (candidates, points)]
        dropped.append(num[0] - num[1])
        pair += [k for k in group.pairs for _ in range(size)]
        found.append(
            Points(*(x.flatten(-2 - n, -1 - n) for x, n in zip(points, (0, 1, 1, 1), strict=True)))
        )
        axes.append(contact_axes(points).flatten(-4, -3))
    if not found:
        empty = r.new_zeros(*count, 0)
        return Contacts(empty, empty[..., None].expand(*count, 0, 3),
                        empty[..., None, None].expand(*count, 0, 3, 3), (), empty != 0, empty)  # fmt: skip
    order = [k for group in contact.groups for k in group.pairs]
    by_pair = [order.index(k) for k in range(len(order))]
    distance, position, frame, lost = (
        torch.cat([y.expand(*batch, *y.shape[y.ndim - n :]) for y in x], -n)
        for x, n in (
            ([x.distance for x in found], 1), ([x.position for x in found], 2), (axes, 3), (dropped, 1),
        )
        for batch in (torch.broadcast_shapes(*(y.shape[: y.ndim - n] for y in x)),)
    )  # fmt: skip
    margin = select(contact.margin, pair, -1)
    return Contacts(
        distance, position, frame, tuple(pair), distance < margin, select(lost, by_pair, -1)
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
