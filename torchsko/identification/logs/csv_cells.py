"""Cells of a table that are no numbers: moments, names of joints, what a spreadsheet puts for none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError

NONE = ("", "[]", "()", "-", "--", "na", "n/a", "null", "none", "nil", "missing")
"""What stands for no number, besides words that begin with #."""

FAULT = re.compile(r'(?<=[,;\t"])(\s*)#[A-Z][A-Z0-9/]*[!?]?(?=\s*(?:[,;\t"]|$))')
"""What spreadsheets put for none: #N/A, #DIV/0!."""

NAMED = re.compile(r"((?:.*(?:[/.]|__))?)(?:joint_?)?names?[\s_./\[(-]*(\d+)[\])]*", re.IGNORECASE)
"""What columns that hold the name of a joint are called, as lists of messages: "field.name0", "name_0"."""


JOINTS = ("name", "names", "joint_name", "joint_names", "joints", "joint_order", "jointnames")
"""What words are called that say in which order joints are."""

DURATION = re.compile(r"(-?\d+) days?(?:,? \+?(\d+):(\d\d):(\d\d(?:[.,]\d*)?))?")
"""A duration as pandas and Python write it: "0 days 00:00:00.001"."""


def moment(cell: str) -> datetime | timedelta | None:
    """What a cell says, if that is a day and a time: "2026-01-02T12:00:00.5"; 0 if that is a duration."""
    if "day" in cell and DURATION.fullmatch(cell):
        return timedelta(0)
    if "-" not in cell or ":" not in cell:
        return None
    try:
        return datetime.fromisoformat(cell)
    except ValueError:
        return None


def stem_of(name: str) -> str | None:
    """What names of arrays begin with whose joints this one names; None where it names none."""
    last = re.split(r"[/.]|__", name)[-1]
    return name[: len(name) - len(last)] if last.lower() in JOINTS else None


def moments(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """Seconds of words that are moments or durations, from the first of them; None where it is none."""
    first = moment(cells[0] or "") if len(cells) else None
    return None if first is None else np.array([float(_seconds(x or "", first)) for x in cells])


def in_order_of(path: Path, rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Names of joints that all rows have alike.

    Raises:
        FitError: there are several orders; names two.
    """
    if len(rows) > 1:
        raise FitError(
            f"{path}: a row names its joints {', '.join(rows[0])}, another {', '.join(rows[1])}.",
            "Numbers of lists belong to the joints that their row names, and a log has one order.",
            "Leave out rows of other names, or sort the numbers of each row by its names.",
        )
    return tuple(rows[0]) if rows else ()


def seconds(x: NDArray[Any]) -> NDArray[np.float64]:
    """Seconds of durations, or of moments of a calendar from the first that is there; nan where none is."""
    first = x[~np.isnat(x)][:1] if x.dtype.kind == "M" else np.timedelta64(0, "s")
    return (x - first) / np.timedelta64(1, "s") if np.size(first) else np.full(len(x), np.nan)


def kind_of(cell: str) -> str | None:
    """What a column holds whose first cell this is and that has no number; None where it may be empty."""
    if cell.lower() in NONE or cell.startswith("#"):
        return None
    return "lists" if cell[:1] in "[({" or cell.startswith("array") else "words"


def in_seconds(
    rows: Iterator[list[str]], at: Mapping[int, datetime | timedelta]
) -> Iterator[list[str]]:
    """Rows whose moments, in some columns, are seconds from the first of each; "nan" where there is none."""
    for row in rows:
        for k, first in at.items():
            if k < len(row):
                row[k] = _seconds(row[k], first)
        yield row


def _seconds(cell: str, first: datetime | timedelta) -> str:
    if isinstance(first, timedelta):
        # By hand: there are nanoseconds in it, which timedelta has not.
        m = DURATION.fullmatch(cell)
        if m is None:
            return "nan"
        days, hours, minutes = (int(x or 0) for x in m.groups()[:3])
        return repr(
            86400.0 * days + 3600 * hours + 60 * minutes + float((m[4] or "0").replace(",", "."))
        )
    now = moment(cell)
    if not isinstance(now, datetime) or (now.tzinfo is None) != (first.tzinfo is None):
        return "nan"
    return repr((now - first).total_seconds())


def alike(
    path: Path, at: int, rows: Iterator[list[str]], named: Mapping[int, str]
) -> Iterator[list[str]]:
    """Rows, one for each line from line `at` on, that name the same joint in each of some columns.

    Raises:
        FitError: names the line, and both joints.
    """
    for line, row in enumerate(rows, at):
        for k, name in named.items():
            if k < len(row) and row[k] != name:
                raise FitError(
                    f"{path}: line {line} names the joint {row[k]!r} where line {at} names {name!r}.",
                    "Numbers belong to the joints that their row names, and a log has one order.",
                    "Leave out rows of other names, or sort the numbers of each row by its names.",
                )
        yield row


def orders(names: Sequence[str], cells: Sequence[str]) -> dict[str, dict[int, str]]:
    """Joints that columns name by number, for each stem of these columns: "field.name0" has "field."."""
    found: dict[str, dict[int, str]] = {}
    for k in naming(names, cells):
        if m := NAMED.fullmatch(names[k]):
            found.setdefault(m[1], {})[int(m[2])] = cells[k]
    return found


def naming(names: Sequence[str], cells: Sequence[str]) -> list[int]:
    """Columns that name joints."""
    pairs = enumerate(zip(names, cells, strict=False))
    return [k for k, (name, x) in pairs if NAMED.fullmatch(name) and kind_of(x) == "words"]
