"""Units of logs: conversion to SI units, and the units that files specify."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError, unknown_name

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
