"""Which columns of a log are which: by the names that people give them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_errors import (
    LONG,
    in_lists,
    of_current,
    of_two,
    of_unknown_unit,
    refuse_currents,
    refuse_words,
    there,
    to_type,
)
from torchsko.identification.logs.column_names import (
    AMPERES,
    CALLED,
    OF_JOINTS,
    STAMPED,
    called_by,
    owners_of,
    rank,
)
from torchsko.identification.logs.units import CURRENTS, Units, refuse_other

if TYPE_CHECKING:
    from torchsko.identification.logs.table import Table

Array = NDArray[np.floating[Any]]


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
    known = by_joint(path, table, joints, columns)
    found = known.columns
    for name, called in called_by(units.get("tau")).items():
        if name not in wanted:
            continue
        named = columns.get(name)
        picked = (
            _picked(path, name, called, known, joints, units)
            if named is None
            else [x for c in named for x in _column(path, known, c, joints)]
        )
        if not picked:
            continue
        said = {c: known.units[c] for c, _ in picked if c in known.units}
        refuse_other(path, name, said)
        currents = [c for c, unit in said.items() if unit in CURRENTS]
        if currents and "tau" not in units:
            raise of_current(path, currents[0])
        out[name] = (
            _time(path, dict(picked), units) if name == "t" else _side_by_side(path, name, picked)
        )
        if name == "qd" and named is None and _is_empty(out[name]):
            del out[name]  # of a driver that has columns for velocities, and none
    for name in wanted:
        if name in out:
            continue
        called = called_by(units.get("tau"))[name]
        if name == "qd":
            refuse_words(path, table, called, joints)
            continue
        if name == "tau":
            refuse_currents(path, found)
        raise FitError(
            f"{path}: no column is {LONG[name]} ({name!r}).",
            f"There are {there(table)}.",
            in_lists(table, called) or to_type(name, called, known, joints),
        )
    return out


def _side_by_side(path: Path, name: str, picked: Sequence[tuple[str, Array]]) -> Array:
    """Columns `[samples]`, and arrays `[samples, some]`, as one; not copied where it is one array.

    Raises:
        FitError: they have different numbers of samples.
    """
    blocks = [x if x.ndim != 1 else x[:, None] for _, x in picked]
    if len(blocks) == 1:
        return blocks[0]
    if len({x.shape[:-1] for x in blocks}) > 1 or blocks[0].ndim != 2:
        shapes = ", ".join(f"{c!r} {list(x.shape)}" for c, x in picked)
        raise FitError(
            f"{path}: the columns of {name} have other shapes: {shapes}.",
            "Each sample has a number for each joint.",
            "Give all as many samples, [samples] or [samples, joints].",
        )
    return np.concatenate(blocks, -1)


def _is_empty(x: Array) -> bool:
    """Whether there is no number in it at all; one glance where there are some."""
    return x.dtype.kind == "f" and x.ndim == 2 and bool(np.isnan(x[:1]).all() and np.isnan(x).all())


def _picked(
    path: Path,
    name: str,
    called: Sequence[str],
    table: Table,
    joints: tuple[str, ...],
    units: Units,
) -> list[tuple[str, Array]]:
    """The columns of a quantity, with their names, in the order of the joints; none where there are none."""
    found = table.columns
    whole = next((c for c in found if c.lower().strip("_%") in called), None)
    if name == "t":
        if whole is None:  # of a message: /joint_states/header/stamp
            whole = next((c for c in found if re.split(r"[/.]", c.lower())[-1] in called), None)
        return _halves(path, found, units) if whole is None else [(whole, found[whole])]
    if whole is not None and found[whole].ndim == 2:
        return [(whole, found[whole])]
    some = _of_joints(path, name, called, found, joints)
    if not some and whole is not None and len(joints) == 1:  # all of a pendulum
        some = [whole]
    if not some:
        arrays = ((rank(c, called), c) for c, x in found.items() if x.ndim == 2)
        first = sorted(x for x in arrays if x[0] < len(called))
        if len(first) > 1 and first[0][0] == first[1][0]:
            raise of_two(path, name, "all joints", first[0][1], first[1][1])
        some = [c for _, c in first[:1]]
    return [(c, found[c]) for c in some]


def by_joint(
    path: Path, table: Table, joints: tuple[str, ...], columns: Mapping[str, Sequence[str]]
) -> Table:
    """Columns with the names of joints for their numbers, where the file says which are whose.

    As messages of ROS have them, in an order of their own, the alphabet's say. Arrays of all joints of the
    robot have its order.
    """
    found, units = dict(table.columns), dict(table.units)
    words = "|".join(word for some in (*CALLED.values(), AMPERES) for word in some)
    for stem, named in table.orders.items():
        order = {k: _own_name(x, joints) for k, x in named.items()}
        if not set(order.values()) & set(joints):
            continue
        twice = [x for x in joints if list(order.values()).count(x) > 1]
        if twice:
            raise FitError(
                f"{path}: it names the joint {twice[0]!r} twice, in {', '.join(order.values())}.",
                "One of them would count, and nobody said which.",
                "Name the columns by columns=.",
            )
        theirs = [order[k] for k in sorted(order)]
        for name, x in table.columns.items():
            new: dict[str, Array] = {}
            if x.ndim == 2 and name.startswith(stem):
                new = _in_order(path, name, x, theirs, joints, columns)
            numbered = re.fullmatch(
                rf"{re.escape(stem)}({OF_JOINTS}(?:{words}))[\s_./\[(-]*(\d+)[\])]*",
                name,
                re.IGNORECASE,
            )
            if numbered and int(numbered[2]) in order:
                new = {f"{stem}{numbered[1]}_{order[int(numbered[2])]}": x}
            if new:
                if name not in new:
                    del found[name]
                found |= new
                units |= dict.fromkeys(new, units[name]) if name in units else {}
    return replace(table, columns=found, units=units)


def _in_order(
    path: Path,
    name: str,
    x: Array,
    theirs: Sequence[str],
    joints: tuple[str, ...],
    columns: Mapping[str, Sequence[str]],
) -> dict[str, Array]:
    """An array whose columns the file names: in the robot's order, or by joint where one is missing.

    Raises:
        FitError: it has another number of columns, and they may be in another order than the robot's.
    """
    if x.shape[1] == len(theirs):
        if set(joints) <= set(theirs):
            if theirs == list(joints):
                return {name: x}
            more = {f"{name}_{j}": x[:, i] for i, j in enumerate(theirs) if j not in joints}
            return {name: x[:, [theirs.index(j) for j in joints]]} | more
        # Of others nobody asks; two of one name may be among them.
        return {f"{name}_{j}": x[:, i] for i, j in enumerate(theirs)}
    all_called = [word for some in (*CALLED.values(), AMPERES) for word in some]
    is_asked = rank(name, all_called) < len(all_called) or any(name in c for c in columns.values())
    # A joint that floats has several coordinates, and one name.
    if is_asked and list(theirs) != [j for j in joints if j in theirs]:
        raise FitError(
            f"{path}: {name!r} has {x.shape[1]} columns, and the file names the joints {', '.join(theirs)}.",
            "Which column is whose nobody can tell, as their order is not the robot's.",
            "Give the array a column for each name, or put both in the robot's order: "
            f"{', '.join(joints)}.",
        )
    return {}


def _own_name(name: str, joints: tuple[str, ...]) -> str:
    """A joint's name without the namespace before it, "left/elbow", where the robot's has none."""
    return name if name in joints else name.rsplit("/", 1)[-1]


def _halves(path: Path, found: Mapping[str, Array], units: Units) -> list[tuple[str, Array]]:
    """The two columns of seconds and nanoseconds of one time, called alike but for this, in this order.

    None where there are none, or a unit of times is declared: these have theirs.

    Raises:
        FitError: the two are no halves of one time, but two times.
    """
    halves: dict[str, dict[bool, str]] = {}
    for name in found if "t" not in units else ():
        if word := STAMPED.fullmatch(name):
            halves.setdefault(word[1].lower(), {}).setdefault(word[2] is None, name)
    pair = next((x for x in halves.values() if len(x) == 2), None)
    if pair is None:
        return []
    sec, nano = found[pair[False]], found[pair[True]]
    beyond = np.isfinite(nano) & ((nano < 0) | (nano >= 1e9))
    if beyond.any() or (np.isfinite(sec) & (sec != np.floor(sec))).any():
        raise FitError(
            f"{path}: {pair[False]!r} and {pair[True]!r} are called like halves of one time, and are two.",
            "Halves are whole seconds, and nanoseconds from 0 to less than 1e9.",
            f'Name one of them: columns={{"t": ["{pair[True]}"]}}, or --column t={pair[True]}, say.',
        )
    return [(pair[k], found[pair[k]]) for k in (False, True)]


def _time(path: Path, named: Mapping[str, Array], units: Units) -> Array:
    """The time of the columns that are it: one, also of `[samples, 1]`, or seconds and nanoseconds."""
    if len(named) == 1:
        time = next(iter(named.values()))
        return time.reshape(-1) if time.ndim == 2 and 1 in time.shape else time
    pair = _halves(path, named, units) if len(named) == 2 else []
    if not pair:
        raise FitError(
            f"{path}: the time was named as {len(named)} columns, {', '.join(map(repr, named))}.",
            "It is one column, or two whose names end in sec and nanosec, which are their units.",
            "Name one of these, and no unit of t beside two.",
        )
    return pair[0][1] + 1e-9 * pair[1][1]


def _column(
    path: Path, table: Table, name: str, joints: tuple[str, ...]
) -> list[tuple[str, Array]]:
    """A column that was named, or, of an array whose columns the file names, those of the joints."""
    if name in table.columns:
        return [(name, table.columns[name])]
    parts = [(c, table.columns[c]) for j in joints if (c := f"{name}_{j}") in table.columns]
    if not parts or len(parts) < len(joints):
        raise FitError(
            f"{path}: there is no column {name!r}.",
            f"There are {there(table)}.",
            "Name one of these.",
        )
    return parts


def _of_joints(
    path: Path,
    name: str,
    called: Sequence[str],
    found: Mapping[str, Array],
    joints: tuple[str, ...],
) -> list[str]:
    """Columns of one quantity, by the name of the joint or by number; none where there are none."""
    by: dict[str, str] = {}
    words: dict[str, str] = {}
    for word, column in itertools.product(called, found):
        for owner in owners_of(word, column):
            if owner not in joints and not owner.isdigit():
                continue
            if by.get(owner, column) != column and words[owner] == word:
                raise of_two(path, name, repr(owner), by[owner], column)
            by.setdefault(owner, column)
            words.setdefault(owner, word)
    if any(owner in joints for owner in by):
        missing = [joint for joint in joints if joint not in by]
        if missing:
            raise FitError(
                f"{path}: no column is {name} of joint {missing[0]!r}.\n"
                f"There are {', '.join(repr(by[j]) for j in joints if j in by)}.\n"
                + (
                    of_unknown_unit(found, name, missing[0])
                    or f'Name the column "{name}_{missing[0]}"'
                    + (", of zeros where nothing drives the joint," if name == "tau" else ",")
                    + f' or say which are: columns={{"{name}": '
                    "[...]}, all that a joint has, seven positions of one that floats say"
                    + (", and no forces of it if nobody measured them." if name == "tau" else ".")
                )
            )
        return [by[joint] for joint in joints]
    numbered = sorted((owner for owner in by if owner.isdigit()), key=int)
    if not numbered:
        return []
    if joints and len(numbered) != len(joints):
        raise FitError(
            f"{path}: {len(numbered)} columns are {name}, the robot has {len(joints)} joints.",
            "Columns with numbers are taken in the order of the joints.",
            f'Name them after the joints, "{name}_{joints[0]}", or pass columns={{"{name}": [...]}}.',
        )
    return [by[owner] for owner in numbered]
