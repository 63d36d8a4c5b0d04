"""Attachment of one mechanism to a frame of another; both trees become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchsko.errors import MechanismError
from torchsko.mechanism.data import M, MechanismData
from torchsko.mechanism.description import STILL, UnsupportedElement
from torchsko.mechanism.edits.appended_data import BATCHED, Attachment, merge_file_data
from torchsko.mechanism.edits.lock import followed_by, locked
from torchsko.mechanism.fields import FIELDS, FLAGS, Field
from torchsko.mechanism.file_data.edit_notes import note_losses_of_edit
from torchsko.mechanism.geometry import joined as joined_shapes
from torchsko.mechanism.placement import check_position, check_rotation
from torchsko.mechanism.skeleton import skeleton
from torchsko.mechanism.validation import check_placement
from torchsko.utils.shapes import concatenate, matvec

Placement = tuple[Tensor, Tensor]
"""Rotation `[*, 3, 3]` and position `[*, 3]` [m]."""


WELDED = "<welded>"
"""Temporary name of the free joint of a base that is welded."""


def appended(
    mech: M,
    other: MechanismData,
    frame: str,
    rotation: Any,
    position: Any,
    prefix: str,
    weld: bool,
    strict: bool = False,
) -> M:
    """See `Mechanism.append`."""
    _check_types(mech, other)
    roots = [k for k, p in enumerate(other.parents) if p < 0]
    base = other.joints.kinds[roots[0]]
    afloat = len(roots) == 1 and base.is_free
    if weld and afloat:
        other = _renamed(other, other.tree_joint_names[roots[0]])
    _check_names(mech, other, prefix)
    at, (R, r) = mech.frame_index(frame), _placement(mech, rotation, position)
    if mech.frame_body[at] >= 0:
        _check_base(other)
    R_frame, r_frame = mech.frame_rotation[..., at, :, :], mech.frame_position[..., at, :]
    place = R_frame @ R, r_frame + matvec(R_frame, r)
    whole = _both_trees(mech, other, mech.frame_body[at], place, prefix)
    whole = whole.replace(**_file_data(mech, other, prefix, frame, (R, r), strict))
    if not (weld and afloat):
        return whole
    neutral = torch.tensor(base.neutral(), dtype=mech.dtype, device=mech.device)
    return locked(whole, {prefix + WELDED: neutral}, strict)


def _renamed(mech: M, joint: str) -> M:
    """The mechanism with a joint renamed to `WELDED`, which `appended` locks."""
    names: dict[str, Any] = {
        field: tuple(WELDED if name == joint else name for name in getattr(mech, field))
        for field in ("tree_joint_names", "singular_joints", "bare_joints")
    }
    return replace(mech, **names)


def _both_trees(
    mech: M,
    other: MechanismData,
    carrier: int,
    place: Placement,
    prefix: str,
) -> M:
    """Both trees as one; the carrier body with a placement replaces the other's inertial frame."""
    count = mech.num_bodies
    placed = {
        "joint": _on(place, other.parents, other.joint_rotation, other.joint_position),
        "frame": _on(place, other.frame_body, other.frame_rotation, other.frame_position),
        "fluid": _on(place, other.fluid_bodies, other.fluid_rotation, other.fluid_position),
    }
    theirs = {name: getattr(other, name) for name in FIELDS}
    for what, (R, r) in placed.items():
        theirs |= {f"{what}_rotation": R, f"{what}_position": r}
    changes: dict[str, Any] = {
        name: _joined(getattr(mech, name), theirs[name], field)
        for name, field in FIELDS.items()
        if field.owner != "mechanism"
    }
    for name in ("body_names", "tree_joint_names", "frame_names", "singular_joints", "bare_joints"):
        changes[name] = getattr(mech, name) + tuple(prefix + x for x in getattr(other, name))

    def shifted(parents: Sequence[int]) -> tuple[int, ...]:
        return tuple(carrier if p < 0 else count + p for p in parents)

    followed = followed_by(mech) | {
        count + k: tuple(count + j for j in row) for k, row in followed_by(other).items()
    }
    changes |= {
        "frame_body": mech.frame_body + shifted(other.frame_body),
        "fluid_bodies": mech.fluid_bodies + shifted(other.fluid_bodies),
        "fluid_models": mech.fluid_models + other.fluid_models,
        **{flag: getattr(mech, flag) or getattr(other, flag) for flag in FLAGS},
        "aligned": mech.aligned and other.aligned,
        "replaced": tuple(n for n in FIELDS if n in mech.replaced or n in other.replaced),
        "report": mech.report + other.report,
    }
    changes |= skeleton(
        changes["body_names"],
        mech.parents + shifted(other.parents),
        mech.joints.kinds + other.joints.kinds,
        followed,
        (*mech.coordinates.leaders, *(count + k for k in other.coordinates.leaders)),
        mech.device,
    )
    whole: dict[str, Any] = {field.name: getattr(mech, field.name) for field in fields(mech)}
    return type(mech)(**(whole | changes))


def _joined(ours: Tensor, theirs: Tensor, field: Field) -> Tensor:
    """Entries of both; of matrices of modal coordinates both blocks on the diagonal."""
    if field.owner == "mode":
        n, m = ours.shape[-1], theirs.shape[-1]
        ours, theirs = pad(ours, (0, m)), pad(theirs, (n, 0))
    return concatenate((ours, theirs), -len(field.shape))


def _file_data(
    mech: MechanismData,
    other: MechanismData,
    prefix: str,
    frame: str,
    place: Placement,
    strict: bool,
) -> dict[str, Any]:
    """Shapes, file data and notes; a batched place leaves out what is fixed to the inertial frame."""
    theirs, notes = other.geometry, []
    moving = [k for k, shape in enumerate(theirs.shapes) if shape.frame is not None]
    batched = any(x.ndim > n for x, n in zip(place, (2, 1), strict=True))
    if batched and len(moving) < len(theirs.shapes):
        num_fixed = len(theirs.shapes) - len(moving)
        notes.append(UnsupportedElement(f"{num_fixed} shapes of {other.name!r}", BATCHED))
        theirs = theirs.select(moving)
    numbers = None if batched else tuple(x.detach().tolist() for x in place)
    metadata, differences = merge_file_data(mech, other, Attachment(prefix, frame, numbers))
    notes += differences
    note_losses_of_edit(f"{mech.name!r}.append({other.name!r})", notes, strict)
    geometry = joined_shapes(mech.geometry, theirs, prefix, frame, numbers)
    return {
        "geometry": geometry.without_weights(),
        "file_metadata": metadata,
        "unused": (*mech.unused, *other.unused, *notes),
    }


def _on(place: Placement, parents: Sequence[int], R: Tensor, r: Tensor) -> Placement:
    """Placements, with those on the inertial frame (parent -1) moved to a place."""
    if not parents:
        return R, r
    turns, shifts = [], []
    for k, p in enumerate(parents):
        turn, shift = R[..., k, :, :], r[..., k, :]
        if p < 0:
            turn, shift = place[0] @ turn, place[1] + matvec(place[0], shift)
        turns.append(turn)
        shifts.append(shift)
    return (
        torch.stack(torch.broadcast_tensors(*turns), -3),
        torch.stack(torch.broadcast_tensors(*shifts), -2),
    )


def _placement(mech: MechanismData, rotation: Any, position: Any) -> Placement:
    """Rotation and position as tensors of the mechanism's dtype; identity and zero by default."""
    like = {"dtype": mech.dtype, "device": mech.device}
    arguments = {
        "rotation": (rotation, torch.eye(3, **like), (3, 3)),
        "position": (position, torch.zeros(3, **like), (3,)),
    }
    found = []
    for name, (value, default, shape) in arguments.items():
        if value is None:
            found.append(default)
            continue
        x = value if isinstance(value, Tensor) else torch.as_tensor(value, **like)
        what = f"{name} of the appended mechanism"
        check_placement(mech, what, x, shape)
        check = check_rotation if len(shape) == 2 else check_position
        check(what, x, most=x.numel())
        found.append(x)
    return found[0], found[1]


def _check_types(mech: MechanismData, other: Any) -> None:
    if not isinstance(other, type(mech)):
        raise MechanismError(
            f"append got {other!r}, a {type(other).__name__}.",
            "Only a Mechanism can be appended.",
            "Pass torchsko.load(file, floating_base=True).",
        )
    if other.dtype != mech.dtype or other.device != mech.device:
        raise MechanismError(
            f"{other.name!r} is {other.dtype} on {other.device}, {mech.name!r} {mech.dtype} on "
            f"{mech.device}.",
            "Tensors are not converted or copied between devices implicitly.",
            f"Append other.to({mech.dtype}).to({str(mech.device)!r}).",
        )


def _check_names(mech: MechanismData, other: MechanismData, prefix: str) -> None:
    for what in ("body_names", "tree_joint_names", "frame_names"):
        names = set(getattr(mech, what))
        shared = [name for name in getattr(other, what) if prefix + name in names]
        if shared:
            kind = {"body_names": "body", "tree_joint_names": "joint", "frame_names": "frame"}[what]
            raise MechanismError(
                f"{mech.name!r} and {other.name!r} both have a {kind} named {prefix + shared[0]!r}"
                + (f", and {len(shared) - 1} more common names." if len(shared) > 1 else "."),
                "Names of bodies, joints and frames are unique.",
                f'Pass prefix="{other.name}_", which is added to all names of the appended mechanism.',
            )


def _check_base(other: MechanismData) -> None:
    """Refuse a mechanism without the inertia of links that were fixed to its inertial frame."""
    lost = [x for x in other.unused if x.fixed_inertia]
    if lost:
        at_load = lost[0].reason == STILL
        advice = (
            "Load the appended robot with floating_base=True (MJCF: with a <freejoint/> in its root body); "
            "its base is then welded to the frame."
            if at_load
            else "Append it first, and lock its joints afterwards: mech.append(other, frame).lock({...})."
        )
        for name in other.file_metadata.mocap_bodies:
            if f"link {name!r} " in lost[0].element:
                advice = (
                    f"{name!r} is a mocap body, whose mass has no effect in its own file: give its geoms "
                    'mass="0", or append to a frame that is fixed.'
                )
        raise MechanismError(
            f"{lost[0].element} of {other.name!r} was left out when it was "
            f"{'loaded' if at_load else 'locked'}.",
            "It was fixed to the inertial frame; on a moving frame its mass would be missing.",
            advice,
        )
