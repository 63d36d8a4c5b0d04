"""What a robot says of limits of its joints that a user may trip over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torchsko.mechanism.description import Unused


class Limits(NamedTuple):
    """How far, how fast and how strongly a joint of a robot file may move."""

    name: str
    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    effort: float = math.inf


def limit_notes(hinges: Sequence[Limits]) -> tuple[Unused, ...]:
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
            entries.append(Unused(what, f"not in the dynamics; {who}"))
    return (*entries, *_no_room(hinges))


def _no_room(hinges: Sequence[Limits]) -> list[Unused]:
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
    return [Unused(f"{what} of {_counted(none)}", why) for what, none, why in kinds if none]


def _counted(joints: Sequence[Limits]) -> str:
    """The first of some joints, and how many more there are."""
    more = f" and {len(joints) - 1} more" if len(joints) > 1 else ""
    return f"joint {joints[0].name!r}{more}"
