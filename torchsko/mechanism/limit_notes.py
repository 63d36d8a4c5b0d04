"""What a robot says of limits of its joints that a user may trip over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.numbering import motions
from torchsko.utils.concrete_values import concrete_values

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism

LIMITS = ("lower", "upper", "velocity_limit", "effort_limit")
"""Fields of a mechanism that hold limits."""


LED = "those of joints that follow it hold, too, and efforts add up"
"""Why a joint has other limits than its own."""


class Limits(NamedTuple):
    """How far, how fast and how strongly a joint of a robot file may move."""

    name: str
    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    effort: float = math.inf


def limit_notes(hinges: Sequence[Limits]) -> tuple[UnsupportedElement, ...]:
    """Limits are kept as numbers, which no equation of motion holds; and some of them allow nothing."""
    kept = (
        ("position", ("lower", "upper"), "rollout(limits=LimitSprings()) holds joints there"),
        ("velocity", ("velocity",), "nothing enforces them"),
        ("effort", ("effort",), 'rollout(effort="clamp") saturates forces there'),
    )
    entries = []
    for what, fields, who in kept:
        limited = [j for j in hinges if any(math.isfinite(getattr(j, field)) for field in fields)]
        if limited:
            what = f"limits of {what} of {_counted(limited)}"
            entries.append(UnsupportedElement(what, f"not in the dynamics; {who}"))
    return (*entries, *_no_room(hinges))


def without_gone(
    mech: Mechanism, notes: Sequence[UnsupportedElement]
) -> tuple[UnsupportedElement, ...]:
    """What is not used of a robot, with notes on limits of those joints that it still has, and that hold.

    Notes count joints by the name of the first, which may be gone. They stay where limits cannot be looked
    at, as under vmap. No kind of note is added: that somebody took limits to 0 he knows.

    Args:
        mech: the robot.
        notes: of the robot that it was, with more joints, or other limits.
    """
    here = [f"joint {name!r}" for name in mech.joint_names]
    notes = [x for x in notes if x.reason != LED or any(name in x.element for name in here)]
    ours = {note.reason for note in limit_notes([Limits("", 0.0, 0.0, 0.0, 0.0)])}  # any there are
    told = {note.reason for note in notes} & ours
    values = [concrete_values(getattr(mech, name)) for name in LIMITS] if told else [None]
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
    others = tuple(note for note in notes if note.reason not in ours)
    return others + tuple(note for note in limit_notes(hinges) if note.reason in told)


def _no_room(hinges: Sequence[Limits]) -> list[UnsupportedElement]:
    """Limits that allow nothing, as files write them that know none."""
    kinds = (
        (
            "limits of position that meet",
            [j for j in hinges if j.lower == j.upper],
            "random_state and inverse_kinematics(limits=True) keep it there; where none are known: "
            "mech.replace(lower=..., upper=...)",
        ),
        (
            "limit of velocity 0",
            [j for j in hinges if j.velocity == 0],
            "random_state gives no velocity; where none is known: mech.replace(velocity_limit=...)",
        ),
        (
            "limit of effort 0",
            [j for j in hinges if j.effort == 0],
            "no force is allowed where it holds; where none is known: mech.replace(effort_limit=...)",
        ),
    )
    return [
        UnsupportedElement(f"{what} of {_counted(none)}", why) for what, none, why in kinds if none
    ]


def _counted(joints: Sequence[Limits]) -> str:
    """The first of some joints, and how many more there are."""
    names = list(dict.fromkeys(joint.name for joint in joints))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"joint {names[0]!r}{more}"
