"""Errors about columns of a log that are missing or ambiguous."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import (
    COMMAND_WORDS,
    CURRENT_NAMES,
    QUANTITY_NAMES,
    TIME_WORDS,
    contains_word,
    joint_candidates,
    quantity_names,
)
from torchsko.identification.logs.units import (
    BRACKETED,
    QUANTITY_UNITS,
    SI_SCALE,
    Units,
    normalize_unit,
)

if TYPE_CHECKING:
    from torchsko.identification.logs.table import Table

Array = NDArray[np.floating[Any]]

LABELS = {"t": "the time", "q": "a position", "tau": "a joint force"}
"""Quantities in messages."""

TEXT_TYPES = ("text", "string", "large_string", "string_view")
"""Types of columns of text; the last three are those of Parquet."""

EMPTY_TYPES = ("null", "empty lists")
"""Types of columns without any value."""

MAX_LISTED_COLUMNS = 12
"""Columns of numbers that a message lists."""

MAX_LISTED_OTHERS = 6
"""Columns of other types that a message lists."""


def list_columns(table: Table) -> str:
    """Names of the columns, and types of those that contain no numbers."""
    names = [repr(name) for name in table.columns]
    others = [f"{name!r} ({kind}, not numbers)" for name, kind in table.other.items()]
    more = len(names[MAX_LISTED_COLUMNS:]) + len(others[MAX_LISTED_OTHERS:])
    listed = ", ".join([*names[:MAX_LISTED_COLUMNS], *others[:MAX_LISTED_OTHERS]])
    return listed + (f", and {more} more" if more else "")


def missing_quantity(
    path: Path, name: str, table: Table, renamed: Table, joints: tuple[str, ...], units: Units
) -> FitError:
    """No column is a quantity.

    Args:
        path: of the file.
        name: of the quantity.
        table: contents of the file.
        renamed: the same with joint names in place of numbers.
        joints: names in the robot's order.
        units: declared by the user.
    """
    names = quantity_names(units.get("tau"))[name]
    if name == "tau":
        for column in renamed.columns:
            current = re.search("|".join(CURRENT_NAMES), column, re.IGNORECASE)
            if current or re.search(r"[\[(]m?A[\])]$", column):
                return undeclared_current(path, column)
    advice = _type_advice(table, names) or _selection_advice(name, names, renamed, joints)
    return FitError(
        f"{path}: no column is {LABELS[name]} ({name!r}).",
        f"The columns are {list_columns(table)}.",
        advice,
    )


def _type_advice(table: Table, names: Sequence[str]) -> str:
    """Advice for columns of times as text, or of lists; empty if there are none."""
    for name, kind in table.other.items():
        if kind in TEXT_TYPES and names == QUANTITY_NAMES["t"] and name.lower() in names:
            return (
                f"Write {name!r} in seconds, or as dates with a time, 2026-01-02T12:00:00.5. With pandas: "
                f"pandas.to_timedelta(table[{name!r}]).dt.total_seconds()."
            )
        if kind in ("lists", "objects") and re.split(r"[/.]", name.lower())[-1] in names:
            return (
                f"Write each number of {name!r} to its own column, {name}_0, {name}_1, ..., or save an array "
                "[samples, joints] in an NPZ file."
            )
    return ""


def _selection_advice(
    name: str, names: Sequence[str], table: Table, joints: tuple[str, ...]
) -> str:
    """Advice to select columns, with those that may be meant as an example."""
    if name == "t":
        for column, x in table.columns.items():
            has_time_unit = table.units.get(column) in QUANTITY_UNITS["t"]
            if x.ndim == 1 and (has_time_unit or contains_word(column, TIME_WORDS)):
                return (
                    f'Select it, and declare its unit if that is not s: columns={{"t": ["{column}"]}}, or '
                    f"--column t={column}, for example."
                )
        return (
            'Select it: columns={"t": ["..."]}, or --column t=...; for even samples without times, give the '
            "rate in Hz: rate=100 or --rate 100."
        )
    # Columns whose names differ in one number only, as many as joints.
    groups: dict[str, list[str]] = {}
    for column in table.columns:
        groups.setdefault(re.sub(r"\d+(?=\D*$)", "#", column), []).append(column)
    candidates = [x for x in groups.values() if joints and len(x) == len(joints)]
    candidates += [[c] for c, x in table.columns.items() if x.ndim == 2]
    candidates = [x for x in candidates if contains_word(x[0], names)]
    if not candidates:
        return f'Select them: columns={{"{name}": ["..."]}}, or --column {name}=...'
    # Measured columns first.
    example = min(candidates, key=lambda x: contains_word(x[0], COMMAND_WORDS))
    return (
        f'Select them, in the order of the joints: columns={{"{name}": [...]}}, or --column '
        f"{name}={','.join(example)}, for example."
    )


def time_and_rate(path: Path, column: str, rate: float) -> FitError:
    """A sampling rate is given for a file with times."""
    return FitError(
        f"{path}: the rate {rate:g} Hz is given, and {column!r} is the time.",
        "A rate gives the times of a file without times.",
        "Leave out the rate, or the column of the time.",
    )


def undeclared_current(path: Path, name: str) -> FitError:
    """A column is a current, and no unit is declared."""
    return FitError(
        f"{path}: {name!r} is a current, and no unit is declared.",
        "Currents are not forces: torque constants must be identified as well.",
        'Declare the unit, units={"tau": "A"} or --unit tau=A, and known constants by gain= or --gain. If it '
        "is a force, declare tau=Nm.",
    )


def check_velocity_types(
    path: Path, table: Table, names: Sequence[str], joints: tuple[str, ...]
) -> None:
    """Check that no velocity is text or lists: it would be ignored, and positions differentiated instead."""
    for name, kind in table.other.items():
        candidates = {x for word in names for x in joint_candidates(word, name)}
        is_velocity = name.lower() in names or any(x in joints or x.isdigit() for x in candidates)
        if kind not in EMPTY_TYPES and is_velocity:
            raise FitError(
                f"{path}: the velocity {name!r} does not contain numbers ({kind}).",
                "Velocities are optional, but a column of velocities must contain numbers or be empty.",
                f"Write {name!r} as numbers, or remove all velocities: positions are then differentiated.",
            )


def ambiguous_columns(path: Path, name: str, owner: str, first: str, second: str) -> FitError:
    """Two columns are the same quantity of one joint, or of all."""
    return FitError(
        f"{path}: two columns are {name} of {owner}: {first!r} and {second!r}.",
        "The names do not determine which one to use.",
        f'Select the columns: columns={{"{name}": [...]}}, or --column {name}=...',
    )


def missing_joints(
    path: Path,
    name: str,
    found: Mapping[str, Array],
    by_joint: Mapping[str, str],
    missing: Sequence[str],
    joints: Sequence[str],
    unassigned: Mapping[str, str],
) -> FitError:
    """A quantity has columns of other joints, but not of these.

    Args:
        path: of the file.
        name: of the quantity.
        found: all columns.
        by_joint: columns of the quantity, by joint.
        missing: joints without a column.
        joints: names in the robot's order.
        unassigned: names of drives or other joints, by columns of the quantity.
    """
    code = ", ".join(f"{x!r}: 0" for x in missing[:3]) + (", ..." if len(missing) > 3 else "")
    advice = (
        "Lock joints that did not move, with their positions in place of 0: --lock "
        f"{','.join(missing)}=0, or mech.lock({{{code}}})."
    )
    others = {c: x for c, x in unassigned.items() if not contains_word(c, COMMAND_WORDS)}
    if len(others) == len(missing):
        couple = " ".join(
            f"--couple {j}={x}" for j, x in zip(missing, others.values(), strict=True)
        )
        advice = (
            f"If these are the columns of the joints' drives, type {couple}, or sums such as "
            f"0.5*{next(iter(others.values()))}+0.5*... for a differential gear. {advice}"
        )
    if name == "tau":
        chosen = ",".join(by_joint.get(x, "-") for x in joints)
        advice = (
            f"If the force was not measured, type --column tau={chosen}, where - is a column that was not "
            f'measured. Otherwise name the column "tau_{missing[0]}", with zeros if the joint has no drive. '
            "A floating joint has six forces; leave them out if they were not measured."
        )
    for column in found:
        match = BRACKETED.fullmatch(column)
        if match is not None and missing[0] in match[1]:
            if normalize_unit(match[2]) not in SI_SCALE:
                known = ", ".join(QUANTITY_UNITS[name])
                advice = (
                    f"The unit of {column!r} is unknown: convert its numbers to one of {known}."
                )
    listed = ", ".join(map(repr, missing))
    return FitError(
        f"{path}: no column is {name} of joint {listed}.",
        f"Its columns of other joints are {', '.join(map(repr, by_joint.values()))}."
        + (f" Columns of no joint are {', '.join(map(repr, others))}." if others else ""),
        advice,
    )
