r"""Locked joints: the mechanism in which the bodies that they connect are one.

A body whose joint is locked is welded to its carrier, the next inboard body whose joint is not locked. With
the constant pose (R, r) of body k on its carrier, the inertial parameters of the combined body are

.. math::
    m = \sum m_k, \qquad m\, c = \sum m_k (r_k + R_k c_k), \qquad
    I = \sum R_k I_k R_k^* - m_k \tilde a_k \tilde a_k, \quad a_k = r_k + R_k c_k - c .

With couplings (`torchsko.mechanism.coupling`), a locked joint contributes to the offset of a dependent joint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError, ShapeError
from torchsko.mechanism.data import M, MechanismData
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.edits.locked_data import LockedData, link_centers
from torchsko.mechanism.fields import FIELDS
from torchsko.mechanism.file_data.edit_notes import note_losses_of_edit
from torchsko.mechanism.file_data.file_metadata import FileMetadata
from torchsko.mechanism.limit_notes import update_limit_notes
from torchsko.mechanism.numbering import motions
from torchsko.mechanism.skeleton import skeleton
from torchsko.mechanism.state import dtype_advice
from torchsko.spatial.inertia import compensated_mass
from torchsko.spatial.rotation import skew
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import concatenate, gather_entries, matvec


@dataclass(frozen=True)
class Placed:
    """Placement of a body on its carrier, a body index; -1 is the inertial frame."""

    carrier: int
    rotation: Tensor
    position: Tensor


def locked(mech: M, values: Mapping[str, Any], strict: bool = False) -> M:
    """See `Mechanism.lock`."""
    if not isinstance(values, Mapping):
        raise MechanismError(
            f"lock got a {type(values).__name__}.",
            "It takes a dictionary from joint names to positions.",
            f"Pass for example {{{mech.joint_names[-1]!r}: 0.0}}.",
        )
    held = {_joint(mech, name): _value(mech, name, x) for name, x in values.items()}
    leaders = mech.coordinates.leaders
    held = {k: held[j] for k, j in enumerate(leaders) if j in held}
    held, offsets = _with_dependent(mech, held)
    kept = [k for k in range(mech.num_bodies) if k not in held]
    if not kept:
        raise MechanismError(
            f"all joints of {mech.name!r} would be locked.",
            "A mechanism needs at least one degree of freedom.",
            f"Omit one of them, such as {mech.joint_names[-1]!r}.",
        )
    placed = _placed(mech, held)
    changes: dict[str, Any] = combine_bodies(mech, placed, kept) | _placements(mech, placed, kept)
    number = {k: i for i, k in enumerate(kept)} | {-1: -1}
    still = _fixed_bodies(mech, placed)
    data = LockedData(mech, held, any(x.fixed_inertia for x in still))
    welded = {k: where.carrier for k, where in placed.items()}
    metadata = data.metadata()
    metadata = replace(metadata, centers=link_centers(mech, welded, metadata.centers))
    rest: dict[str, Any] = _selected(mech, metadata, held, changes) | {"coupling_offset": offsets}
    parents = [number[_carrier(placed, mech.parents[k])] for k in kept]
    names: dict[str, Any] = {
        "body_names": tuple(mech.body_names[k] for k in kept),
        "tree_joint_names": tuple(mech.tree_joint_names[k] for k in kept),
        "frame_body": tuple(number[_carrier(placed, k)] for k in mech.frame_body),
        "fluid_bodies": tuple(number[_carrier(placed, k)] for k in mech.fluid_bodies),
        "unused": (*mech.unused, *still, *data.notes, *data.lost),
        "geometry": mech.geometry.without_weights(),
    }
    for field in ("singular_joints", "bare_joints"):
        names[field] = tuple(x for x in getattr(mech, field) if x in names["tree_joint_names"])
    structure = skeleton(
        names["body_names"],
        parents,
        [mech.joints.kinds[k] for k in kept],
        {
            number[k]: [number[j] for j in row if j not in held]
            for k, row in followed_by(mech).items()
            if k not in held
        },
        [number[leaders[k]] for k in kept],
        mech.device,
    )
    whole: dict[str, Any] = {field.name: getattr(mech, field.name) for field in fields(mech)}
    edit = f"{mech.name!r}.lock of {', '.join(map(repr, values))}"
    note_losses_of_edit(edit, data.lost, strict)
    left = type(mech)(**(whole | rest | changes | names | structure))
    return left.replace(unused=update_limit_notes(left, left.unused))


def _joint(mech: MechanismData, name: str) -> int:
    """Index of a joint to lock; a single motion of a joint with several is refused."""
    k, motion = mech.joint_place(name)
    if motion is None:
        return mech.coordinates.leaders[k]
    joint, kind = mech.tree_joint_names[k], mech.joints.kinds[k]
    raise MechanismError(
        f"{name!r} is one motion of joint {joint!r}, which has {', '.join(motions(joint, kind))}.",
        "lock fixes whole joints, because the remaining motions would be another joint type.",
        f"Pass for example {{{joint!r}: {[0.0] * kind.num_q}}}. To fix {name!r} alone, change the robot file "
        "or use MechanismBuilder.",
    )


def _value(mech: MechanismData, name: str, value: Any) -> Tensor:
    """Coordinates of a locked joint, `[*batch, num_q]`."""
    k = mech.coordinates.leaders[mech.joint_index(name)]
    if k not in mech.independent_joints:
        leaders = [mech.tree_joint_names[j] for j in followed_by(mech)[k]]
        raise MechanismError(
            f"joint {name!r} of {mech.name!r} follows {', '.join(map(repr, leaders))} and cannot be locked.",
            "A coupling determines its position.",
            f"Lock {leaders[0]!r} instead; {name!r} is locked with the joints that it follows.",
        )
    kind = mech.joints.kinds[k]
    try:
        x = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=mech.dtype)
    except (TypeError, ValueError, RuntimeError):
        x = None
    if x is None or not (isinstance(value, Tensor) or bool(x.isfinite().all())):
        raise MechanismError(
            f"joint {name!r} of {mech.name!r} cannot be locked at {value!r}.",
            "Positions are finite numbers or tensors.",
            f"Pass for example {{{name!r}: 0.0}}, or a tensor.",
        )
    if x.dtype != mech.dtype:
        raise ShapeError(
            f"the value of joint {name!r} is {x.dtype}, the mechanism {mech.dtype}.",
            "Dtypes are not converted implicitly.",
            dtype_advice("value", x.dtype, mech.dtype),
        )
    x = x if isinstance(value, Tensor) else x.to(mech.device)
    x = x[None] if x.ndim == 0 and kind.num_q == 1 else x
    if x.ndim == 0 or x.shape[-1] != kind.num_q:
        entries = ", ".join(kind.coordinates)
        raise ShapeError(
            f"the value of joint {name!r} has shape {list(x.shape)}.",
            f"A {kind.name} joint has {kind.num_q} coordinates: {entries}.",
            f"Pass a tensor of shape [*batch, {kind.num_q}]"
            + (", or a number." if kind.num_q == 1 else "."),
        )
    return x


def followed_by(mech: MechanismData) -> dict[int, tuple[int, ...]]:
    """Joints that each dependent joint follows, in the order of its coefficients."""
    coupling = mech.coupling
    if coupling is None:
        return {}
    return dict(zip(coupling.dependent, coupling.followed, strict=True))


def _with_dependent(
    mech: MechanismData, held: dict[int, Tensor]
) -> tuple[dict[int, Tensor], Tensor]:
    """Locked joints with the dependent ones that they determine, and offsets of other dependent joints."""
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


def _poses(mech: MechanismData, held: Mapping[int, Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
    """Pose of the child frame in the parent body for every locked joint."""
    like = {"dtype": mech.dtype, "device": mech.device}
    kinds = mech.joints.kinds
    parts = [
        held[k] if k in held else torch.tensor(kinds[k].neutral(), **like)
        for k in dict.fromkeys(mech.coordinates.leaders)
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


def _placed(mech: MechanismData, held: Mapping[int, Tensor]) -> dict[int, Placed]:
    """Placement of each body with a locked joint."""
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


def combine_bodies(
    mech: MechanismData, placed: Mapping[int, Placed], kept: list[int]
) -> dict[str, Tensor]:
    """Inertial parameters of the remaining bodies, combined with the bodies welded to them."""
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
    mech: MechanismData,
    placed: Mapping[int, Placed],
    body: int,
    others: list[int],
    mass: Tensor,
    com: Tensor,
) -> Tensor:
    """`Mechanism.gravcomp` of a combined body with the given total mass and center of mass."""
    if not (mech.has_gravcomp and others):
        return mech.gravcomp[..., body, :]
    compensated = compensated_mass(mech.mass, mech.com, mech.gravcomp)
    lifted, first = (x[..., body, :] for x in compensated)
    for k in others:
        m, h = (x[..., k, :] for x in compensated)
        lifted, first = lifted + m, first + m * placed[k].position + matvec(placed[k].rotation, h)
    empty = (mass == 0)[..., None]
    share = torch.where(empty, 0.0, lifted / torch.where(empty, 1.0, mass[..., None]))
    moment = first - share * mass[..., None] * com
    return torch.cat([share.expand(*moment.shape[:-1], 1), moment], -1)


def _lump(
    mech: MechanismData, placed: Mapping[int, Placed], body: int, others: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Mass, center of mass and inertia of one combined body."""
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
    # A massless body keeps its center of mass, so that derivatives are finite.
    empty = (mass == 0)[..., None]
    com = torch.where(empty, c, first / torch.where(empty, 1.0, mass[..., None]))
    spread = [
        x[..., None, None] * (arm @ arm.mT)
        for x, arm in ((x, skew(y - com)) for x, y in zip(masses, coms, strict=True))
    ]
    return mass, com, sum(inertias[1:], I) + sum(spread[1:], spread[0])


def _placements(
    mech: MechanismData, placed: Mapping[int, Placed], kept: list[int]
) -> dict[str, Tensor]:
    """Placements of joints and frames relative to their carriers."""

    def place(bodies: list[int], rotation: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        turns, shifts = [], []
        for i, p in enumerate(bodies):
            R, r = rotation[..., i, :, :], position[..., i, :]
            if p in placed:
                carrier = placed[p]
                R, r = carrier.rotation @ R, carrier.position + matvec(carrier.rotation, r)
            turns.append(R)
            shifts.append(r)
        return (
            torch.stack(torch.broadcast_tensors(*turns), -3),
            torch.stack(torch.broadcast_tensors(*shifts), -2),
        )

    index = torch.tensor(kept, device=mech.device)
    R, r = place(
        [mech.parents[k] for k in kept],
        mech.joint_rotation.index_select(-3, index),
        mech.joint_position.index_select(-2, index),
    )
    found = {"joint_rotation": R, "joint_position": r}
    for what, bodies in (("frame", mech.frame_body), ("fluid", mech.fluid_bodies)):
        if bodies:
            rotation, position = (getattr(mech, f"{what}_{x}") for x in ("rotation", "position"))
            R, r = place(list(bodies), rotation, position)
            found |= {f"{what}_rotation": R, f"{what}_position": r}
    return found


def _selected(
    mech: MechanismData,
    metadata: FileMetadata,
    held: Mapping[int, Tensor],
    changed: Mapping[str, Any],
) -> dict[str, Any]:
    """Entries of the remaining bodies, joints, dofs and coordinates, except of fields already changed.

    The states and options of the file data are those of all joints.
    """
    kinds, every, independent = mech.joints.kinds, range(mech.num_bodies), mech.independent_joints
    leaders = tuple(dict.fromkeys(mech.coordinates.leaders))

    def places(sizes: list[int], joints: Sequence[int]) -> Tensor:
        start, found = 0, []
        for k in joints:
            found += list(range(start, start + sizes[k])) if k not in held else []
            start += sizes[k]
        return torch.tensor(found, dtype=torch.int64, device=mech.device)

    num_q, num_dof = [kind.num_q for kind in kinds], [kind.num_dof for kind in kinds]
    terms = [(k, j) for k, row in followed_by(mech).items() for j in row]
    ratios = [i for i, (k, j) in enumerate(terms) if k not in held and j not in held]
    index = {
        "num_bodies": places([1] * mech.num_bodies, every),
        "num_joint_parameters": places([kind.num_parameters for kind in kinds], every),
        "num_tree_dof": places(num_dof, leaders),
        "num_tree_q": places(num_q, leaders),
        "num_modes": places(num_dof, [k for k in leaders if kinds[k].elastic]),
        "num_dof": places(num_dof, independent),
        "num_q": places(num_q, independent),
        "num_ratios": torch.tensor(ratios, dtype=torch.int64, device=mech.device),
    }
    found: dict[str, Any] = {
        name: getattr(mech, name).index_select(-len(field.shape), index[str(field.shape[0])])
        for name, field in FIELDS.items()
        if field.shape[0] in index and name not in changed
    }
    if mech.num_modes:
        found |= _of_modes(mech, held, index, found)
    selected = metadata.map_states(
        lambda q: q.index_select(-1, index["num_q"]),
        lambda qd: qd.index_select(-1, index["num_dof"]),
    )
    remaining = (index["num_tree_q"].tolist(), index["num_tree_dof"].tolist())
    found["file_metadata"] = replace(selected, solver=selected.solver.select(*remaining))
    return found


def _of_modes(
    mech: MechanismData,
    held: Mapping[int, Tensor],
    index: Mapping[str, Tensor],
    found: Mapping[str, Any],
) -> dict[str, Any]:
    """Matrices of the modal coordinates that remain, which a locked one at the end of a spring pushes."""
    kept = {
        name: found[name].index_select(-1, index["num_modes"])
        for name, field in FIELDS.items()
        if field.owner == "mode"
    }
    K, leaders = mech.modal_stiffness, dict.fromkeys(mech.coordinates.leaders)
    elastic = [k for k in leaders if mech.joints.kinds[k].elastic]
    parts = [held[k] if k in held else K.new_zeros(mech.joints.kinds[k].num_dof) for k in elastic]
    if all(k not in held for k in elastic):
        return kept
    push = matvec((K + K.mT) / 2, concatenate(parts)).index_select(-1, index["num_modes"])
    of_dofs = gather_entries(torch.nn.functional.pad(push, (0, 1)), _mode_places(mech, index))
    return kept | {"force_offset": found["force_offset"] + of_dofs, "has_force_offset": True}


def _mode_places(mech: MechanismData, index: Mapping[str, Tensor]) -> Tensor:
    """For each dof of the tree that remains its index among the modes that remain, or their number."""
    modes = index["num_modes"].tolist()
    places = mech.joints.mode_place.index_select(0, index["num_tree_dof"]).tolist()
    return torch.tensor(
        [modes.index(p) if p in modes else len(modes) for p in places], device=mech.device
    )


def _fixed_bodies(
    mech: MechanismData, placed: Mapping[int, Placed]
) -> tuple[UnsupportedElement, ...]:
    """Notes on bodies that are now fixed to the inertial frame."""
    return tuple(
        UnsupportedElement(
            f"body {mech.body_names[k]!r}",
            f"fixed to the inertial frame, because joint {mech.tree_joint_names[k]!r} is locked",
            fixed_inertia=_has_inertia(mech, k),
        )
        for k, where in placed.items()
        if where.carrier < 0
    )


def _has_inertia(mech: MechanismData, body: int) -> bool:
    """True if a body may have inertia; True if its values cannot be read, as under vmap."""
    found = [concrete_values(x) for x in (mech.mass[..., body], mech.inertia[..., body, :, :])]
    return any(x is None or bool(x.any()) for x in found)
