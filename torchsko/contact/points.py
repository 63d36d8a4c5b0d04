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
from torchsko.implicit.table_loop import Read, Table, Write, is_looped, table_loop
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.candidate_points import FAR, Hull, Placed, contact_axes
from torchsko.shapes.registry import COLLISIONS
from torchsko.utils.shapes import concatenate, matvec

NEAR = 1.01
"""Square of the distance of two balls, over that of the sum of their radii, from which they do not meet."""

IN_BALLS = frozenset(("capsule", "cylinder", "box", "ellipsoid"))
"""Kinds of shapes whose pairs are compared by balls first. The distance to a sphere takes as little time."""


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


def contact_points(contact: ContactModel, pose: Pose, *, of_active: bool = False) -> Contacts:
    """Contact points of bodies at given poses, in the order of the groups of pairs.

    Args:
        contact: shapes and parameters.
        pose: of all bodies, then of the inertial frame.
        of_active: whether only active contacts are read. A kernel computes the distances of all others and
            zeros in place of their points.
    """
    shapes = placed_shapes(contact, pose)
    found: list[Sequence[Tensor]] = []
    count = pose.position.shape[:-2]
    for group in contact.groups:
        points = _points_of_group(contact, shapes, group, of_active)
        flat = zip(points[:-1], (0, 1, 2, 0), strict=True)
        found.append([*(x.flatten(-2 - n, -1 - n) for x, n in flat), points[-1]])
    if not found:
        empty = pose.position.new_zeros(*count, 0)
        return Contacts(empty, empty[..., None].expand(*count, 0, 3),
                        empty[..., None, None].expand(*count, 0, 3, 3), (), empty != 0, empty)  # fmt: skip
    order = [k for group in contact.groups for k in group.pairs]
    by_pair = sorted(range(len(order)), key=order.__getitem__)
    distance, position, axes, active, dropped = (
        concatenate(x, -n) for x, n in zip(zip(*found, strict=True), (1, 2, 3, 1, 1), strict=True)
    )
    return Contacts(
        distance, position, axes, contact.tables.pairs, active, select(dropped, by_pair, -1)
    )


def placed_shapes(contact: ContactModel, pose: Pose) -> Placed:
    """All shapes in the inertial frame."""

    def of_shapes(R: Tensor, r: Tensor, rotation: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        return R @ rotation, r + matvec(R, position)

    reads = [
        Read(pose.rotation, -3, contact.shape_bodies),
        Read(pose.position, -2, contact.shape_bodies),
        Read(contact.shape_rotation, -3),
        Read(contact.shape_position, -2),
    ]
    rotation, position = table_loop(of_shapes, reads, [Write(-3), Write(-2)])
    return Placed(rotation, position, contact.shape_size)


def _points_of_group(
    contact: ContactModel, shapes: Placed, group: PairGroup, of_active: bool
) -> tuple[Tensor, ...]:
    """Distances, positions, axes, whether points are active, and the number of dropped points.

    All but the last one have the dimension of pairs, then that of the points of a pair.
    """
    hull = None if group.hull == NO_DATA else contact.hulls[group.hull]
    first, last = (0, 0) if hull is None else (hull.vertices[0], hull.vertices[-1] + 1)
    vertices = contact.mesh_vertices[..., first:last, :]
    heights = None if group.field == NO_DATA else contact.heights[..., group.field, :, :]
    kinds, most = group.kinds, group.max_contacts

    def of_pairs(margin: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        one, two = Placed(rows[0], rows[1], rows[2]), Placed(rows[3], rows[4], rows[5])
        one = one if heights is None else one._replace(heights=heights)
        two = two if hull is None else two._replace(hull=Hull(vertices, hull))
        candidates = COLLISIONS[kinds].points(one, two)
        points, near = candidates.deepest(most), margin[..., None]
        active = (points.distance < near) & (points.distance < FAR)
        num = [(x.distance < near).sum(-1) for x in (candidates, points)]
        of_points = points.distance, points.position, contact_axes(points), active
        return *of_points, num[0] - num[1], active.sum(-1)

    reads = reads_of_group(contact, shapes, group)
    writes = [Write(-2), Write(-3), Write(-4), Write(-2), Write(-1), Write(-1)]
    if not of_active or not is_looped(shapes.position, len(group.pairs)):
        return table_loop(of_pairs, reads, writes)[:-1]
    if IN_BALLS.issuperset(kinds):
        near = Read(are_near(reads), -1)
        counts = table_loop(
            lambda _, *rows: of_pairs(*rows)[3:], [near, *reads], writes[3:], guarded=True
        )
    else:
        counts = table_loop(lambda *rows: of_pairs(*rows)[3:], reads, writes[3:])
    active, dropped, num_active = (x.detach() for x in counts)

    def of_active_pairs(_: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        return of_pairs(*rows)[:3]

    guard = Read(num_active, -1)
    sparse = [x._replace(is_sparse=True) for x in writes[1:3]]
    found = table_loop(of_active_pairs, [guard, *reads], [writes[0], *sparse], guarded=True)
    return (*found, active, dropped)


def reads_of_group(contact: ContactModel, shapes: Placed, group: PairGroup) -> list[Read]:
    """Margins of pairs; rotations, positions and sizes of the first shapes, then of the second ones."""
    reads = [Read(select(contact.margin, group.pairs, -1), -1)]
    for table in (group.first, group.second):
        fields = zip((shapes.rotation, shapes.position, shapes.size), (-3, -2, -2), strict=True)
        reads += [Read(x, dim, table) for x, dim in fields]
    return reads


def are_near(reads: Sequence[Read]) -> Tensor:
    """True if balls around the shapes of pairs meet within the margin, `[*batch, pairs]`, bool.

    The sum of the half sizes is the radius of a ball around a capsule, and of a larger one around a box, a
    cylinder or an ellipsoid.

    Args:
        reads: those of `reads_of_group`.
    """

    def of_pairs(margin: Tensor, *rows: Tensor) -> tuple[Tensor]:
        between, sizes = rows[0] - rows[2], rows[1] + rows[3]
        reach = sizes.sum(-1) + margin.clamp(min=0.0)
        return ((between * between).sum(-1) < NEAR * reach * reach,)

    return table_loop(of_pairs, [reads[k] for k in (0, 2, 3, 5, 6)], [Write(-1)])[0].detach()


def select(x: Tensor, indices: Sequence[int] | Table, dim: int) -> Tensor:
    """Entries of a dimension by their indices."""
    if isinstance(indices, Table):
        return x.index_select(dim, indices.tensor(x.device))
    return x.index_select(dim, torch.tensor(indices, dtype=torch.int64, device=x.device))
