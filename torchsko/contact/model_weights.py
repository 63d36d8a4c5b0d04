"""Inverse weights of a contact model: from the robot file, or from the masses of a mechanism."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import FrameRows
from torchsko.contact.contact_fields import ContactFields
from torchsko.contact.inverse_weights import InverseWeights
from torchsko.mechanism.description import Vector
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.geometry import Shape, Surface
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec


def shapes_by_name(mech: Mechanism) -> dict[str, Shape]:
    """All shapes of a mechanism by the names that a contact model gives them."""
    return {shape.name or f"shape{k}": shape for k, shape in enumerate(mech.geometry.shapes)}


def file_weights(mech: Mechanism, contact: ContactFields) -> dict[str, Tensor]:
    """Inverse weights of the robot file, computed ones where it has none."""
    found, metadata = computed_weights(mech, contact), mech.file_metadata
    shapes, closures = shapes_by_name(mech), {c.name: c for c in mech.closures}
    lengths = [*metadata.solver.dof_invweight, *(t.invweight for t in metadata.tendons)]
    known = {
        "shape_invweight": [
            (shapes[name].surface or Surface()).invweight for name in contact.shape_names
        ],
        "equality_invweight": [
            _of_file(closures[name], ends, lengths)
            for name, ends in zip(contact.equality_names, contact.equality_ends, strict=True)
        ],
        "limit_invweight": [lengths[k] for k in (*contact.limit_dof, *contact.ball_dof)],
        "loss_invweight": [lengths[k] for k in contact.loss_dof],
    }
    for name, rows in known.items():
        for k, row in enumerate(rows):
            if row not in ((), None):
                found[name][k] = found[name].new_tensor(row)
    return found


def _of_file(
    closure: Closure, ends: tuple[int, int], lengths: Sequence[float | None]
) -> tuple[float, ...]:
    """Inverse weights of an equality in the file: those of its lengths, or of the bodies that it joins."""
    if not closure.joints:
        return closure.invweight
    known = [x for x in (lengths[k] for k in {*ends}) if x is not None]
    return (sum(known), 0.0) if len(known) == len({*ends}) else ()


def computed_weights(mech: Mechanism, contact: ContactFields) -> dict[str, Tensor]:
    """Inverse weights in the initial configuration of a mechanism, with its batch dimensions."""
    inverse = InverseWeights(mech)
    of_lengths = inverse.of_lengths(contact.tendon_transmission)
    limits = (*contact.limit_dof, *contact.ball_dof)
    shapes = shapes_by_name(mech)
    frames = [shapes[name].frame for name in contact.shape_names]
    return {
        "shape_invweight": inverse.of_points(
            contact.shape_bodies, _centers(mech, contact.shape_bodies, frames)
        ),
        "equality_invweight": _of_equalities(mech, contact, inverse, of_lengths),
        "limit_invweight": _entries(of_lengths, limits),
        "loss_invweight": _entries(of_lengths, contact.loss_dof),
    }


def _centers(mech: Mechanism, bodies: Sequence[int], frames: Sequence[str | None]) -> Tensor | None:
    """Centers of mass of the links of frames (`FileMetadata.centers`) in their bodies, `[*batch, n, 3]` [m].

    A changed center of mass of a body moves those of all its links. None for those of the bodies themselves.
    """
    known = mech.file_metadata.centers
    if not {*known} & {*frames}:
        return None
    points = []
    for body, frame in zip(bodies, frames, strict=True):
        if frame is None or frame not in known:
            points.append(mech.com[..., min(body, mech.num_bodies - 1), :])
            continue
        center = _in_body(mech, frame, known[frame])
        if "com" in mech.replaced:
            center = center + mech.com[..., body, :] - _file_center(mech, body)
        points.append(center)
    return torch.stack(torch.broadcast_tensors(*points), -2)


def _in_body(mech: Mechanism, frame: str, point: Vector) -> Tensor:
    """A point of a frame in its body, `[*batch, 3]` [m]."""
    f = mech.frame_index(frame)
    R, r = mech.frame_rotation[..., f, :, :], mech.frame_position[..., f, :]
    return r + matvec(R, R.new_tensor(point))


def _file_center(mech: Mechanism, body: int) -> Tensor:
    """Center of mass of the links of a body in the file, `[*batch, 3]` [m]; of the body without links."""
    carried = {n for n, k in zip(mech.frame_names, mech.frame_body, strict=True) if k == body}
    links = [x for x in mech.file_metadata.links if x.name in carried and x.mass]
    if not links:
        return mech.com[..., body, :]
    total = sum(x.mass for x in links)
    return sum(
        (x.mass / total * _in_body(mech, x.name, x.com) for x in links), start=mech.com.new_zeros(3)
    )


def _of_equalities(
    mech: Mechanism, contact: ContactFields, inverse: InverseWeights, of_lengths: Tensor
) -> Tensor:
    """Inverse weights of both ends together; that of one end where both are the same length."""
    ends = contact.equality_ends
    framed = {
        e
        for kind, at in contact.equalities_by_kind().items()
        if isinstance(kind, FrameRows)
        for e in at
    }
    is_frame = [e in framed for e in range(len(ends))]
    bodies = [
        k for pair, flag in zip(ends, is_frame, strict=True) for k in (pair if flag else (0, 0))
    ]
    closures = {c.name: c for c in mech.closures}
    named = [closures[name] for name in contact.equality_names]
    frames = [frame for c in named for frame in (c.frame1, c.frame2)]
    centers = _centers(mech, bodies, frames)
    of_frames = inverse.of_points(bodies, centers).unflatten(-2, (len(ends), 2)).sum(-2)
    rows = []
    for e, (pair, flag) in enumerate(zip(ends, is_frame, strict=True)):
        if flag:
            rows.append(of_frames[..., e, :])
        else:
            total = _entries(of_lengths, [*{*pair}]).sum(-1)
            rows.append(torch.stack([total, torch.zeros_like(total)], -1))
    if not rows:
        return of_frames
    return torch.stack(torch.broadcast_tensors(*rows), -2)


def _entries(x: Tensor, indices: Sequence[int]) -> Tensor:
    return x.index_select(-1, torch.tensor(indices, dtype=torch.int64, device=x.device))
