"""Which columns of a log are which: by the names that people give them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.learn.units import CURRENTS, Units

if TYPE_CHECKING:
    from torchsko.learn.tables import Table

Array = NDArray[np.floating[Any]]

CALLED = {
    "t": ("t", "time", "stamp", "timestamp"),
    "q": ("q", "pos", "position", "positions", "angle"),
    "qd": ("qd", "dq", "qdot", "vel", "velocity", "velocities"),
    "tau": ("tau", "torque", "torques", "effort", "efforts", "force"),
}
"""What each quantity is called in the files of others; where two stand in one file, the first counts."""

AMPERES = ("current", "currents")
"""What motor currents are called: forces where their unit is declared."""


STAMPED = re.compile(
    r"(|.*[^a-z])(?:(s|secs?|seconds)|(ns|nsecs?|nanosecs?|nanoseconds))", re.IGNORECASE
)
"""What the halves of a time in two columns are called, as in messages of ROS."""

COMMANDED = tuple("target desired des d cmd command commanded goal ref reference".split())
"""What columns of commands are called."""


def matched(
    path: Path,
    table: Table,
    joints: tuple[str, ...],
    columns: Mapping[str, Sequence[str]],
    units: Units,
    wanted: Sequence[str] = ("t", "q", "qd", "tau"),
) -> dict[str, Array]:
    """The arrays t, q, qd and tau of a table, as far as wanted, columns in the order of the joints.

    Raises:
        FitError: where a quantity that is wanted, besides velocities, or a joint's column is missing; names
            it and what there is.
    """
    out: dict[str, Array] = {}
    found = _by_joint(path, table, joints)
    for name, called in called_by(units.get("tau")).items():
        if name not in wanted:
            continue
        named = columns.get(name)
        if named is not None:
            x = {c: _column(path, table, c) for c in named}
            out[name] = (
                _time(path, x, units) if name == "t" else np.stack([x[c] for c in named], -1)
            )
            continue
        whole = next((c for c in found if c.lower().strip("_%") in called), None)
        if name == "t" and whole is None:  # of a message: /joint_states/header/stamp
            whole = next((c for c in found if re.split(r"[/.]", c.lower())[-1] in called), None)
        if whole is not None and (name == "t" or found[whole].ndim == 2):
            out[name] = found[whole]
        else:
            picked = (
                _in_two(found, units)
                if name == "t"
                else _of_joints(path, name, called, found, joints)
            )
            if picked is not None:
                out[name] = picked
    for name in wanted:
        if name not in out and name != "qd":
            if name == "tau":
                _refuse_currents(path, found)
            called = called_by(units.get("tau"))[name]
            raise FitError(
                f"{path}: no column is {_LONG[name]} ({name!r}).\n"
                f"There are {_there(table)}.\n"
                + (_in_lists(table, called) or _to_type(name, called, found, joints))
            )
    return out


def _by_joint(path: Path, table: Table, joints: tuple[str, ...]) -> dict[str, Array]:
    """Columns with the names of joints for their numbers, where the file says which are whose.

    As messages of ROS have them, in an order of their own, the alphabet's say.
    """
    found = dict(table.columns)
    words = "|".join(word for some in (*CALLED.values(), AMPERES) for word in some)
    for stem, named in table.orders.items():
        order = {k: _own_name(x, joints) for k, x in named.items()}
        if not set(order.values()) & set(joints):
            continue
        twice = [x for x in joints if list(order.values()).count(x) > 1]
        if twice:
            raise FitError(
                f"{path}: it names the joint {twice[0]!r} twice, in {', '.join(order.values())}.\n"
                "One of them would count, and nobody said which.\nName the columns by columns=."
            )
        for name, x in table.columns.items():
            if x.ndim == 2 and not stem and x.shape[1] == len(order):
                del found[name]
                # Of others nobody asks; two of one name may be among them.
                found |= {f"{name}_{order[k]}": x[:, i] for i, k in enumerate(sorted(order))}
            numbered = re.fullmatch(
                rf"{re.escape(stem)}({words})[\s_./\[(-]*(\d+)[\])]*", name, re.IGNORECASE
            )
            if numbered and int(numbered[2]) in order:
                del found[name]
                found[f"{stem}{numbered[1]}_{order[int(numbered[2])]}"] = x
    return found


def _own_name(name: str, joints: tuple[str, ...]) -> str:
    """A joint's name without the namespace before it, "left/elbow", where the robot's has none."""
    return name if name in joints else name.rsplit("/", 1)[-1]


def _in_lists(table: Table, called: Sequence[str]) -> str:
    """What to do where cells hold times as words, or the numbers of all joints; empty for others."""
    for name, kind in table.other.items():
        if kind == "words" and called == CALLED["t"] and name.lower() in called:
            return f"Write {name!r} as seconds, or as moments with a day: 2026-01-02T12:00:00.5."
        if kind in ("lists", "objects") and re.split(r"[/.]", name.lower())[-1] in called:
            return (
                f"Give each number of {name!r} a column of its own, {name}_0, {name}_1, ..., or an array "
                "[samples, joints] in an NPZ file."
            )
    return ""


def _in_two(found: Mapping[str, Array], units: Units) -> Array | None:
    """The time whose seconds and nanoseconds are columns of their own, called alike but for this.

    None where there are none, or a unit of times is declared: these have theirs.
    """
    halves: dict[str, dict[bool, Array]] = {}
    for name in found if "t" not in units else ():
        if word := STAMPED.fullmatch(name):
            halves.setdefault(word[1].lower(), {}).setdefault(word[2] is None, found[name])
    whole = (x for x in halves.values() if len(x) == 2)
    return next((x[False] + 1e-9 * x[True] for x in whole), None)


def _time(path: Path, named: Mapping[str, Array], units: Units) -> Array:
    """The time of the columns that were named for it: one, or seconds and nanoseconds."""
    time = next(iter(named.values())) if len(named) == 1 else _in_two(named, units)
    if time is None or len(named) > 2:
        raise FitError(
            f"{path}: the time was named as {len(named)} columns, {', '.join(map(repr, named))}.\n"
            "It is one column, or two whose names end in sec and nanosec, which are their units.\n"
            "Name one of these, and no unit of t beside two."
        )
    return time


def _to_type(
    name: str, called: Sequence[str], found: Mapping[str, Array], joints: tuple[str, ...]
) -> str:
    """How columns are named; those that may be meant: as many as joints, alike but for a number."""
    alike: dict[str, list[str]] = {}
    for column in found:
        alike.setdefault(re.sub(r"\d+(?=\D*$)", "#", column), []).append(column)
    some = [x for x in alike.values() if joints and len(x) == len(joints) and name != "t"]
    some = [x for x in some if _has_word(x[0], called)]
    # What was commanded is not what was measured.
    some.sort(key=lambda x: _has_word(x[0], COMMANDED))
    if not some:
        return f'Name them: columns={{"{name}": ["..."]}}, or --column {name}=...'
    return (
        f'Name them, in the order of the joints: columns={{"{name}": [...]}}, or --column '
        f"{name}={','.join(some[0])}, say."
    )


def _has_word(column: str, words: Sequence[str]) -> bool:
    return bool(re.search(rf"(?:^|[^a-z])(?:{'|'.join(words)})(?:[^a-z]|$)", column, re.IGNORECASE))


def called_by(unit: str | Mapping[str, str] | None) -> dict[str, tuple[str, ...]]:
    """What each quantity is called, where joint forces have a unit: first currents where it is theirs."""
    tau = CALLED["tau"]
    if unit is not None:
        tau = AMPERES + tau if unit in CURRENTS else tau + AMPERES
    return {**CALLED, "tau": tau}


def _refuse_currents(path: Path, found: Mapping[str, Array]) -> None:
    called = [
        name
        for name in found
        if re.search("|".join(AMPERES), name, re.IGNORECASE) or re.search(r"[\[(]m?A[\])]$", name)
    ]
    if called:
        raise FitError(
            f"{path}: {called[0]!r} is a current, and no unit is declared.\n"
            "Taken for a force it would make another robot.\n"
            'Declare it, units={"tau": "A"} or --unit tau=A: torque constants are found; or tau=Nm.'
        )


_LONG = {"t": "the time", "q": "a position", "tau": "a joint force"}


def _there(table: Table) -> str:
    """Columns, and the types of those that hold no numbers."""
    words = [f"{name!r} ({kind}, no number)" for name, kind in table.other.items()]
    names = list(map(repr, table.columns))
    more = len(names[12:]) + len(words[6:])
    return ", ".join([*names[:12], *words[:6]]) + (f", and {more} more" if more else "")


def _column(path: Path, table: Table, name: str) -> Array:
    if name not in table.columns:
        raise FitError(
            f"{path}: there is no column {name!r}.\nThere are {_there(table)}.\nName one of these."
        )
    return table.columns[name]


def _refuse_two(path: Path, name: str, owner: str, one: str, other: str) -> None:
    raise FitError(
        f"{path}: two columns are {name} of {owner!r}: {one!r} and {other!r}.\n"
        "One of them would count, and nobody said which.\n"
        f'Say which are: columns={{"{name}": [...]}}, or --column {name}=...'
    )


def _of_joints(
    path: Path,
    name: str,
    called: Sequence[str],
    found: Mapping[str, Array],
    joints: tuple[str, ...],
) -> Array | None:
    """Columns of one quantity, by the name of the joint or by number."""
    by: dict[str, str] = {}
    words: dict[str, str] = {}
    for word, column in itertools.product(called, found):
        # Whole words, so that "qd_1" is no position and "joint1_tau" no time; parts of a path are words.
        first = re.fullmatch(
            rf"(?:.*(?:[/.]|__))?{word}(?:[\s_./\[(-]*)(.+?)[\])]*", column, re.IGNORECASE
        )
        last = re.fullmatch(rf"(.+?)[\s_./-]+{word}", column, re.IGNORECASE)
        owners = {m[1] for m in (first, last) if m is not None}
        for owner in owners | {owner.rsplit("/", 1)[-1] for owner in owners}:
            if owner not in joints and not owner.isdigit():
                continue
            if by.get(owner, column) != column and words[owner] == word:
                _refuse_two(path, name, owner, by[owner], column)
            by.setdefault(owner, column)
            words.setdefault(owner, word)
    if any(owner in joints for owner in by):
        missing = [joint for joint in joints if joint not in by]
        if missing:
            raise FitError(
                f"{path}: no column is {name} of joint {missing[0]!r}.\n"
                f"There are {', '.join(repr(by[j]) for j in joints if j in by)}.\n"
                f'Name the column "{name}_{missing[0]}", or say which are: columns={{"{name}": [...]}}, '
                "all that a joint has, seven positions of one that floats say"
                + (", and no forces of it if nobody measured them." if name == "tau" else ".")
            )
        return np.stack([found[by[joint]] for joint in joints], -1)
    numbered = sorted((owner for owner in by if owner.isdigit()), key=int)
    if not numbered:
        return None
    if joints and len(numbered) != len(joints):
        raise FitError(
            f"{path}: {len(numbered)} columns are {name}, the robot has {len(joints)} joints.\n"
            "Columns with numbers are taken in the order of the joints.\n"
            f'Name them after the joints, "{name}_{joints[0]}", or pass columns={{"{name}": [...]}}.'
        )
    return np.stack([found[by[owner]] for owner in numbered], -1)
