"""Assignment of the columns of a file to time, positions, velocities and forces, by their names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_errors import (
    ambiguous_columns,
    check_velocity_types,
    list_columns,
    missing_joints,
    missing_quantity,
    time_and_rate,
    undeclared_current,
)
from torchsko.identification.logs.column_names import (
    QUANTITY_NAMES,
    SECONDS_OR_NANOSECONDS,
    contains_word,
    joint_candidates,
    match_joint,
    name_rank,
    prefixed_joints,
    quantity_names,
)
from torchsko.identification.logs.table import name_columns_by_joint
from torchsko.identification.logs.units import (
    BRACKETED,
    CURRENT_UNITS,
    SI_SCALE,
    Units,
    check_quantity_units,
)

if TYPE_CHECKING:
    from torchsko.identification.logs.table import Table

Array = NDArray[np.floating[Any]]

NOT_MEASURED = "-"
"""Name of a column that was not measured; alone for qd, no velocity was."""


def match_columns(
    path: Path,
    table: Table,
    joints: tuple[str, ...],
    columns: Mapping[str, Sequence[str]],
    units: Units,
    quantities: Sequence[str] = ("t", "q", "qd", "tau"),
    *,
    partial: bool = False,
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
        partial: leave out quantities that the file does not have; it must have the time.
        rate: of the samples of a file without times [Hz].

    Raises:
        FitError: if a quantity other than velocities, or a joint's column, is missing; names it.
    """
    arrays: dict[str, Array] = {}
    renamed = name_columns_by_joint(path, table, joints, columns)
    for name, names in quantity_names(units.get("tau")).items():
        if name not in quantities:
            continue
        if name in columns:
            found = [x for c in columns[name] for x in _given_columns(path, renamed, c, joints)]
        else:
            found = _find_columns(path, name, names, renamed, joints, units)
        if name == "t" and rate is not None:
            if found:
                raise time_and_rate(path, found[0][0], rate)
            samples = len(next(iter(table.columns.values()), ()))
            arrays[name] = np.arange(samples) / rate
        elif found:
            file_units = {c: renamed.units[c] for c, _ in found if c in renamed.units}
            check_quantity_units(path, name, file_units)
            currents = [c for c, unit in file_units.items() if unit in CURRENT_UNITS]
            if currents and "tau" not in units:
                raise undeclared_current(path, currents[0])
            x = _time(path, dict(found), units) if name == "t" else _concatenate(path, name, found)
            chosen = set(columns.get(name, [NOT_MEASURED])) != {NOT_MEASURED}
            if name != "qd" or chosen or not _is_all_nan(x):
                arrays[name] = x
        elif name == "qd":
            check_velocity_types(path, table, names, joints)
        elif name == "t" or not partial:
            raise missing_quantity(path, name, table, renamed, joints, units)
    return arrays


def extra_columns(
    path: Path, table: Table, joints: tuple[str, ...], units: Units
) -> dict[str, dict[str, Array]]:
    """Positions and forces of other joints than the robot's, in SI units, by quantity and joint, `[samples]`.

    The name of a column gives the joint. If two columns may belong to one joint, neither is used.

    Args:
        path: of the file.
        table: its contents, in SI units where the file specifies units.
        joints: names of the robot's joints.
        units: declared by the user.
    """
    columns = name_columns_by_joint(path, table, joints, {}).columns if joints else {}
    extra: dict[str, dict[str, Array]] = {}
    for name in ("q", "tau"):
        by_joint: dict[str, set[str]] = {}
        for word, column in itertools.product(quantity_names(units.get("tau"))[name], columns):
            if columns[column].ndim == 1:
                for joint in joint_candidates(word, column):
                    if match_joint(joint, joints) is None:
                        by_joint.setdefault(joint, set()).add(column)
        extra[name] = {}
        for joint, names in by_joint.items():
            if len(names) == 1 and not joint.isdigit():
                x, unit = columns[next(iter(names))], units.get(name)
                unit = unit.get(joint) if isinstance(unit, Mapping) else unit
                extra[name][joint] = (
                    x if unit is None or SI_SCALE[unit] == 1 else x * SI_SCALE[unit]
                )
    return extra


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
    table: Table,
    joints: tuple[str, ...],
    units: Units,
) -> list[tuple[str, Array]]:
    """Columns of a quantity with their names, in the order of the joints; empty if there are none."""
    columns = table.columns
    exact = next((c for c in columns if c.lower().strip("_%- ") in names), None)
    if name == "t":
        if exact is None:  # the end of a path: /joint_states/header/stamp
            exact = next((c for c in columns if re.split(r"[/.]", c.lower())[-1] in names), None)
        if exact is None:
            return _seconds_and_nanoseconds(path, columns, units)
        return [(exact, columns[exact])]
    if exact is not None and columns[exact].ndim == 2:
        return [(exact, columns[exact])]
    found = _find_joint_columns(path, name, names, columns, joints)
    if not found and exact is not None and len(joints) == 1:
        found = [exact]
    if not found:
        ranks = [(name_rank(c, names), c) for c, x in columns.items() if x.ndim == 2]
        best = sorted(x for x in ranks if x[0] < len(names))
        if len(best) > 1 and best[0][0] == best[1][0]:
            raise ambiguous_columns(path, name, "all joints", best[0][1], best[1][1])
        found = [c for _, c in best[:1]]
    return [(c, columns[c]) for c in found]


def _seconds_and_nanoseconds(
    path: Path, columns: Mapping[str, Array], units: Units
) -> list[tuple[str, Array]]:
    """The two columns of seconds and nanoseconds of a ROS time stamp, in this order.

    Empty if there are none, or a unit of t is declared.

    Raises:
        FitError: if the values are not seconds and nanoseconds of one time.
    """
    pairs: dict[str, dict[bool, str]] = {}
    for name in columns if "t" not in units else ():
        if match := SECONDS_OR_NANOSECONDS.fullmatch(name):
            pairs.setdefault(match[1].lower(), {}).setdefault(match[2] is None, name)
    pair = next((x for x in pairs.values() if len(x) == 2), None)
    if pair is None:
        return []
    seconds, nanoseconds = columns[pair[False]], columns[pair[True]]
    invalid = np.isfinite(nanoseconds) & ((nanoseconds < 0) | (nanoseconds >= 1e9))
    if invalid.any() or (np.isfinite(seconds) & (seconds != np.floor(seconds))).any():
        raise FitError(
            f"{path}: {pair[False]!r} and {pair[True]!r} are not seconds and nanoseconds of one time.",
            "Seconds must be whole numbers, and nanoseconds from 0 to less than 1e9.",
            f'Select one of them: columns={{"t": ["{pair[True]}"]}}, or --column t={pair[True]}.',
        )
    return [(pair[k], columns[pair[k]]) for k in (False, True)]


def _time(path: Path, found: Mapping[str, Array], units: Units) -> Array:
    """The time from one column, also of shape `[samples, 1]`, or from seconds and nanoseconds."""
    if len(found) == 1:
        time = next(iter(found.values()))
        return time.reshape(-1) if time.ndim == 2 and 1 in time.shape else time
    pair = _seconds_and_nanoseconds(path, found, units) if len(found) == 2 else []
    if not pair:
        raise FitError(
            f"{path}: {len(found)} columns are selected for the time, {', '.join(map(repr, found))}.",
            "The time is one column, or two in s and ns whose names end in sec and nanosec.",
            "Select one of them. With two, do not declare a unit of t.",
        )
    return pair[0][1] + 1e-9 * pair[1][1]


def _given_columns(
    path: Path, table: Table, name: str, joints: tuple[str, ...]
) -> list[tuple[str, Array]]:
    """A column that the user gave; for an array that was split by joint, the columns of the joints.

    The name "-" stands for a column that was not measured, which is nan.
    """
    if name == NOT_MEASURED and table.columns:
        return [(name, np.full(len(next(iter(table.columns.values()))), np.nan))]
    if name in table.columns:
        return [(name, table.columns[name])]
    with_unit = [c for c in table.columns if (m := BRACKETED.fullmatch(c)) and m[1] == name]
    if len(with_unit) == 1:
        return [(with_unit[0], table.columns[with_unit[0]])]
    parts = [(c, table.columns[c]) for j in joints if (c := f"{name}_{j}") in table.columns]
    if not parts or len(parts) < len(joints):
        raise FitError(
            f"{path}: there is no column {name!r}.",
            f"The columns are {list_columns(table)}.",
            "Use one of these names.",
        )
    return parts


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
            unassigned = {c: j for _, c, j in candidates if c not in by_joint.values()}
            raise missing_joints(path, name, columns, by_joint, missing, joints, unassigned)
        return [by_joint[joint] for joint in joints]
    numbered = _by_joint(path, name, [x for x in candidates if x[2].isdigit()])
    numbers = sorted(numbered, key=int)
    if numbers and joints and len(numbers) != len(joints):
        positions = sorted({x for c in columns for x in _position_stems(c) if x.isdigit()}, key=int)
        if name != "q" and len(positions) == len(joints) and set(numbers) < set(positions):
            by_joint = {
                j: numbered[x] for j, x in zip(joints, positions, strict=True) if x in numbers
            }
            missing = [joint for joint in joints if joint not in by_joint]
            raise missing_joints(path, name, columns, by_joint, missing, joints, {})
        raise FitError(
            f"{path}: {len(numbers)} columns are {name}, the robot has {len(joints)} joints.",
            "Numbered columns are assigned in the order of the joints.",
            f'Name the columns by joint, "{name}_{joints[0]}", or lock joints that were not logged, --lock '
            f"{joints[-1]}=0 or mech.lock({{{joints[-1]!r}: 0.0}}).",
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
            raise ambiguous_columns(path, name, repr(joint), by_joint[joint], column)
        by_joint.setdefault(joint, column)
        word_of_joint.setdefault(joint, word)
    return by_joint
