r"""Joints held at values: the mechanism that is left, with what they joined welded into one body.

A body whose joint is locked is carried by the next body inboard whose joint is not. With the constant pose
(R, r) of a body k on its carrier, masses add up, and

.. math::
    m = \sum m_k, \qquad m\, c = \sum m_k (r_k + R_k c_k), \qquad
    I = \sum R_k I_k R_k^* - m_k \tilde a_k \tilde a_k, \quad a_k = r_k + R_k c_k - c .

The same with the joints of a tree at X q + c (`torchsko.mechanism.coupling`): what a locked joint hands to a
follower of several becomes a part of that one's offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError, ShapeError
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.limit_notes import without_gone
from torchsko.mechanism.numbering import motions
from torchsko.mechanism.skeleton import skeleton
from torchsko.mechanism.state import dtype_advice
from torchsko.spatial.inertia import compensated_mass
from torchsko.spatial.rotation import skew
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import concatenate, matvec

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism


@dataclass(frozen=True)
class Placed:
    """Where a body is: on which body whose joint is not locked (-1: the inertial frame), and how."""

    carrier: int
    rotation: Tensor
    position: Tensor


def locked(mech: Mechanism, values: Mapping[str, Any]) -> Mechanism:
    """`Mechanism.lock`, whose docstring says what it does."""
    if not isinstance(values, Mapping):
        raise MechanismError(
            f"lock was given {type(values).__name__}.",
            "It says by joint where that is held.",
            f"Pass {{{mech.joint_names[-1]!r}: 0.0}}, say.",
        )
    held = {_whole_joint(mech, name): _value(mech, name, x) for name, x in values.items()}
    held, offsets = _followed(mech, held)
    kept = [k for k in range(mech.num_bodies) if k not in held]
    if not kept:
        raise MechanismError(
            f"all joints of {mech.name!r} would be locked.",
            "A mechanism needs one degree of freedom at least.",
            f"Leave one of them out: {mech.joint_names[-1]!r}, say.",
        )
    placed = _placed(mech, held)
    changes: dict[str, Any] = _lumps(mech, placed, kept) | _placements(mech, placed, kept)
    rest: dict[str, Any] = _selected(mech, kept, held) | {"coupling_offset": offsets}
    number = {k: i for i, k in enumerate(kept)} | {-1: -1}
    parents = [number[_carrier(placed, mech.parents[k])] for k in kept]
    names: dict[str, Any] = {
        "body_names": tuple(mech.body_names[k] for k in kept),
        "tree_joint_names": tuple(mech.tree_joint_names[k] for k in kept),
        "frame_body": tuple(number[_carrier(placed, k)] for k in mech.frame_body),
        "unused": mech.unused + _stopped(mech, placed),
    }
    for verdict in ("singular_joints", "bare_joints"):
        left = tuple(name for name in getattr(mech, verdict) if name in names["tree_joint_names"])
        names[verdict] = left
    frame = skeleton(
        names["body_names"],
        parents,
        [mech.joints.kinds[k] for k in kept],
        {
            number[k]: [number[j] for j in row if j not in held]
            for k, row in followed_by(mech).items()
            if k not in held
        },
        mech.device,
    )
    whole: dict[str, Any] = {field.name: getattr(mech, field.name) for field in fields(mech)}
    left = type(mech)(**(whole | rest | changes | names | frame))
    return left.replace(unused=without_gone(left, left.unused))


def _whole_joint(mech: Mechanism, name: str) -> int:
    """Number of a joint that is to be held; one motion of several is refused."""
    k, motion = mech.joint_place(name)
    if motion is None:
        return k
    joint, kind = mech.tree_joint_names[k], mech.joints.kinds[k]
    raise MechanismError(
        f"{name!r} is a motion of the joint {joint!r}, of {', '.join(motions(joint, kind))}: use that.",
        "lock holds joints whole: without one motion the others would be a joint of another kind.",
        f"Pass {{{joint!r}: {[0.0] * kind.num_q}}}, say; to hold {name!r} alone, describe the robot "
        "without it, in its file or by a MechanismBuilder.",
    )


def _value(mech: Mechanism, name: str, value: Any) -> Tensor:
    """The coordinates that a joint is held at, `[*batch, num_q]`."""
    k = mech.joint_index(name)
    if k not in mech.independent_joints:
        leaders = [mech.tree_joint_names[j] for j in followed_by(mech)[k]]
        raise MechanismError(
            f"joint {name!r} of {mech.name!r} follows {', '.join(map(repr, leaders))}, and cannot be "
            "locked by itself.",
            "Where it is follows from those; held, it would hold them as well.",
            f"Lock {leaders[0]!r} instead: {name!r} stops with the joints that it follows.",
        )
    kind = mech.joints.kinds[k]
    try:
        x = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=mech.dtype)
    except (TypeError, ValueError, RuntimeError):
        x = None
    if x is None or not (isinstance(value, Tensor) or bool(x.isfinite().all())):
        raise MechanismError(
            f"joint {name!r} of {mech.name!r} would be held at {value!r}.",
            "It is held at coordinates: finite numbers.",
            f"Pass {{{name!r}: 0.0}}, say, or a tensor.",
        )
    if x.dtype != mech.dtype:
        raise ShapeError(
            f"the value of joint {name!r} is {x.dtype}, the mechanism {mech.dtype}.",
            "Nothing is cast in silence.",
            f"{dtype_advice('value', x.dtype, mech.dtype)}",
        )
    x = x if isinstance(value, Tensor) else x.to(mech.device)
    x = x[None] if x.ndim == 0 and kind.num_q == 1 else x
    if x.ndim == 0 or x.shape[-1] != kind.num_q:
        entries = ", ".join(kind.coordinates)
        raise ShapeError(
            f"the value of joint {name!r} has shape {list(x.shape)}.\n"
            f"A {kind.name} joint has {kind.num_q} coordinates: {entries}.\n"
            f"Pass a tensor of shape [*batch, {kind.num_q}]"
            + (", or a number." if kind.num_q == 1 else ".")
        )
    return x


def followed_by(mech: Mechanism) -> dict[int, tuple[int, ...]]:
    """For each dependent joint the joints that it follows, in the order of its coefficients."""
    coupling = mech.coupling
    if coupling is None:
        return {}
    return dict(zip(coupling.dependent, coupling.followed, strict=True))


def _followed(mech: Mechanism, held: dict[int, Tensor]) -> tuple[dict[int, Tensor], Tensor]:
    """The joints held, those that follow only such ones among them; and the offsets of the others."""
    offsets, all_held, term = [], dict(held), 0
    for i, (k, row) in enumerate(followed_by(mech).items()):
        offset = mech.coupling_offset[..., i]
        for j in row:
            if j in held:
                offset = offset + mech.coupling_ratio[..., term] * held[j][..., 0]
            term += 1
        if all(j in held for j in row):
            all_held[k] = offset[..., None]
        else:
            offsets.append(offset)
    if not offsets:
        return all_held, mech.coupling_offset[..., :0]
    return all_held, torch.stack(torch.broadcast_tensors(*offsets), -1)


def _poses(mech: Mechanism, held: Mapping[int, Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
    """Pose of the child frame in the parent body of every joint that is held."""
    like = {"dtype": mech.dtype, "device": mech.device}
    parts = [
        held[k] if k in held else torch.tensor(kind.neutral(), **like)
        for k, kind in enumerate(mech.joints.kinds)
    ]
    q = concatenate(parts)
    found = {}
    for group in mech.joints.groups:
        turn, shift = group.kind.pose(group.constants(mech), group.coordinates(q))
        for place, k in enumerate(group.bodies.tolist()):
            R, r = mech.joint_rotation[..., k, :, :], mech.joint_position[..., k, :]
            r = r if shift is None else r + matvec(R, shift[..., place, :])
            found[k] = (R if turn is None else R @ turn[..., place, :, :], r)
    return {k: found[k] for k in held}


def _placed(mech: Mechanism, held: Mapping[int, Tensor]) -> dict[int, Placed]:
    """Where each body that no longer moves by itself is."""
    placed, poses = {}, _poses(mech, held)
    for k in mech.layout.tree.order:
        if k in held:
            p, (R, r) = mech.parents[k], poses[k]
            if p in placed:
                inner = placed[p]
                R, r = inner.rotation @ R, inner.position + matvec(inner.rotation, r)
                p = inner.carrier
            placed[k] = Placed(p, R, r)
    return placed


def _carrier(placed: Mapping[int, Placed], body: int) -> int:
    return placed[body].carrier if body in placed else body


def _lumps(mech: Mechanism, placed: Mapping[int, Placed], kept: list[int]) -> dict[str, Tensor]:
    """Masses, centres of mass and inertias of the bodies with what is welded to them."""
    welded: dict[int, list[int]] = {}
    for k, where in placed.items():
        welded.setdefault(where.carrier, []).append(k)
    rows = [_lump(mech, placed, k, welded.get(k, [])) for k in kept]
    mass, com, inertia = zip(*rows, strict=True)
    compensated = [
        _compensated(mech, placed, k, welded.get(k, []), *row[:2])
        for k, row in zip(kept, rows, strict=True)
    ]
    return {
        "mass": torch.stack(torch.broadcast_tensors(*mass), -1),
        "com": torch.stack(torch.broadcast_tensors(*com), -2),
        "inertia": torch.stack(torch.broadcast_tensors(*inertia), -3),
        "gravcomp": torch.stack(torch.broadcast_tensors(*compensated), -2),
    }


def _compensated(
    mech: Mechanism,
    placed: Mapping[int, Placed],
    body: int,
    others: list[int],
    mass: Tensor,
    com: Tensor,
) -> Tensor:
    """`gravcomp` of one body and what is welded to it, of that mass and centre together."""
    if not (mech.has_gravcomp and others):
        return mech.gravcomp[..., body, :]
    every = compensated_mass(mech.mass, mech.com, mech.gravcomp)
    lifted, first = (x[..., body, :] for x in every)
    for k in others:
        m, h = (x[..., k, :] for x in every)
        lifted, first = lifted + m, first + m * placed[k].position + matvec(placed[k].rotation, h)
    empty = (mass == 0)[..., None]
    share = torch.where(empty, 0.0, lifted / torch.where(empty, 1.0, mass[..., None]))
    besides = first - share * mass[..., None] * com
    return torch.cat([share.expand(*besides.shape[:-1], 1), besides], -1)


def _lump(
    mech: Mechanism, placed: Mapping[int, Placed], body: int, others: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Of one body; without others as it was."""
    m, c, I = mech.mass[..., body], mech.com[..., body, :], mech.inertia[..., body, :, :]
    if not others:
        return m, c, I
    masses, coms, inertias = [m], [c], [I]
    for k in others:
        R, r = placed[k].rotation, placed[k].position
        masses.append(mech.mass[..., k])
        coms.append(r + matvec(R, mech.com[..., k, :]))
        inertias.append(R @ mech.inertia[..., k, :, :] @ R.mT)
    mass = sum(masses[1:], m)
    first = sum(
        (x[..., None] * y for x, y in zip(masses[1:], coms[1:], strict=True)), m[..., None] * c
    )
    # Without any mass the centre is anywhere: the body's own, with derivatives that are not nan.
    empty = (mass == 0)[..., None]
    com = torch.where(empty, c, first / torch.where(empty, 1.0, mass[..., None]))
    spread = [
        x[..., None, None] * (arm @ arm.mT)
        for x, arm in ((x, skew(y - com)) for x, y in zip(masses, coms, strict=True))
    ]
    return mass, com, sum(inertias[1:], I) + sum(spread[1:], spread[0])


def _placements(
    mech: Mechanism, placed: Mapping[int, Placed], kept: list[int]
) -> dict[str, Tensor]:
    """Joints and frames as their carriers see them."""

    def moved(bodies: list[int], rotation: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        turns, shifts = [], []
        for i, p in enumerate(bodies):
            R, r = rotation[..., i, :, :], position[..., i, :]
            if p in placed:
                on = placed[p]
                R, r = on.rotation @ R, on.position + matvec(on.rotation, r)
            turns.append(R)
            shifts.append(r)
        return (
            torch.stack(torch.broadcast_tensors(*turns), -3),
            torch.stack(torch.broadcast_tensors(*shifts), -2),
        )

    index = torch.tensor(kept, device=mech.device)
    R, r = moved(
        [mech.parents[k] for k in kept],
        mech.joint_rotation.index_select(-3, index),
        mech.joint_position.index_select(-2, index),
    )
    found = {"joint_rotation": R, "joint_position": r}
    if mech.num_frames:
        R, r = moved(list(mech.frame_body), mech.frame_rotation, mech.frame_position)
        found |= {"frame_rotation": R, "frame_position": r}
    return found


def _selected(mech: Mechanism, kept: list[int], held: Mapping[int, Tensor]) -> dict[str, Any]:
    """What joints, dofs and coordinates have of their own, of those that are left."""
    kinds = mech.joints.kinds
    sizes = {
        "joint_parameters": [kind.num_parameters for kind in kinds],
        "q": [kind.num_q for kind in kinds],
        "dof": [kind.num_dof for kind in kinds],
    }
    own = list(mech.independent_joints)

    def places(what: str, among: list[int]) -> list[int]:
        start, found = 0, []
        for k in among:
            found += list(range(start, start + sizes[what][k])) if k not in held else []
            start += sizes[what][k]
        return found

    every = list(range(mech.num_bodies))
    terms = [(k, j) for k, row in followed_by(mech).items() for j in row]
    which = {
        ("joint_parameters",): places("joint_parameters", every),
        ("damping", "friction", "armature", "stiffness"): places("dof", every),
        ("spring_reference",): places("q", every),
        ("lower", "upper"): places("q", own),
        ("velocity_limit", "effort_limit"): places("dof", own),
        ("coupling_ratio",): [
            i for i, (k, j) in enumerate(terms) if k not in held and j not in held
        ],
    }

    def chosen(x: Tensor, at: list[int]) -> Tensor:
        return x.index_select(-1, torch.tensor(at, dtype=torch.int64, device=mech.device))

    found: dict[str, Any] = {
        name: chosen(getattr(mech, name), at) for names, at in which.items() for name in names
    }
    found["axis"] = mech.axis.index_select(-2, torch.tensor(kept, device=mech.device))
    dofs = torch.tensor(places("dof", every), dtype=torch.int64, device=mech.device)
    found["higher_damping"] = mech.higher_damping.index_select(-2, dofs)
    q, dof = places("q", own), places("dof", own)
    found["file_metadata"] = mech.file_metadata.map_states(
        lambda x: chosen(x, q), lambda x: chosen(x, dof)
    )
    return found


def _stopped(mech: Mechanism, placed: Mapping[int, Placed]) -> tuple[UnsupportedElement, ...]:
    """Bodies that no longer move at all."""
    return tuple(
        UnsupportedElement(
            f"body {mech.body_names[k]!r}",
            f"with joint {mech.tree_joint_names[k]!r} locked it hangs on the inertial frame, and never moves",
            fixed_inertia=_has_inertia(mech, k),
        )
        for k, where in placed.items()
        if where.carrier < 0
    )


def _has_inertia(mech: Mechanism, body: int) -> bool:
    """Whether a body resists; what cannot be looked at, as under vmap, counts as if it did."""
    found = [concrete_values(x) for x in (mech.mass[..., body], mech.inertia[..., body, :, :])]
    return any(x is None or bool(x.any()) for x in found)
