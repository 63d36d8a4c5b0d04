"""Assignment of the columns of a file to time, positions, velocities and forces, by their names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import (
    CURRENT_NAMES,
    QUANTITY_NAMES,
    contains_word,
    joint_candidates,
    match_joint,
    name_rank,
    prefixed_joints,
    quantity_names,
)
from torchsko.identification.logs.csv_file import Table
from torchsko.identification.logs.units import (
    BRACKETED,
    CURRENT_UNITS,
    QUANTITY_UNITS,
    SI_SCALE,
    Units,
    normalize_unit,
)

Array = NDArray[np.floating[Any]]

NOT_MEASURED = "-"
"""Name of a column that was not measured; alone for qd, no velocity was."""


MAX_LISTED_COLUMNS = 12
"""Columns that a message lists."""

LABELS = {"t": "the time", "q": "a position", "qd": "a velocity", "tau": "a joint force"}
"""Quantities in messages."""


def apply_file_units(path: Path, table: Table, joints: tuple[str, ...], units: Units) -> Table:
    """Convert columns with a unit in brackets, "q_elbow [deg]", to SI units, and remove it from their names.

    Columns of currents keep their names unless the unit of tau is declared.

    Args:
        path: of the file.
        table: its contents.
        joints: names in the robot's order; "q[m]" may be one.
        units: declared by the user; the file must not contradict them.

    Raises:
        FitError: if the file and the declaration differ, or two columns differ in their units only.
    """
    converted: dict[str, Array] = {}
    for name, x in table.columns.items():
        match = BRACKETED.fullmatch(name)
        unit = None if match is None or match[2] in joints else normalize_unit(match[2])
        quantity = next((key for key, known in QUANTITY_UNITS.items() if unit in known), None)
        if match is None or unit is None or quantity is None:
            converted[name] = x
            continue
        declared = units.get(quantity)
        if unit in CURRENT_UNITS and declared is None:
            converted[name] = x
            continue
        if declared not in (None, unit):
            raise FitError(
                f"{path}: column {name!r} is in {unit}, and {quantity} was declared in {declared}.",
                "Units in the file are applied without a declaration.",
                f"Leave the unit of {quantity} out.",
            )
        bare = match[1]
        if bare in converted or bare in table.columns:
            raise FitError(
                f"{path}: there are two columns {bare!r}, one of them as {name!r}.",
                "The names of columns, without units, must be unique.",
                "Rename one of them, or remove it.",
            )
        is_si = declared is not None or SI_SCALE[unit] == 1
        converted[bare] = x if is_si else x * SI_SCALE[unit]
        if name in table.invalid:
            table.invalid[bare] = table.invalid[name]
    return table._replace(columns=converted)


def match_columns(
    path: Path,
    table: Table,
    joints: tuple[str, ...],
    columns: Mapping[str, Sequence[str]],
    units: Units,
    quantities: Sequence[str] = ("t", "q", "qd", "tau"),
    *,
    rate: float | None = None,
) -> dict[str, Array]:
    """Arrays of t, q, qd and tau from a table, with columns in the order of the joints.

    Args:
        path: of the file, for messages.
        table: contents of the file.
        joints: names in the robot's order.
        columns: names of columns that the user gave, by quantity.
        units: declared by the user.
        quantities: that are needed.
        rate: of the samples of a file without times [Hz].

    Raises:
        FitError: if a quantity other than velocities, or a joint's column, is missing; names it.
    """
    arrays: dict[str, Array] = {}
    known = quantity_names(units.get("tau"))
    for name in quantities:
        if name in columns:
            found = [_given_column(path, table, c) for c in columns[name]]
        else:
            found = _find_columns(path, name, known[name], table.columns, joints)
        for column, _ in found:
            if column in table.invalid:
                raise FitError(
                    f"{path}: {column!r} is {LABELS[name]} and holds {table.invalid[column]}.",
                    "A log has numbers; empty cells and nan are missing samples. Times are in seconds.",
                    "Convert the column, for example with pandas, or select other columns.",
                )
        if name == "t" and rate is not None:
            arrays[name] = _even_times(path, table, found, rate)
        elif name == "t" and found:
            arrays[name] = _concatenate(path, name, found).reshape(-1)
        elif found:
            x = _concatenate(path, name, found)
            # Empty columns of velocities count as not measured.
            chosen = set(columns.get(name, [NOT_MEASURED])) != {NOT_MEASURED}
            if name != "qd" or chosen or not _is_all_nan(x):
                arrays[name] = x
        elif name != "qd":
            raise _missing_quantity(path, name, table, units)
    return arrays


def _even_times(
    path: Path, table: Table, found: Sequence[tuple[str, Array]], rate: float
) -> NDArray[np.float64]:
    """Times of a file without times."""
    if found:
        raise FitError(
            f"{path}: the rate {rate:g} Hz is given, and {found[0][0]!r} is the time.",
            "A rate gives the times of a file without times.",
            "Leave out the rate, or the column of the time.",
        )
    return np.arange(len(next(iter(table.columns.values()), ()))) / rate


def extra_columns(
    columns: Mapping[str, Array], joints: tuple[str, ...], units: Units
) -> dict[str, dict[str, Array]]:
    """Positions and forces of other joints than the robot's, in SI units, by quantity and joint, `[samples]`.

    The name of a column gives the joint. If two columns may belong to one joint, neither is used.

    Args:
        columns: of a file, in SI units where the file specifies units.
        joints: names of the robot's joints.
        units: declared by the user.
    """
    extra: dict[str, dict[str, Array]] = {}
    for name in ("q", "tau"):
        by_joint: dict[str, set[str]] = {}
        for word, column in itertools.product(quantity_names(units.get("tau"))[name], columns):
            if columns[column].ndim == 1 and joints:
                for joint in joint_candidates(word, column):
                    if match_joint(joint, joints) is None:
                        by_joint.setdefault(joint, set()).add(column)
        extra[name] = {}
        for joint, names in by_joint.items():
            if len(names) == 1 and not joint.isdigit():
                x, unit = columns[next(iter(names))], units.get(name)
                unit = unit.get(joint) if isinstance(unit, Mapping) else unit
                extra[name][joint] = x if unit is None else x * SI_SCALE[unit]
    return extra


def _list_columns(table: Table) -> str:
    """Names of the first columns, and the number of the others."""
    names = [repr(name) for name in table.columns]
    more = len(names[MAX_LISTED_COLUMNS:])
    return ", ".join(names[:MAX_LISTED_COLUMNS]) + (f", and {more} more" if more else "")


def _missing_quantity(path: Path, name: str, table: Table, units: Units) -> FitError:
    """No column is a quantity; currents count as forces only if their unit is declared."""
    currents = [c for c in table.columns if contains_word(c, CURRENT_NAMES) or c.endswith("A]")]
    if name == "tau" and "tau" not in units and currents:
        return FitError(
            f"{path}: {currents[0]!r} is a current, and no unit is declared.",
            "Currents are not forces: torque constants must be identified as well.",
            'Declare the unit, units={"tau": "A"} or --unit tau=A, and known constants by gain= or --gain.',
        )
    rate = "; for even samples without times, give the rate in Hz: rate=100 or --rate 100"
    return FitError(
        f"{path}: no column is {LABELS[name]} ({name!r}).",
        f"The columns are {_list_columns(table)}.",
        f'Select them, in the order of the joints: columns={{"{name}": ["...", "..."]}}, or --column '
        f"{name}=...{rate if name == 't' else ''}.",
    )


def _concatenate(path: Path, name: str, found: Sequence[tuple[str, Array]]) -> Array:
    """Concatenate columns `[samples]` and arrays `[samples, n]`; a single array is not copied.

    Raises:
        FitError: if their numbers of samples differ.
    """
    blocks = [x if x.ndim != 1 else x[:, None] for _, x in found]
    if len(blocks) == 1:
        return blocks[0]
    if len({x.shape[:-1] for x in blocks}) > 1 or blocks[0].ndim != 2:
        shapes = ", ".join(f"{c!r} {list(x.shape)}" for c, x in found)
        raise FitError(
            f"{path}: the columns of {name} have different shapes: {shapes}.",
            "Each sample needs a number for each joint.",
            "Give all columns the same number of samples, [samples] or [samples, joints].",
        )
    return np.concatenate(blocks, -1)


def _is_all_nan(x: Array) -> bool:
    """Test whether an array is all nan; the first sample decides most cases."""
    return x.dtype.kind == "f" and x.ndim == 2 and bool(np.isnan(x[:1]).all() and np.isnan(x).all())


def _find_columns(
    path: Path,
    name: str,
    names: Sequence[str],
    columns: Mapping[str, Array],
    joints: tuple[str, ...],
) -> list[tuple[str, Array]]:
    """Columns of a quantity with their names, in the order of the joints; empty if there are none."""
    exact = next((c for c in columns if c.lower().strip("_%- ") in names), None)
    if name == "t":
        if exact is None:  # the end of a path: /joint_states/header/stamp
            exact = next((c for c in columns if re.split(r"[/.]", c.lower())[-1] in names), None)
        return [] if exact is None else [(exact, columns[exact])]
    if exact is not None and columns[exact].ndim == 2:
        return [(exact, columns[exact])]
    found = _find_joint_columns(path, name, names, columns, joints)
    if not found and exact is not None and len(joints) == 1:
        found = [exact]
    if not found:
        ranks = [(name_rank(c, names), c) for c, x in columns.items() if x.ndim == 2]
        best = sorted(x for x in ranks if x[0] < len(names))
        if len(best) > 1 and best[0][0] == best[1][0]:
            raise _ambiguous_columns(path, name, "all joints", best[0][1], best[1][1])
        found = [c for _, c in best[:1]]
    return [(c, columns[c]) for c in found]


def _given_column(path: Path, table: Table, name: str) -> tuple[str, Array]:
    """A column that the user gave; the name "-" stands for one that was not measured, which is nan."""
    if name == NOT_MEASURED and table.columns:
        return name, np.full(len(next(iter(table.columns.values()))), np.nan)
    match = BRACKETED.fullmatch(name)
    for known in (name, "" if match is None else match[1]):  # without its unit in brackets
        if known in table.columns:
            return known, table.columns[known]
    raise FitError(
        f"{path}: there is no column {name!r}.",
        f"The columns are {_list_columns(table)}.",
        "Use one of these names.",
    )


def _ambiguous_columns(path: Path, name: str, owner: str, first: str, second: str) -> FitError:
    """Two columns are the same quantity of one joint, or of all."""
    return FitError(
        f"{path}: two columns are {name} of {owner}: {first!r} and {second!r}.",
        "The names do not determine which one to use.",
        f'Select the columns: columns={{"{name}": [...]}}, or --column {name}=...',
    )


def _find_joint_columns(
    path: Path,
    name: str,
    names: Sequence[str],
    columns: Mapping[str, Array],
    joints: tuple[str, ...],
) -> list[str]:
    """Columns of a quantity by the name or number of the joint; empty if there are none."""
    # A coupling may name a drive by the column of its positions.
    stems = {x: j for j in joints if j in columns for x in _position_stems(j)}
    candidates = [
        (word, column, joint if joint.isdigit() else stems.get(joint, joint))
        for word, column in itertools.product(names, columns)
        for joint in sorted(joint_candidates(word, column))
    ]
    by_joint = _by_joint(path, name, [x for x in candidates if x[2] in joints])
    loose = [(w, c, match_joint(x, joints)) for w, c, x in candidates if x not in joints]
    rest = [(w, c, j) for w, c, j in loose if j is not None and j not in by_joint]
    by_joint |= _by_joint(path, name, [x for x in rest if x[1] not in by_joint.values()])
    if not by_joint:
        loose = [
            x for x in candidates if contains_word(x[1], [x[0]])
        ]  # "qd_elbow" is no "q" of "d_elbow"
        same = prefixed_joints({x for _, _, x in loose}, joints)
        by_joint = _by_joint(path, name, [(w, c, same[x]) for w, c, x in loose if x in same])
    if by_joint:
        if missing := [joint for joint in joints if joint not in by_joint]:
            raise _missing_joints(path, name, by_joint, missing, joints)
        return [by_joint[joint] for joint in joints]
    numbered = _by_joint(path, name, [x for x in candidates if x[2].isdigit()])
    numbers = sorted(numbered, key=int)
    if numbers and joints and len(numbers) != len(joints):
        raise FitError(
            f"{path}: {len(numbers)} columns are {name}, the robot has {len(joints)} joints.",
            "Numbered columns are assigned in the order of the joints.",
            f'Name the columns by joint, "{name}_{joints[0]}", or lock joints that were not logged, --lock '
            f"{joints[-1]}=0 or mech.lock({{{joints[-1]!r}: 0.0}}). If some were not measured, select the "
            f"columns with - in their place: --column {name}=a,-,c.",
        )
    # A coupling may name drives by numbers; the other joints have the other numbers, in their order.
    drives = {stems[x]: x for x in numbers if x in stems}
    rest = iter([x for x in numbers if x not in drives.values()])
    order = [drives[j] if j in drives else next(rest) for j in joints] if drives else numbers
    return [numbered[x] for x in order]


def _position_stems(column: str) -> set[str]:
    """Parts of a column name that may be a joint or a drive, if the column is a position."""
    return {x for word in QUANTITY_NAMES["q"] for x in joint_candidates(word, column)}


def _by_joint(path: Path, name: str, candidates: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """Columns by joint; the first word of the quantity's names counts.

    Args:
        path: of the file.
        name: of the quantity.
        candidates: word, column and joint.

    Raises:
        FitError: if two columns with one word belong to one joint.
    """
    by_joint: dict[str, str] = {}
    word_of_joint: dict[str, str] = {}
    for word, column, joint in candidates:
        if by_joint.get(joint, column) != column and word_of_joint[joint] == word:
            raise _ambiguous_columns(path, name, repr(joint), by_joint[joint], column)
        by_joint.setdefault(joint, column)
        word_of_joint.setdefault(joint, word)
    return by_joint


def _missing_joints(
    path: Path,
    name: str,
    by_joint: Mapping[str, str],
    missing: Sequence[str],
    joints: Sequence[str],
) -> FitError:
    """A quantity has columns of other joints, but not of these."""
    chosen = ",".join(by_joint.get(x, NOT_MEASURED) for x in joints)
    return FitError(
        f"{path}: no column is {name} of joint {', '.join(map(repr, missing))}.",
        f"Its columns of other joints are {', '.join(map(repr, by_joint.values()))}.",
        f"Select the columns, with - for those that were not measured: --column {name}={chosen}. Lock joints "
        f"that did not move: --lock {','.join(missing)}=0. Couple joints whose drives were logged: --couple "
        f"{missing[0]}=DRIVE, or sums such as 0.5*LEFT+0.5*RIGHT.",
    )
