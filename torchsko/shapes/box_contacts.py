"""Contact points of boxes with capsules and boxes, as MuJoCo computes them.

Two boxes touch along the axis of largest separation among the normals of their faces and the common
perpendiculars of their edges. If it is a normal, the face of the other box that opposes it is clipped to the
face. Else the contact is between the nearest points of two edges.

DEPARTS: for two crossing edges whose perpendicular is orthogonal to a normal to 1e-9, MuJoCo tries both edges
of the face.

Reference: S. Gottschalk, M. Lin and D. Manocha, "OBBTree", SIGGRAPH 1996, section 5 (separating axes);
C. Ericson, *Real-Time Collision Detection*, Morgan Kaufmann 2005, sections 5.1.9 and 8.3.4; MuJoCo
documentation, "Computation", Collision detection.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.shapes.candidate_points import FAR, Placed, Points, dot, ratio, take
from torchsko.shapes.capsule import nearest_points
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import MIN_LENGTH, matvec, norm

MIN_SQUARED_SINE = {torch.float32: 1e-7, torch.float64: 1e-16}
"""Squared sine of the angle of two edges below which they are parallel to rounding."""

EDGE_BIAS = 1e-6
"""Part of its separation by which a pair of edges must exceed that of all faces."""

MIN_FACE_COSINE, FACE_DEPTH_RATIO = 0.99, 0.05
"""A face replaces a pair of edges within 8 degrees of its normal whose depth is less by at most 5 percent."""

MIN_SPACING = {torch.float32: 1e-5, torch.float64: 1e-7}
"""Distance below which two points of a face are one, relative to the size of the face."""

ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-13}
"""Part of its size by which a face is larger, so that rounding loses no point of faces that coincide."""

FAR_SIDE = 1e5
"""Limit of places along an edge that is parallel to a side."""

EDGES = tuple(
    (axis, tuple(0.0 if k == axis else (1.0 if corner >> k & 1 else -1.0) for k in range(3)))
    for axis in range(3)
    for corner in range(8)
    if not corner >> axis & 1
)
"""Axis and signs of the center of each edge of a box."""


class _Segment(NamedTuple):
    """Axis of a capsule in the frame of a box.

    Attributes:
        center: `[*batch, p, 3]` [m].
        axis: direction, `[*batch, p, 3]`.
        half: axis times half length, `[*batch, p, 3]` [m].
        size: half edges of the box, `[*batch, p, 3]` [m].
    """

    center: Tensor
    axis: Tensor
    half: Tensor
    size: Tensor


class _Nearest(NamedTuple):
    """Nearest point of a segment to the surface of a box, each `[*batch, p, 1]` or `[*batch, p, 3]`.

    Attributes:
        place: on the segment, in -1 to 1.
        edge_place: on the edge of the box, in -1 to 1.
        is_end: whether an end of the segment is nearest to a face, or in the box.
        is_corner: whether the point of the box is a corner.
        edge: 1 for the axis of the edge, else 0.
        corner: signs of the corner.
        face: 1 for the normal of the face, else 0.
    """

    place: Tensor
    edge_place: Tensor
    is_end: Tensor
    is_corner: Tensor
    edge: Tensor
    corner: Tensor
    face: Tensor


def ball_in_box(center: Tensor, radius: Tensor, box: Placed) -> Points:
    """The point between a ball, whose center is in the frame of a box, and the box."""
    nearest = torch.maximum(torch.minimum(center, box.size), -box.size)
    outward = nearest - center
    length = norm(outward)
    inside = length <= MIN_LENGTH
    depth = box.size - center.abs()
    smallest = depth == depth.amin(-1, keepdim=True)
    first = smallest & (torch.cumsum(smallest.to(torch.int64), -1) == 1)
    face = torch.where(first, -torch.sign(torch.where(center == 0, 1.0, center)), 0.0)
    n = torch.where(inside[..., None], face, outward / torch.where(inside, 1.0, length)[..., None])
    surface = torch.where(inside, -(depth.amin(-1)), length)
    distance = surface - radius
    position = center + n * (radius + distance / 2)[..., None]
    world = box.position + matvec(box.rotation, position)
    return Points.of(distance, world, matvec(box.rotation, n))


def capsule_box(capsule: Placed, box: Placed) -> Points:
    """The nearest point of the capsule's axis, and one more where the axis passes along the box."""
    to_box = box.rotation.mT
    axis = matvec(to_box, capsule.axis)
    center = matvec(to_box, capsule.position - box.position)
    segment = _Segment(center, axis, axis * capsule.size[..., 1, None], box.size)
    nearest = _nearest(segment, capsule.size[..., 1])
    step, exists = _second_place(segment, nearest)
    radius = capsule.size[..., 0]
    first = ball_in_box(segment.center + nearest.place * segment.half, radius, box)
    second = ball_in_box(segment.center + (nearest.place + step) * segment.half, radius, box)
    distance = torch.where(exists[..., 0], second.distance, FAR)
    return Points.stack([first, second._replace(distance=distance)])


def _nearest(segment: _Segment, half: Tensor) -> _Nearest:
    """The nearest of both ends of the segment over faces, and of its points to the twelve edges."""
    like = segment.center
    axes = like.new_tensor([[float(k == axis) for k in range(3)] for axis, _ in EDGES])
    signs = like.new_tensor([sign for _, sign in EDGES])
    size, h = segment.size[..., None, :], segment.half[..., None, :]
    between = signs * size - segment.center[..., None, :]
    along = dot(axes, size)
    found = nearest_points(
        along * along, -along * dot(axes, h), (half * half)[..., None],
        -along * dot(axes, between), dot(h, between),
    )  # fmt: skip
    gap = between - h * found.second[..., None] + axes * (along * found.first)[..., None]
    distance = torch.where(found.parallel, FAR, dot(gap, gap))
    ends = torch.stack([segment.center - segment.half, segment.center + segment.half], -2)
    beyond = ends.abs() > size
    over = torch.where(beyond, ends.abs() - size, 0.0)
    over = torch.where((beyond.sum(-1) > 1), FAR, dot(over, over))
    index = torch.cat([over, distance], -1).argmin(-1, keepdim=True)

    none, zero = torch.zeros_like(over), torch.zeros_like(ends)
    sides = over.new_tensor([-1.0, 1.0]).expand(over.shape)
    every = (*over.shape[:-1], len(EDGES), 3)
    corner = signs + axes * torch.where(found.end > 0, 1.0, -1.0)[..., None]
    bounded = (found.end != 0).to(over.dtype)
    return _Nearest(
        take(torch.cat([sides, found.second], -1), index),
        take(torch.cat([none, found.first], -1), index),
        index < 2,
        take(torch.cat([none, bounded], -1), index) > 0,
        take(torch.cat([zero, axes.expand(every)], -2), index)[..., 0, :],
        take(torch.cat([zero, corner.expand(every)], -2), index)[..., 0, :],
        take(torch.cat([beyond.to(over.dtype), zero[..., :1, :].expand(every)], -2), index)[
            ..., 0, :
        ],
    )


def _second_place(segment: _Segment, nearest: _Nearest) -> tuple[Tensor, Tensor]:
    """Step along the segment to a second point, `[*batch, p, 1]`, and whether that exists."""
    h, size, place = segment.half, segment.size, nearest.place
    reach = ratio(2 * size, h.abs(), FAR)
    direction = torch.where(h > 0, 1.0, -1.0).to(h.dtype)
    match = direction * nearest.corner
    # From a corner: along the edge that the segment is nearest to, or across the face.
    total = match.sum(-1, keepdim=True)
    sign = torch.where(total > 0, 1.0, -1.0).to(h.dtype)
    odd = match * sign < 0
    is_along = torch.where(odd, segment.axis * segment.axis, 0.0).sum(-1, keepdim=True) > 0.5
    on_edge = torch.minimum(1 - sign * place, _least(reach, odd))
    on_face = torch.minimum(1 + sign * place, _least(reach, ~odd))
    from_corner = torch.where(is_along, sign * on_edge, -sign * on_face)
    # From within an edge: across the face that the segment is nearer to.
    a, b = (_across(nearest.edge, k) for k in (1, 2))
    inclination = segment.axis.abs()
    first_larger = (dot(inclination, a) > dot(inclination, b))[..., None]
    main = torch.where(first_larger, a, b)
    mul = -dot(match, main)[..., None]
    edge_sign = mul * dot(direction, nearest.edge)[..., None]
    edge_reach = dot(reach, nearest.edge)[..., None] / 2 * (1 - edge_sign * nearest.edge_place)
    from_edge = torch.minimum(1 - mul * place, dot(reach, main)[..., None])
    from_edge = mul * torch.minimum(from_edge, edge_reach)
    crosses = (dot(match, a) * dot(match, b) < 0)[..., None]
    # From an end over a face: to the other end, or to the border of the face.
    end = segment.center + place * h
    limit = torch.full_like(place, 2.0)
    for side in (1.0, -1.0):
        to_side = ratio(-(side * size - end), place * h, -1.0)
        to_side = torch.where((to_side > 0) & (nearest.face == 0), to_side, FAR)
        limit = torch.minimum(limit, to_side.amin(-1, keepdim=True))
    from_end = -place * limit
    step = torch.where(nearest.is_corner, from_corner, from_edge)
    step = torch.where(nearest.is_end, from_end, step)
    exists = torch.where(nearest.is_corner, total.abs() < 2, crosses)
    over_face = (nearest.face != 0).any(-1, keepdim=True)
    return step, torch.where(nearest.is_end, over_face, exists)


def _least(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x, FAR).amin(-1, keepdim=True)


def _across(edge: Tensor, k: int) -> Tensor:
    """The k-th axis after that of an edge, as 1 and 0."""
    return torch.cat([edge[..., 3 - k :], edge[..., : 3 - k]], -1)


def box_box(first: Placed, second: Placed) -> Points:
    """Points of the clipped face, or the point between two edges."""
    rotation = first.rotation.mT @ second.rotation
    between = second.position - first.position
    offset1, offset2 = (matvec(first.rotation.mT, between), matvec(second.rotation.mT, -between))
    size1, size2 = (torch.broadcast_to(x.size, offset1.shape) for x in (first, second))
    spread = rotation.abs()
    separations = torch.cat(
        [
            offset1.abs() - size1 - matvec(spread, size2),
            offset2.abs() - size2 - matvec(spread.mT, size1),
        ],
        -1,
    )
    face = separations.argmax(-1, keepdim=True)
    axes, edge_separations = _edge_axes(rotation, offset1, size1, size2)
    pair = edge_separations.argmax(-1, keepdim=True)
    axis = take(axes, pair)[..., 0, :]
    normals = torch.cat([torch.eye(3, dtype=axis.dtype, device=axis.device).expand_as(rotation),
                         rotation.mT], -2)  # fmt: skip
    best, least = take(separations, face), take(edge_separations, pair)
    is_near = dot(take(normals, face)[..., 0, :], axis).abs()[..., None] > MIN_FACE_COSINE
    is_near = is_near & (least < best + FACE_DEPTH_RATIO * best.abs())
    is_edge = (least - EDGE_BIAS * least.abs() > best) & ~is_near
    faces = _face_points(first, second, rotation, (offset1, offset2), (size1, size2), face)
    edge = _edge_point(first, rotation, offset1, size1, size2, axis, pair)
    distance = torch.where(is_edge, FAR, faces.distance)
    distance = torch.cat([torch.where(is_edge, edge.distance, FAR), distance], -1)
    return Points.of(
        distance,
        torch.cat([edge.position, faces.position], -2),
        torch.cat([edge.normal, faces.normal], -2),
    )


def _edge_axes(
    rotation: Tensor, offset: Tensor, size1: Tensor, size2: Tensor
) -> tuple[Tensor, Tensor]:
    """Unit perpendiculars of the nine pairs of edges, `[*batch, p, 9, 3]`, and separations along them."""
    eye = torch.eye(3, dtype=rotation.dtype, device=rotation.device)
    batch = rotation.shape[:-2]
    one = eye.repeat_interleave(3, 0).expand(*batch, 9, 3)
    other = torch.cat([rotation.mT] * 3, -2)
    axes = cross(one, other)
    square = dot(axes, axes)
    parallel = square < MIN_SQUARED_SINE[square.dtype]
    axes = axes * torch.where(parallel, 1.0, square).rsqrt()[..., None]
    in_second = axes @ rotation
    separations = (
        matvec(axes, offset).abs() - matvec(axes.abs(), size1) - matvec(in_second.abs(), size2)
    )
    return axes, torch.where(parallel, -FAR, separations)


def _edge_point(
    first: Placed, rotation: Tensor, offset: Tensor, size1: Tensor, size2: Tensor, axis: Tensor,
    pair: Tensor,
) -> Points:  # fmt: skip
    """The point between the two edges that support an axis in the frame of the first box."""
    away = dot(axis, offset)[..., None] < 0
    axis = torch.where(away, -axis, axis)
    eye = torch.eye(3, dtype=axis.dtype, device=axis.device)
    one = take(eye.repeat_interleave(3, 0).expand(*rotation.shape[:-2], 9, 3), pair)[..., 0, :]
    local = take(eye.repeat(3, 1).expand(*rotation.shape[:-2], 9, 3), pair)[..., 0, :]
    two, towards = matvec(rotation, local), matvec(rotation.mT, axis)
    corner1 = torch.where(axis >= 0, size1, -size1) * (1 - one)
    corner2 = torch.where(towards >= 0, -size2, size2) * (1 - local)
    between = offset + matvec(rotation, corner2) - corner1
    reach1, reach2 = dot(size1, one), dot(size2, local)
    along1, along2, b = dot(one, between), dot(two, between), dot(one, two)
    sine = 1 - b * b
    s = ratio(along1 - b * along2, torch.where(sine < MIN_SQUARED_SINE[sine.dtype], 0.0, sine), 0.0)
    s = torch.clamp(s, -reach1, reach1)
    t = torch.clamp(b * s - along2, -reach2, reach2)
    s = torch.clamp(along1 + b * t, -reach1, reach1)
    point1 = corner1 + one * s[..., None]
    gap = between + two * t[..., None] - one * s[..., None]
    middle = first.position + matvec(first.rotation, point1 + gap / 2)
    return Points.stack([Points.of(dot(gap, axis), middle, matvec(first.rotation, axis))])


def _cycled(x: Tensor, axis: Tensor, dim: int) -> Tensor:
    """Entries of a dimension of size 3 in cyclic order such that an axis comes last."""
    orders = [torch.cat([x.narrow(dim, (k + n) % 3, 1) for n in (1, 2, 0)], dim) for k in range(3)]
    return torch.where(axis == 0, orders[0], torch.where(axis == 1, orders[1], orders[2]))


def _face_points(
    first: Placed, second: Placed, rotation: Tensor, offsets: tuple[Tensor, Tensor],
    sizes: tuple[Tensor, Tensor], face: Tensor,
) -> Points:  # fmt: skip
    """Corners of the opposing face of one box clipped to the face of the other box.

    The frame of the clipping has the normal of the face as z, and begins in the center of its box.
    """
    is_first = face < 3
    normal = torch.where(is_first, face, face - 3)
    size = torch.where(is_first, *sizes)
    other = torch.where(is_first, sizes[1], sizes[0])
    center = torch.where(is_first, *offsets)
    axes = torch.where(is_first[..., None], rotation, rotation.mT)
    size, center = _cycled(size, normal, -1), _cycled(center, normal, -1)
    axes = _cycled(axes, normal[..., None], -2)
    side = torch.where(center[..., 2:] >= 0, 1.0, -1.0).to(center.dtype)
    facing = axes[..., 2, :].abs().argmax(-1, keepdim=True)
    axes, other = _cycled(axes, facing[..., None], -1), _cycled(other, facing, -1)
    u, v, w = (axes * other[..., None, :]).unbind(-1)
    # The face that opposes the normal, with heights above the clipping face.
    towards = torch.where(side * w[..., 2:] > 0, -1.0, 1.0).to(w.dtype)
    lift = torch.cat([torch.ones_like(center[..., :2]), side], -1)
    middle = (center + towards * w) * lift
    middle = torch.cat([middle[..., :2], middle[..., 2:] - size[..., 2:]], -1)
    u, v = u * lift, v * lift
    points, exists = _clipped(middle, u, v, size)
    exists = exists & ~_repeated(points[..., :2], exists, size)
    depth = points[..., 2]
    height = side * (size[..., 2:] + depth / 2)
    local = torch.cat([points[..., :2], height[..., None]], -1)
    rotation = torch.where(is_first[..., None], first.rotation, second.rotation)
    rotation = _cycled(rotation, normal[..., None], -1)
    position = torch.where(is_first, first.position, second.position)
    position = position[..., None, :] + matvec(rotation[..., None, :, :], local)
    outward = torch.where(is_first, side, -side)
    return Points.of(
        torch.where(exists, depth, FAR), position, (outward * rotation[..., 2])[..., None, :]
    )


def _clipped(middle: Tensor, u: Tensor, v: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Corners of a parallelogram clipped to a rectangle around zero, `[*batch, p, 12, 3]`, if they exist.

    The first eight are the ends of the parts of the four sides within the rectangle, the last four the
    corners of the rectangle.
    """
    rounding = ROUNDING[size.dtype]
    half = size[..., None, :2] * (1 + rounding)
    start = torch.stack([middle + u + v, middle - u + v, middle - u - v, middle + u - v], -2)
    along = torch.stack([-2 * u, -2 * v, 2 * u, 2 * v], -2)
    x, dx = start[..., :2], along[..., :2]
    is_level, within = dx == 0, x.abs() <= half
    limits = [ratio(sign * half - x, dx, 0.0) for sign in (-1.0, 1.0)]
    low, high = torch.minimum(*limits), torch.maximum(*limits)
    low = torch.where(is_level, torch.where(within, -FAR_SIDE, FAR_SIDE), low)
    high = torch.where(is_level, FAR_SIDE, high)
    enter, leave = torch.clamp(low.amax(-1), min=0.0), torch.clamp(high.amin(-1), max=1.0)
    is_inside = enter <= leave
    ends = [start + along * t[..., None] for t in (enter, leave)]
    corners = half * half.new_tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    offset = corners - middle[..., None, :2]
    determinant = (u[..., 0] * v[..., 1] - u[..., 1] * v[..., 0])[..., None]
    a = ratio(
        offset[..., 0] * v[..., None, 1] - offset[..., 1] * v[..., None, 0], determinant, FAR_SIDE
    )
    b = ratio(
        offset[..., 1] * u[..., None, 0] - offset[..., 0] * u[..., None, 1], determinant, FAR_SIDE
    )
    height = middle[..., None, 2] + a * u[..., None, 2] + b * v[..., None, 2]
    corners = torch.cat([corners.expand(*height.shape, 2), height[..., None]], -1)
    covered = (a.abs() < 1 + rounding) & (b.abs() < 1 + rounding)
    return torch.cat([*ends, corners], -2), torch.cat([is_inside, is_inside, covered], -1)


def _repeated(points: Tensor, exists: Tensor, size: Tensor) -> Tensor:
    """Mask of the points that repeat one before them, `[*batch, p, k]`."""
    count = points.shape[-2]
    gap = points[..., :, None, :] - points[..., None, :, :]
    size = size[..., None, None, :2] * MIN_SPACING[size.dtype]
    near = (gap * gap).sum(-1) < (size * size).sum(-1)
    before = torch.ones(count, count, dtype=torch.bool, device=points.device).tril(-1)
    return (near & before & exists[..., None, :]).any(-1)
