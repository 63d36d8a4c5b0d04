"""Notes on joint limits in `Mechanism.unused`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.dof_numbering import Numbering
from torchsko.mechanism.numbering import motions
from torchsko.utils.concrete_values import concrete_values

LIMITS = ("lower", "upper", "velocity_limit", "effort_limit")
"""Fields of a mechanism with limits."""


FOLLOWER_LIMITS = "limits of its dependent joints apply as well, and their efforts add up"
"""Reason why the limits of a joint differ from those in the file."""


class Limits(NamedTuple):
    """Limits of a joint of a robot file."""

    name: str
    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    effort: float = math.inf


def limit_notes(hinges: Sequence[Limits]) -> tuple[UnsupportedElement, ...]:
    """Notes that limits do not enter the dynamics, and on limits that allow no motion."""
    kinds = (
        ("position", ("lower", "upper"), "rollout(limits=LimitSprings()) enforces them"),
        ("velocity", ("velocity",), "nothing enforces them"),
        ("effort", ("effort",), 'rollout(effort="clamp") saturates forces'),
    )
    entries = []
    for what, fields, remedy in kinds:
        limited = [j for j in hinges if any(math.isfinite(getattr(j, field)) for field in fields)]
        if limited:
            what = f"limits of {what} of {_joint_count_text(limited)}"
            entries.append(UnsupportedElement(what, f"not in the dynamics; {remedy}"))
    return (*entries, *_blocked_joints(hinges))


def update_limit_notes(
    mech: Numbering, notes: Sequence[UnsupportedElement]
) -> tuple[UnsupportedElement, ...]:
    """Update the notes on limits after joints were locked or limits replaced.

    Notes name the first joint that they concern, which may no longer exist. They are left unchanged if the
    values of limits cannot be read, as under vmap. No new kind of note is added.

    Args:
        mech: the robot.
        notes: notes of the robot before the change.
    """
    joints = [f"joint {name!r}" for name in mech.joint_names]
    notes = [
        x for x in notes if x.reason != FOLLOWER_LIMITS or any(name in x.element for name in joints)
    ]
    reasons = {note.reason for note in limit_notes([Limits("", 0.0, 0.0, 0.0, 0.0)])}  # all of them
    present = {note.reason for note in notes} & reasons
    values = [concrete_values(getattr(mech, name)) for name in LIMITS] if present else [None]
    if any(x is None or not x.size for x in values):
        return tuple(notes)
    lower, upper, velocity, effort = (
        x.reshape(-1, x.shape[-1])[0] for x in values if x is not None
    )
    hinges = []
    for name in mech.joint_names:
        kind = mech.joints.kinds[mech.joint_index(name)]
        q, dof = mech.q_slice(name).start, mech.dof_slice(name).start
        for i, label in enumerate(motions(name, kind) or (name,) * kind.num_dof):
            ends = (
                (float(lower[q + i]), float(upper[q + i])) if kind.vector else (-math.inf, math.inf)
            )
            hinges.append(Limits(label, *ends, float(velocity[dof + i]), float(effort[dof + i])))
    unrelated = tuple(note for note in notes if note.reason not in reasons)
    return unrelated + tuple(note for note in limit_notes(hinges) if note.reason in present)


def _blocked_joints(hinges: Sequence[Limits]) -> list[UnsupportedElement]:
    """Notes on limits that allow no motion, which some files use for unknown limits."""
    kinds = (
        (
            "limits of position (equal)",
            [j for j in hinges if j.lower == j.upper],
            "random_state and inverse_kinematics(limits=True) fix the joint there; for unknown limits: "
            "mech.replace(lower=..., upper=...)",
        ),
        (
            "limit of velocity 0",
            [j for j in hinges if j.velocity == 0],
            "random_state gives zero velocity; for unknown limits: mech.replace(velocity_limit=...)",
        ),
        (
            "limit of effort 0",
            [j for j in hinges if j.effort == 0],
            "it allows no force if enforced; for unknown limits: mech.replace(effort_limit=...)",
        ),
    )
    return [
        UnsupportedElement(f"{what} of {_joint_count_text(blocked)}", why)
        for what, blocked, why in kinds
        if blocked
    ]


def _joint_count_text(joints: Sequence[Limits]) -> str:
    """Name of the first joint, and the number of further ones."""
    names = list(dict.fromkeys(joint.name for joint in joints))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"joint {names[0]!r}{more}"
