"""Units of logs: conversion to SI units, and the units that files specify."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError, unknown_name

if TYPE_CHECKING:
    from torchsko.identification.logs.table import Table

Units = Mapping[str, str | Mapping[str, str]]
"""Units by quantity; of a quantity, one unit or units by joint."""

Array = NDArray[np.floating[Any]]

SI_SCALE = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "rad": 1.0, "deg": np.pi / 180, "m": 1.0, "mm": 1e-3,
    "rad/s": 1.0, "deg/s": np.pi / 180, "m/s": 1.0, "mm/s": 1e-3, "rpm": np.pi / 30,
    "Nm": 1.0, "mNm": 1e-3, "Nmm": 1e-3, "Ncm": 1e-2, "kNm": 1e3, "kgfcm": 9.80665e-2,
    "lbft": 1.3558179483314004, "N": 1.0, "kN": 1e3, "A": 1.0, "mA": 1e-3,
}  # fmt: skip
"""Factor from each unit to the SI unit."""

QUANTITY_UNITS = {
    "t": ("s", "ms", "us", "ns"),
    "q": ("rad", "deg", "m", "mm"),
    "qd": ("rad/s", "deg/s", "m/s", "mm/s", "rpm"),
    "tau": ("Nm", "mNm", "Nmm", "Ncm", "kNm", "kgfcm", "lbft", "N", "kN", "A", "mA"),
}
"""Units of each quantity, the default one first."""

CURRENT_UNITS = ("A", "mA")
"""Units of tau that are units of a current."""

LINEAR_UNITS = ("m", "mm", "m/s", "mm/s", "N", "kN")
"""Units of prismatic joints."""

SPELLINGS = {
    "deg": ("\N{DEGREE SIGN}", "\N{MASCULINE ORDINAL INDICATOR}", "degree", "degrees"),
    "rad": ("radian", "radians"),
    "s": ("sec", "secs", "second", "seconds"),
    "ms": ("msec", "msecs", "millisecond", "milliseconds"),
    "us": ("\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s", "usec", "usecs", "microsecond", "microseconds"),
    "ns": ("nsec", "nsecs", "nanosec", "nanosecs", "nanosecond", "nanoseconds"),
    "rpm": ("RPM", "rev/min", "1/min"),
    "kgfcm": ("kgf cm", "kgf*cm", "kgf.cm", "kg cm", "kg*cm", "kgcm"),
    "lbft": ("lb ft", "lb*ft", "lbf ft", "lbf*ft", "ft lb", "ft*lb", "ft-lb", "lb-ft", "ftlb", "lbfft"),
}  # fmt: skip
"""Other spellings of units, and of the numerator and denominator of units."""

_UNIT_OF_SPELLING = {text: unit for unit, texts in SPELLINGS.items() for text in texts}

BRACKETED = re.compile(r"(.*?\S)[\s_]*[\[(]([^\[\]()]+)[\])]")
"""A name that ends in brackets, which may contain its unit."""

_TIME = r"(?:t|time|stamp|timestamp)"

TIME_WITH_UNIT = re.compile(rf"((?:.*[/.])?{_TIME})[\s_-]+([^\W\d_]+)", re.IGNORECASE)
"""Name of a time that ends in its unit: t_ms."""

LAST_WORDS = re.compile(r".*?[^\s_-][\s_-]+(?:([^\W\d_]+)[_/])?([^\W\d_]+)")
"""The last words of a name, which may be a unit: angle_deg, speed_deg_s."""


def normalize_unit(text: str) -> str:
    """Convert a spelling of a unit, "N m" or a degree sign, to its key in `SI_SCALE`; keep unknown text."""
    text = re.sub(r"(?<=N)[\s.*\N{MIDDLE DOT}\N{DOT OPERATOR}-](?=[cm]?m$)", "", text.strip())
    text = _UNIT_OF_SPELLING.get(text, text)
    return "/".join(_UNIT_OF_SPELLING.get(x.strip(), x.strip()) for x in text.split("/"))


def normalize_units(units: Units) -> Units:
    """Convert the spellings of all units."""
    return {
        name: normalize_unit(x)
        if isinstance(x, str)
        else {joint: normalize_unit(unit) for joint, unit in x.items()}
        for name, x in units.items()
    }


def currents_of(units: Units) -> bool | tuple[str, ...]:
    """True if the declared unit of all forces is one of currents; or the joints with such a unit."""
    unit = units.get("tau")
    if unit is None or isinstance(unit, str):
        return unit in CURRENT_UNITS
    return tuple(joint for joint, x in unit.items() if x in CURRENT_UNITS)


def to_si(
    name: str, x: Array, unit: str | Mapping[str, str] | None, joints: tuple[str, ...] = ()
) -> Array:
    """Convert a quantity to SI units; x itself if it is in SI units.

    Args:
        name: "t", "q", "qd" or "tau".
        x: `[samples]` or `[samples, joints]`.
        unit: of all columns, or by joint.
        joints: names of the columns.

    Raises:
        FitError: if the quantity cannot have the unit, or there is no such joint.
    """
    if unit is None:
        return x
    by_joint: Mapping[str, str] = {"": unit} if isinstance(unit, str) else unit
    allowed = QUANTITY_UNITS[name]
    for joint, joint_unit in by_joint.items():
        if joint_unit not in allowed:
            raise FitError(
                f"the unit of {name}{joint and f' of joint {joint!r}'} is {joint_unit!r}.",
                f"Units of {name} are {', '.join(allowed)}.",
                "Pass one of these.",
            )
        if joint and joint not in joints:
            raise FitError(*unknown_name("joint", joint, joints))
    if isinstance(unit, str):
        return x if SI_SCALE[unit] == 1 else x * SI_SCALE[unit]
    if x.ndim != 2 or x.shape[1] != len(joints):
        raise FitError(
            f"units of {name} are given by joint, and {name} has shape {list(x.shape)}.",
            f"Units by joint need one column for each of the {len(joints)} joints.",
            f"Pass one unit: units={{{name!r}: ...}}.",
        )
    default = QUANTITY_UNITS[name][0]
    units = [by_joint[joint] if joint in by_joint else default for joint in joints]
    return x * np.array([SI_SCALE[unit] for unit in units])


def apply_file_units(
    path: Path,
    table: Table,
    joints: tuple[str, ...],
    columns: Mapping[str, Sequence[str]],
    units: Units,
) -> Table:
    """Convert the columns whose unit the file specifies to SI units, and remove units from their names.

    Args:
        path: of the file.
        table: its contents.
        joints: names in the robot's order; "q[m]" may be one.
        columns: names that the user gave, by quantity; these are kept.
        units: declared by the user; the file must not contradict them.

    Raises:
        FitError: if the file and the declaration differ, or the name of a column that the user gave ends in a
            unit that is not declared.
    """
    _check_given_names(path, joints, columns, units)
    given = {name for names in columns.values() for name in names}
    times = _times_with_units(table, set(columns.get("t", ())))
    converted: dict[str, Array] = {}
    file_units: dict[str, str] = {}
    for name, x in table.columns.items():
        bare, unit = _split_unit(name, table.units.get(name), joints, given, times)
        quantity = next((key for key, names in QUANTITY_UNITS.items() if unit in names), None)
        declared = None if quantity is None else units.get(quantity)
        if unit is None or quantity is None or (unit in CURRENT_UNITS and declared is None):
            converted[name] = x
            if unit is not None and unit in SI_SCALE:
                file_units[name] = unit
            continue
        if declared not in (None, unit):
            raise FitError(
                f"{path}: column {name!r} is in {unit}, and {quantity} was declared in {declared}.",
                "Units in the file are applied without a declaration.",
                f"Leave the unit of {quantity} out.",
            )
        if bare in converted or (bare != name and bare in table.columns):
            raise FitError(
                f"{path}: there are two columns {bare!r}, one of them as {name!r}.",
                "The names of columns, without units, must be unique.",
                "Rename one of them, or remove it.",
            )
        scale = 1.0 if declared is not None else SI_SCALE[unit]
        converted[bare] = x if scale == 1 else x * scale
        file_units[bare] = unit
    return replace(table, columns=converted, units=file_units)


def _split_unit(
    name: str,
    unit: str | None,
    joints: tuple[str, ...],
    given: Collection[str],
    times: Mapping[str, tuple[str, str]],
) -> tuple[str, str | None]:
    """Split the name of a column into the name without unit, and the unit.

    Args:
        name: of the column.
        unit: that the file specifies elsewhere.
        joints: names that may stand in brackets, too.
        given: names that are kept.
        times: result of `_times_with_units`.
    """
    match = BRACKETED.fullmatch(name)
    bracketed = None if match is None or match[2] in joints else normalize_unit(match[2])
    if name in times:
        bare, suffix = times[name]
        return bare, unit or bracketed or suffix
    if match is not None and bracketed in SI_SCALE and name not in given:
        return match[1], unit or bracketed
    return name, unit or bracketed


def unit_in_name(name: str) -> str | None:
    """The unit at the end of a column's name: in brackets, or of a time; None if there is none."""
    if match := BRACKETED.fullmatch(name):
        unit, known = normalize_unit(match[2]), tuple(SI_SCALE)
    elif match := TIME_WITH_UNIT.fullmatch(name):
        unit, known = normalize_unit(match[2].lower()), QUANTITY_UNITS["t"]
    else:
        return None
    return unit if unit in known else None


def _times_with_units(table: Table, given: Collection[str]) -> dict[str, tuple[str, str]]:
    """Find times whose names end in their unit: the name without unit, and the unit, by column.

    A time that the user gave keeps its name, and is the only one. A time without a unit in its name has
    priority. Of several with units the first one counts; the two columns of a ROS time stamp are kept.
    """
    if given:
        match = LAST_WORDS.fullmatch(next(iter(given))) if len(given) == 1 else None
        unit = normalize_unit(match[2].lower()) if match is not None else ""
        return {name: (name, unit) for name in given} if unit in QUANTITY_UNITS["t"] else {}
    if any(re.fullmatch(_TIME, name.strip("_%"), re.IGNORECASE) for name in table.columns):
        return {}
    found: dict[str, tuple[str, str]] = {}
    for name in table.columns:
        if match := TIME_WITH_UNIT.fullmatch(name):
            bare, unit = match[1], normalize_unit(match[2].lower())
            if unit in QUANTITY_UNITS["t"] and bare not in table.columns:
                found[name] = bare, unit
    first: dict[str, tuple[str, str]] = {}
    for name, (bare, unit) in found.items():
        units = {u for b, u in found.values() if b.lower() == bare.lower()}
        if not units >= {"s", "ns"} and bare not in (b for b, _ in first.values()):
            first[name] = bare, unit
    return first


def _check_given_names(
    path: Path, joints: tuple[str, ...], columns: Mapping[str, Sequence[str]], units: Units
) -> None:
    """Check that names of columns that the user gave do not end in a unit that is not declared.

    Such columns would be read as SI units: milliradians or degrees as radians. Known units in brackets and
    units of times are applied.
    """
    for quantity, names in columns.items():
        for name in names if quantity not in units else ():
            match, last = BRACKETED.fullmatch(name), LAST_WORDS.fullmatch(name)
            if match is not None:
                unit = match[2]
                if normalize_unit(unit) in SI_SCALE or unit in joints or unit.strip().isdigit():
                    continue
            elif last is not None and quantity != "t" and not name.endswith(joints):
                candidates = [normalize_unit(f"{last[1]}/{last[2]}"), normalize_unit(last[2])]
                known = QUANTITY_UNITS[quantity]
                unit = next((u for u in candidates if u in known and SI_SCALE[u] != 1), "")
                if not unit or unit in CURRENT_UNITS:
                    continue
            else:
                continue
            example = unit if unit in QUANTITY_UNITS[quantity] else QUANTITY_UNITS[quantity][0]
            raise FitError(
                f"{path}: the column {name!r} for {quantity} may be in {unit.strip()}.",
                "The unit at the end of its name is ambiguous, and none is declared.",
                f'Declare the unit, units={{"{quantity}": "{example}"}} or --unit {quantity}={example}: one '
                f"of {', '.join(QUANTITY_UNITS[quantity])}.",
            )


def check_quantity_units(path: Path, quantity: str, units: Mapping[str, str]) -> None:
    """Check that the units of columns are units of their quantity."""
    for name, unit in units.items():
        if unit not in QUANTITY_UNITS[quantity]:
            raise FitError(
                f"{path}: the name of {name!r} stands for {quantity}, but its unit is {unit}.",
                f"Units of {quantity} are {', '.join(QUANTITY_UNITS[quantity])}.",
                "Correct the name or the unit in the file.",
            )
