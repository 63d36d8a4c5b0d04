"""One mechanism on another: two trees as one, the second hanging on a frame of the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.description import STILL, UnsupportedElement
from torchsko.mechanism.geometry import Geometry
from torchsko.mechanism.geometry import joined as joined_shapes
from torchsko.mechanism.lock import followed_by, locked
from torchsko.mechanism.placement import check_position, check_rotation
from torchsko.mechanism.skeleton import skeleton
from torchsko.mechanism.validation import check_placement
from torchsko.utils.shapes import concatenate, matvec

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism

Placement = tuple[Tensor, Tensor]
"""Rotation `[*, 3, 3]` and position `[*, 3]` [m]."""


WELDED = "<welded>"
"""Name of a free joint that is welded."""


def appended(
    mech: Mechanism,
    other: Mechanism,
    shapes: dict[str, tuple[str | int, ...]],
    frame: str,
    rotation: Any,
    position: Any,
    prefix: str,
    weld: bool,
) -> Mechanism:
    """`Mechanism.append`, whose docstring says what it does; `shapes` are those of all parameters."""
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
    whole = _whole(mech, other, shapes, mech.frame_body[at], place, prefix)
    whole = whole.replace(**_shapes(mech, other, prefix, frame, (R, r)))
    if not (weld and afloat):
        return whole
    neutral = torch.tensor(base.neutral(), dtype=mech.dtype, device=mech.device)
    return locked(whole, {prefix + WELDED: neutral})


def _renamed(mech: Mechanism, joint: str) -> Mechanism:
    """The mechanism with a joint called `WELDED`: it goes, and so does its name."""
    names: dict[str, Any] = {
        what: tuple(WELDED if name == joint else name for name in getattr(mech, what))
        for what in ("tree_joint_names", "singular_joints", "bare_joints")
    }
    return replace(mech, **names)


def _whole(
    mech: Mechanism,
    other: Mechanism,
    shapes: dict[str, tuple[str | int, ...]],
    carrier: int,
    place: Placement,
    prefix: str,
) -> Mechanism:
    """Both as one tree; what hangs on the other's inertial frame hangs on the carrier at a place."""
    count = mech.num_bodies
    placed = {
        "joint": _on(place, other.parents, other.joint_rotation, other.joint_position),
        "frame": _on(place, other.frame_body, other.frame_rotation, other.frame_position),
    }
    theirs = {name: getattr(other, name) for name in shapes}
    for what, (R, r) in placed.items():
        theirs |= {f"{what}_rotation": R, f"{what}_position": r}
    changes: dict[str, Any] = {
        name: concatenate((getattr(mech, name), theirs[name]), -len(shape))
        for name, shape in shapes.items()
        if name != "gravity"
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
        **{
            name: getattr(mech, name) or getattr(other, name)
            for name in ("has_armature", "has_losses", "has_higher_damping", "has_gravcomp")
        },
        "aligned": mech.aligned and other.aligned,
        "replaced": tuple(n for n in shapes if n in mech.replaced or n in other.replaced),
        "report": mech.report + other.report,
    }
    changes |= skeleton(
        changes["body_names"],
        mech.parents + shifted(other.parents),
        mech.joints.kinds + other.joints.kinds,
        followed,
        mech.device,
    )
    whole: dict[str, Any] = {field.name: getattr(mech, field.name) for field in fields(mech)}
    return type(mech)(**(whole | changes))


def _shapes(
    mech: Mechanism, other: Mechanism, prefix: str, frame: str, place: Placement
) -> dict[str, Any]:
    """The shapes and loops of both; without those of the other's inertial frame where that is many places."""
    theirs, unused = other.geometry, mech.unused + other.unused
    loose = sum(shape.frame is None for shape in theirs.shapes)
    batched = any(x.ndim > n for x, n in zip(place, (2, 1), strict=True))
    if loose and batched:
        theirs = Geometry(tuple(shape for shape in theirs.shapes if shape.frame is not None))
        why = "they stand on its inertial frame, which is somewhere else in every sample"
        unused += (UnsupportedElement(f"{loose} shapes of {other.name!r}", why),)
    numbers = None if batched else tuple(x.detach().tolist() for x in place)
    told = mech.file_metadata.initial is not None or other.file_metadata.initial is not None
    start = torch.cat([mech.initial(), other.initial()]) if told else None
    return {
        "geometry": joined_shapes(mech.geometry, theirs, prefix, frame, numbers),
        "file_metadata": replace(
            mech.file_metadata.merge_loops(other.file_metadata, prefix, frame, numbers),
            initial=start,
        ),
        "unused": unused,
    }


def _on(place: Placement, parents: Sequence[int], R: Tensor, r: Tensor) -> Placement:
    """Placements of several on the inertial frame, where their parent is that, as those on a place."""
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


def _placement(mech: Mechanism, rotation: Any, position: Any) -> Placement:
    """Rotation and position as tensors of the mechanism's type; identity and zero where left out."""
    like = {"dtype": mech.dtype, "device": mech.device}
    given = {
        "rotation": (rotation, torch.eye(3, **like), (3, 3)),
        "position": (position, torch.zeros(3, **like), (3,)),
    }
    found = []
    for name, (value, default, shape) in given.items():
        if value is None:
            found.append(default)
            continue
        x = value if isinstance(value, Tensor) else torch.as_tensor(value, **like)
        what = f"{name} of the one appended"
        check_placement(mech, what, x, shape)
        check = check_rotation if len(shape) == 2 else check_position
        check(what, x, most=x.numel())
        found.append(x)
    return found[0], found[1]


def _check_types(mech: Mechanism, other: Any) -> None:
    if not isinstance(other, type(mech)):
        raise MechanismError(
            f"{other!r} would be appended, of type {type(other).__name__}.",
            "A mechanism is appended.",
            "Pass torchsko.load(file, floating_base=True).",
        )
    if other.dtype != mech.dtype or other.device != mech.device:
        raise MechanismError(
            f"{other.name!r} is {other.dtype} on {other.device}, {mech.name!r} {mech.dtype} on "
            f"{mech.device}.",
            "Nothing is cast or copied between devices in silence.",
            f"Append other.to({mech.dtype}).to({str(mech.device)!r}).",
        )


def _check_names(mech: Mechanism, other: Mechanism, prefix: str) -> None:
    for what in ("body_names", "tree_joint_names", "frame_names"):
        taken = set(getattr(mech, what))
        both = [name for name in getattr(other, what) if prefix + name in taken]
        if both:
            kind = {"body_names": "body", "tree_joint_names": "joint", "frame_names": "frame"}[what]
            raise MechanismError(
                f"{mech.name!r} and {other.name!r} both have a {kind} named {prefix + both[0]!r}"
                + (f", and {len(both) - 1} more names in common.\n" if len(both) > 1 else ".\n")
                + "Names tell bodies, joints and frames apart.\n"
                f'Pass prefix="{other.name}_", which goes before all names of the one appended.'
            )


def _check_base(other: Mechanism) -> None:
    """Refuse one that left out inertia which a frame that moves would feel."""
    lost = [x for x in other.unused if x.fixed_inertia]
    if lost:
        at_load = lost[0].reason == STILL
        raise MechanismError(
            f"{lost[0].element} of {other.name!r} was left out when it was "
            f"{'loaded' if at_load else 'locked'}.\n"
            "On the inertial frame it never moved; on a frame that moves its mass would be missing.\n"
            + (
                "Load the robot that is appended with floating_base=True (MJCF: with a <freejoint/> in its "
                "root body): its base is then welded to the frame, with its mass."
                if at_load
                else "Append it first, and lock its joints then: mech.append(other, frame).lock({...})."
            )
        )
