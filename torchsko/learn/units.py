"""Units of logs: what they are in SI units, which quantities and joints have them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError, unknown_name

if TYPE_CHECKING:
    from torchsko.learn.tables import Table

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
    "\N{DEGREE SIGN}": "deg",
    "\N{DEGREE SIGN}/s": "deg/s",
    "N m": "Nm",
    "N.m": "Nm",
    "N*m": "Nm",
}
"""How else units are written in files."""


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
                f"the unit of {name}{joint and f' of joint {joint!r}'} is {its!r}.\n"
                f"Units of {name} are {', '.join(able)}.\nPass one of these."
            )
        if joint and joint not in joints:
            raise FitError(unknown_name("joint", joint, joints))
    if isinstance(unit, str):
        return x if SCALE[unit] == 1 else x * SCALE[unit]
    if x.ndim != 2 or x.shape[1] != len(joints):
        raise FitError(
            f"units of {name} are given by joint, and {name} has shape {list(x.shape)}.\n"
            f"They need a column for each of {len(joints)} joints.\n"
            f"Pass one unit: units={{{name!r}: ...}}."
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
        FitError: where file and declaration say different units; names the column.
    """
    given = {name for some in columns.values() for name in some}
    found: dict[str, Array] = {}
    for name, x in table.columns.items():
        bare, unit = name, table.units.get(name)
        said = re.fullmatch(r"(.*?\S)[\s_]*[\[(]([^\[\]()]+)[\])]", name)
        if unit is None and said is not None and said[2] not in joints:
            unit = WRITTEN.get(said[2].strip(), said[2].strip())
            bare = said[1] if unit in SCALE and name not in given else name
        of = next((quantity for quantity, able in OF.items() if unit in able), None)
        declared = None if of is None else units.get(of)
        if unit is None or of is None or (unit in CURRENTS and declared is None):
            found[name] = x
            continue
        if declared not in (None, unit):
            raise FitError(
                f"{path}: column {name!r} is in {unit}, and {of} was declared in {declared}.\n"
                f"What the file says of its units counts already.\nLeave the unit of {of} out."
            )
        if bare in found or (bare != name and bare in table.columns):
            raise FitError(
                f"{path}: the column {bare!r} is there twice, once as {name!r}.\n"
                "One of them would count, and nobody said which.\nName the other otherwise, or leave it out."
            )
        found[bare] = x * SCALE[unit] if declared is None and SCALE[unit] != 1 else x
    return replace(table, columns=found)
