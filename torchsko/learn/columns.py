"""Which columns of a log are which: by the names that people give them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError

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


def scaled(name: str, x: Array, unit: str | None) -> Array:
    """A quantity in SI units; untouched, and not copied, where it is in these.

    Raises:
        FitError: on a unit that it cannot have; names those that it can.
    """
    if unit is None:
        return x
    if unit not in OF[name]:
        raise FitError(
            f"the unit of {name} is {unit!r}.\n"
            f"Units of {name} are {', '.join(OF[name])}.\nPass one of these."
        )
    return x if SCALE[unit] == 1 else x * SCALE[unit]


def matched(
    path: Path,
    found: Mapping[str, Array],
    joints: tuple[str, ...],
    columns: Mapping[str, Sequence[str]],
    units: Mapping[str, str],
    wanted: Sequence[str] = ("t", "q", "qd", "tau"),
) -> dict[str, Array]:
    """The arrays t, q, qd and tau of a table, as far as wanted, columns in the order of the joints.

    Raises:
        FitError: where a quantity that is wanted, besides velocities, or a joint's column is missing; names
            it and what there is.
    """
    out: dict[str, Array] = {}
    for name, called in called_by(units.get("tau")).items():
        if name not in wanted:
            continue
        named = columns.get(name)
        if named is not None:
            x = np.stack([_column(path, found, c) for c in named], -1)
            out[name] = x[:, 0] if name == "t" else x
            continue
        whole = next((c for c in found if c.lower() in called), None)
        if whole is not None and (name == "t" or found[whole].ndim == 2):
            out[name] = found[whole]
        elif name != "t":
            picked = _of_joints(path, name, called, found, joints)
            if picked is not None:
                out[name] = picked
    for name in wanted:
        if name not in out and name != "qd":
            if name == "tau":
                _refuse_currents(path, found)
            raise FitError(
                f"{path}: no column is {_LONG[name]} ({name!r}).\n"
                f"There are {', '.join(map(repr, list(found)[:12]))}.\n"
                f'Name them: columns={{"{name}": ["..."]}}.'
            )
    return out


def called_by(unit: str | None) -> dict[str, tuple[str, ...]]:
    """What each quantity is called, where joint forces have a unit: first currents where it is theirs."""
    tau = CALLED["tau"]
    if unit is not None:
        tau = AMPERES + tau if unit in CURRENTS else tau + AMPERES
    return {**CALLED, "tau": tau}


def _refuse_currents(path: Path, found: Mapping[str, Array]) -> None:
    called = [name for name in found if re.search("|".join(AMPERES), name, re.IGNORECASE)]
    if called:
        raise FitError(
            f"{path}: {called[0]!r} is a current, and no unit is declared.\n"
            "Taken for a force it would make another robot.\n"
            'Declare it, units={"tau": "A"} or --unit tau=A: torque constants are found; or tau=Nm.'
        )


_LONG = {"t": "the time", "q": "a position", "tau": "a joint force"}


def _column(path: Path, found: Mapping[str, Array], name: str) -> Array:
    if name not in found:
        raise FitError(
            f"{path}: there is no column {name!r}.\n"
            f"There are {', '.join(map(repr, list(found)[:12]))}.\nName one of these."
        )
    return found[name]


def _of_joints(
    path: Path,
    name: str,
    called: Sequence[str],
    found: Mapping[str, Array],
    joints: tuple[str, ...],
) -> Array | None:
    """Columns of one quantity, by the name of the joint or by number."""
    by: dict[str, str] = {}
    for word, column in itertools.product(called, found):
        # Whole words, so that "qd_1" is no position and "joint1_tau" no time.
        first = re.fullmatch(rf"{word}(?:[\s_./\[(-]*)(.+?)[\])]*", column, re.IGNORECASE)
        last = re.fullmatch(rf"(.+?)[\s_./-]+{word}", column, re.IGNORECASE)
        for owner in (m[1] for m in (first, last) if m is not None):
            if owner in joints or owner.isdigit():
                by.setdefault(owner, column)
    if any(owner in joints for owner in by):
        missing = [joint for joint in joints if joint not in by]
        if missing:
            raise FitError(
                f"{path}: no column is {name} of joint {missing[0]!r}.\n"
                f"There are {', '.join(repr(by[j]) for j in joints if j in by)}.\n"
                f'Name the column "{name}_{missing[0]}", or say which are: columns={{"{name}": [...]}}.'
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
