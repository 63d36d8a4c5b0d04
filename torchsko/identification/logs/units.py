"""Units of logs: what they are in SI units, which quantities and joints have them."""

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
"""Of quantities, or of their joints by name."""

Array = NDArray[np.floating[Any]]

SCALE = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "rad": 1.0, "deg": np.pi / 180, "m": 1.0, "mm": 1e-3,
    "rad/s": 1.0, "deg/s": np.pi / 180, "m/s": 1.0, "mm/s": 1e-3, "rpm": np.pi / 30,
    "Nm": 1.0, "mNm": 1e-3, "kNm": 1e3, "N": 1.0, "kN": 1e3, "A": 1.0, "mA": 1e-3,
}  # fmt: skip
"""SI units in each unit."""

OF = {
    "t": ("s", "ms", "us", "ns"),
    "q": ("rad", "deg", "m", "mm"),
    "qd": ("rad/s", "deg/s", "m/s", "mm/s", "rpm"),
    "tau": ("Nm", "mNm", "kNm", "N", "kN", "A", "mA"),
}
"""Units of each quantity."""

CURRENTS = ("A", "mA")
"""Units of tau that are no force's."""


LENGTHS = ("m", "mm", "m/s", "mm/s", "N", "kN")
"""Units of what slides."""

WRITTEN = {
    "deg": ("\N{DEGREE SIGN}", "\N{MASCULINE ORDINAL INDICATOR}", "degree", "degrees"),
    "rad": ("radian", "radians"),
    "s": ("sec", "secs", "second", "seconds"),
    "ms": ("msec", "msecs", "millisecond", "milliseconds"),
    "us": ("\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s", "usec", "usecs", "microsecond", "microseconds"),
    "ns": ("nsec", "nsecs", "nanosec", "nanosecs", "nanosecond", "nanoseconds"),
    "rpm": ("RPM", "rev/min", "1/min"),
}  # fmt: skip
"""How else units, and the parts of those per second, are written in files."""

_KNOWN = {word: unit for unit, words in WRITTEN.items() for word in words}

IN_NAME = re.compile(r"(.*?\S)[\s_]*[\[(]([^\[\]()]+)[\])]")
"""A name with something in brackets at its end, which may be its unit."""


def unit_of(text: str) -> str:
    """A unit as `SCALE` has it, however it is written: "N m", a degree's sign; others as they are."""
    bare = re.sub(r"(?<=N)[\s.*\N{MIDDLE DOT}\N{DOT OPERATOR}-](?=m$)", "", text.strip())
    whole = _KNOWN.get(bare, bare)
    return "/".join(_KNOWN.get(x.strip(), x.strip()) for x in whole.split("/"))


def written(units: Units) -> Units:
    """Units that were declared, as `SCALE` has them."""
    return {
        name: unit_of(x) if isinstance(x, str) else {j: unit_of(u) for j, u in x.items()}
        for name, x in units.items()
    }


def scaled(
    name: str, x: Array, unit: str | Mapping[str, str] | None, joints: tuple[str, ...] = ()
) -> Array:
    """A quantity in SI units; untouched, and not copied, where it is in these.

    Args:
        name: "t", "q", "qd" or "tau".
        x: `[samples]` or `[samples, joints]`.
        unit: of all columns, or of joints by name.
        joints: names of the columns.

    Raises:
        FitError: on a unit that it cannot have, names those that it can; or of a joint that is not there.
    """
    if unit is None:
        return x
    by: Mapping[str, str] = {"": unit} if isinstance(unit, str) else unit
    # Constants of currents are found for all joints at once.
    able = [u for u in OF[name] if isinstance(unit, str) or u not in CURRENTS]
    for joint, its in by.items():
        if its not in able:
            raise FitError(
                f"the unit of {name}{joint and f' of joint {joint!r}'} is {its!r}.",
                f"Units of {name} are {', '.join(able)}.",
                "Pass one of these.",
            )
        if joint and joint not in joints:
            raise FitError(*unknown_name("joint", joint, joints))
    if isinstance(unit, str):
        return x if SCALE[unit] == 1 else x * SCALE[unit]
    if x.ndim != 2 or x.shape[1] != len(joints):
        raise FitError(
            f"units of {name} are given by joint, and {name} has shape {list(x.shape)}.",
            f"They need a column for each of {len(joints)} joints.",
            f"Pass one unit: units={{{name!r}: ...}}.",
        )
    usual = OF[name][0]
    return x * np.array([SCALE[by[joint] if joint in by else usual] for joint in joints])


def labelled(
    path: Path,
    table: Table,
    joints: tuple[str, ...],
    columns: Mapping[str, Sequence[str]],
    units: Units,
) -> Table:
    """A table whose columns are in SI units where the file says theirs, without these in their names.

    Args:
        path: of the file.
        table: what it holds.
        joints: names in the robot's order: "q[m]" may be one.
        columns: names that are given stay as they are.
        units: that are declared: what the file says in other words is refused.

    Raises:
        FitError: where file and declaration say different units, or a column that was named for a quantity
            says a unit that is not known and none is declared; names the column.
    """
    refuse_unsaid(path, joints, columns, units)
    given = {name for some in columns.values() for name in some}
    times = timed(table, set(columns.get("t", ())))
    found: dict[str, Array] = {}
    said: dict[str, str] = {}
    for name, x in table.columns.items():
        bare, unit = _told_by(name, table.units.get(name), joints, given, times)
        of = next((quantity for quantity, able in OF.items() if unit in able), None)
        declared = None if of is None else units.get(of)
        if unit is None or of is None or (unit in CURRENTS and declared is None):
            found[name] = x
            if unit is not None and unit in SCALE:
                said[name] = unit
            continue
        if declared not in (None, unit):
            raise FitError(
                f"{path}: column {name!r} is in {unit}, and {of} was declared in {declared}.",
                "What the file says of its units counts already.",
                f"Leave the unit of {of} out.",
            )
        if bare in found or (bare != name and bare in table.columns):
            raise FitError(
                f"{path}: the column {bare!r} is there twice, once as {name!r}.",
                "One of them would count, and nobody said which.",
                "Name the other otherwise, or leave it out.",
            )
        found[bare] = x * SCALE[unit] if declared is None and SCALE[unit] != 1 else x
        said[bare] = unit
    return replace(table, columns=found, units=said)


def _told_by(
    name: str,
    unit: str | None,
    joints: tuple[str, ...],
    given: Collection[str],
    times: Mapping[str, tuple[str, str]],
) -> tuple[str, str | None]:
    """A column's name without its unit, and the unit: what the file says of it elsewhere, or its name.

    Args:
        name: of the column.
        unit: that the file says elsewhere.
        joints: which stand in brackets, too.
        given: names that stay as they are.
        times: of `timed`.
    """
    mark = IN_NAME.fullmatch(name)
    bracketed = None if mark is None or mark[2] in joints else unit_of(mark[2])
    if name in times:
        bare, at_its_end = times[name]
        return bare, unit or bracketed or at_its_end
    if mark is not None and bracketed in SCALE and name not in given:
        return mark[1], unit or bracketed
    return name, unit or bracketed


_TIME = r"(?:t|time|stamp|timestamp)"

CLOCK = re.compile(rf"((?:.*[/.])?{_TIME})[\s_-]+([^\W\d_]+)", re.IGNORECASE)
"""A time with its unit at its end, t_ms; of what else is called so nobody knows what it is the time of."""

LAST = re.compile(r".*?[^\s_-][\s_-]+(?:([^\W\d_]+)[_/])?([^\W\d_]+)")
"""The last words of a name, which may be a unit: angle_deg, speed_deg_s."""


def unit_in(name: str) -> str | None:
    """The unit at the end of a column's name: in brackets, or of a time; None where there is none."""
    if mark := IN_NAME.fullmatch(name):
        unit, able = unit_of(mark[2]), tuple(SCALE)
    elif clock := CLOCK.fullmatch(name):
        unit, able = unit_of(clock[2].lower()), OF["t"]
    else:
        return None
    return unit if unit in able else None


def timed(table: Table, given: Collection[str]) -> dict[str, tuple[str, str]]:
    """Times with their unit at the end of their name: what they are called without it, and the unit.

    One that is given keeps its name, and is all there is; so is a time without a unit in its name. Of two the
    first counts, besides halves of one, in s and ns.
    """
    if given:
        word = LAST.fullmatch(next(iter(given))) if len(given) == 1 else None
        unit = unit_of(word[2].lower()) if word is not None else ""
        return {name: (name, unit) for name in given} if unit in OF["t"] else {}
    if any(re.fullmatch(_TIME, name.strip("_%"), re.IGNORECASE) for name in table.columns):
        return {}
    found: dict[str, tuple[str, str]] = {}
    for name in table.columns:
        if clock := CLOCK.fullmatch(name):
            bare, unit = clock[1], unit_of(clock[2].lower())
            if unit in OF["t"] and bare not in table.columns:
                found[name] = bare, unit
    once: dict[str, tuple[str, str]] = {}
    for name, (bare, unit) in found.items():
        alike = [u for b, u in found.values() if b.lower() == bare.lower()]
        if not {"s", "ns"} <= set(alike) and bare not in (b for b, _ in once.values()):
            once[name] = bare, unit
    return once


def refuse_unsaid(
    path: Path, joints: tuple[str, ...], columns: Mapping[str, Sequence[str]], units: Units
) -> None:
    """Refuse columns named for a quantity whose names end in a unit that nobody declared.

    Taken as they are, milliradians or degrees would be radians. Units in brackets that are known count, as do
    those of times.
    """
    for quantity, some in columns.items():
        for name in some if quantity not in units else ():
            mark, last = IN_NAME.fullmatch(name), LAST.fullmatch(name)
            if mark is not None:
                unit = mark[2]
                if unit_of(unit) in SCALE or unit in joints or unit.strip().isdigit():
                    continue
            elif last is not None and quantity != "t" and not name.endswith(joints):
                both = [unit_of(f"{last[1]}/{last[2]}"), unit_of(last[2])]
                unit = next((u for u in both if u in OF[quantity] and SCALE[u] != 1), "")
                if not unit or unit in CURRENTS:
                    continue
            else:
                continue
            known = unit if unit in OF[quantity] else OF[quantity][0]
            raise FitError(
                f"{path}: {name!r} was named for {quantity}, and may be in {unit.strip()}.",
                "What its name says at its end is no unit that is told for sure, and none is declared.",
                f'Declare the unit of its numbers, units={{"{quantity}": "{known}"}} or --unit '
                f"{quantity}={known}, of {', '.join(OF[quantity])}.",
            )


def refuse_other(path: Path, quantity: str, said: Mapping[str, str]) -> None:
    """Refuse columns of a quantity that the file says to be in units of another; by name, with their unit."""
    for name, unit in said.items():
        if unit not in OF[quantity]:
            raise FitError(
                f"{path}: {name!r} is {quantity} by its name, and in {unit} by its unit.",
                f"One of them is wrong: units of {quantity} are {', '.join(OF[quantity])}.",
                "Correct the name, or the unit, in the file.",
            )
