"""What a log does not say, or not for sure: refused by column, with what to type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import (
    AMPERES,
    CALLED,
    COMMANDED,
    NOTHING,
    TIMELY,
    WORDS,
    has_word,
    owners_of,
)
from torchsko.identification.logs.units import IN_NAME, OF, SCALE, unit_of

if TYPE_CHECKING:
    from torchsko.identification.logs.table import Table

Array = NDArray[np.floating[Any]]

LONG = {"t": "the time", "q": "a position", "tau": "a joint force"}


def there(table: Table) -> str:
    """Columns, and the types of those that hold no numbers."""
    words = [f"{name!r} ({kind}, no number)" for name, kind in table.other.items()]
    names = list(map(repr, table.columns))
    more = len(names[12:]) + len(words[6:])
    return ", ".join([*names[:12], *words[:6]]) + (f", and {more} more" if more else "")


def in_lists(table: Table, called: Sequence[str]) -> str:
    """What to do where cells hold times as words, or the numbers of all joints; empty for others."""
    for name, kind in table.other.items():
        if kind in WORDS and called == CALLED["t"] and name.lower() in called:
            return f"Write {name!r} as seconds, or as moments with a day: 2026-01-02T12:00:00.5."
        if kind in ("lists", "objects") and re.split(r"[/.]", name.lower())[-1] in called:
            return (
                f"Give each number of {name!r} a column of its own, {name}_0, {name}_1, ..., or an array "
                "[samples, joints] in an NPZ file."
            )
    return ""


def to_type(name: str, called: Sequence[str], table: Table, joints: tuple[str, ...]) -> str:
    """How columns are named; those that may be meant: as many as joints, alike but for a number."""
    if name == "t":
        times = [
            c
            for c, x in table.columns.items()
            if _may_be_time(c, table.units.get(c)) and x.ndim == 1
        ]
        return (
            f'Name it, and its unit where that is not s: columns={{"t": ["{times[0]}"]}}, or --column '
            f"t={times[0]}, say."
            if times
            else 'Name it: columns={"t": ["..."]}, or --column t=...'
        )
    alike: dict[str, list[str]] = {}
    for column in table.columns:
        alike.setdefault(re.sub(r"\d+(?=\D*$)", "#", column), []).append(column)
    wide = [x for x in table.columns.values() if x.ndim == 2]
    some = [x for x in alike.values() if joints and len(x) == len(joints)]
    some += [[c] for c, x in table.columns.items() if x.ndim == 2] if wide else []
    some = [x for x in some if has_word(x[0], called)]
    # What was commanded is not what was measured.
    some.sort(key=lambda x: has_word(x[0], COMMANDED))
    if not some:
        return f'Name them: columns={{"{name}": ["..."]}}, or --column {name}=...'
    return (
        f'Name them, in the order of the joints: columns={{"{name}": [...]}}, or --column '
        f"{name}={','.join(some[0])}, say."
    )


def _may_be_time(column: str, unit: str | None) -> bool:
    """Whether a column may be meant that is not called a time as others call it."""
    return unit in ("s", "ms", "us", "ns") or has_word(column, TIMELY)


def refuse_currents(path: Path, found: Mapping[str, Array]) -> None:
    """Refuse a log whose joint forces are currents by their names, of which no unit is declared."""
    called = [
        name
        for name in found
        if re.search("|".join(AMPERES), name, re.IGNORECASE) or re.search(r"[\[(]m?A[\])]$", name)
    ]
    if called:
        raise of_current(path, called[0])


def of_current(path: Path, name: str) -> FitError:
    """A column is a current, and no unit is declared."""
    return FitError(
        f"{path}: {name!r} is a current, and no unit is declared.",
        "Taken for a force it would make another robot.",
        'Declare it, units={"tau": "A"} or --unit tau=A: torque constants are found; or tau=Nm.',
    )


def refuse_words(path: Path, table: Table, called: Sequence[str], joints: tuple[str, ...]) -> None:
    """Refuse velocities that hold no numbers: without them positions would be differentiated, unsaid."""
    for name, kind in table.other.items():
        owners = {owner for word in called for owner in owners_of(word, name)}
        own = any(owner in joints or owner.isdigit() for owner in owners)
        if kind not in NOTHING and (own or name.lower() in called):
            raise FitError(
                f"{path}: the velocity {name!r} holds no numbers ({kind}).",
                "Velocities that were measured count; those that were not have no column, or an empty one.",
                f"Write {name!r} as numbers, or leave all velocities out: positions tell them.",
            )


def of_two(path: Path, name: str, owner: str, one: str, other: str) -> FitError:
    """Two columns are the same of one joint, or of all."""
    return FitError(
        f"{path}: two columns are {name} of {owner}: {one!r} and {other!r}.",
        "One of them would count, and nobody said which.",
        f'Say which are: columns={{"{name}": [...]}}, or --column {name}=...',
    )


def of_unknown_unit(found: Mapping[str, Array], quantity: str, joint: str) -> str:
    """What to do where a joint's column has a unit that is not known; empty where it has none."""
    for column in found:
        mark = IN_NAME.fullmatch(column)
        if mark is not None and joint in mark[1] and unit_of(mark[2]) not in SCALE:
            able = ", ".join(OF[quantity])
            return f"The unit of {column!r} is not known: write its numbers in one of {able}."
    return ""
