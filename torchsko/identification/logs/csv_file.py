"""CSV logs: a header line, an optional line of units, and samples."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import QUANTITY_NAMES
from torchsko.identification.logs.table import NUMBERED_JOINT_NAME, Table
from torchsko.identification.logs.timestamps import parse_datetime, seconds_after
from torchsko.identification.logs.units import SI_SCALE, normalize_unit, unit_in_name

Array = NDArray[np.floating[Any]]

BLOCK_LINES = 10_000
"""Lines that are parsed at a time, to bound the memory."""

NO_VALUE = ("", "[]", "()", "-", "--", "na", "n/a", "null", "none", "nil", "missing")
"""Cells that stand for a missing number."""

DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
"""A number with a decimal comma."""


class Header(NamedTuple):
    """Contents of a CSV file up to its first sample.

    Attributes:
        names: of the columns.
        separator: between cells; None for white space.
        units: of columns by name, from a line of units.
        line: number of the line of the first sample.
        text: that line.
        cells: of that line.
        dates: columns of dates and times, with the first one of each.
        joints: columns that contain names of joints, with the name.
    """

    names: list[str]
    separator: str | None
    units: dict[str, str]
    line: int
    text: str
    cells: list[str]
    dates: dict[int, datetime]
    joints: dict[int, str]


def read_csv(path: Path, layout: str | None = None) -> Table:
    """Read a CSV file; dates become seconds from the first one.

    Args:
        path: of the file.
        layout: its columns, if it has no header; see `expand_layout`.

    Raises:
        FitError: if the file is not a plain CSV file; names the line.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = enumerate(file, 1)
            if layout is None:
                header, lines = _read_header(path, lines)
            else:
                header, lines = _given_header(path, lines, expand_layout(layout))
            rows = _read_rows(path, header, lines)
    except UnicodeDecodeError:
        raise _wrong_encoding(path) from None
    names, dates = header.names, header.dates
    if not any(x.lower() in QUANTITY_NAMES["t"] for x in names):
        # pandas writes an index without a name; an index of dates is the time.
        names = ["time" if not x and k in dates else x for k, x in enumerate(names)]
    columns, other = {}, {}
    for k, (name, x) in enumerate(zip(names, rows.T, strict=True)):
        kind = None if k in dates or _is_number(header.cells[k]) else _kind_of(header.cells[k])
        if name and kind is not None and np.isnan(x).all():
            other[name] = kind
        elif name:
            columns[name] = x
    orders: dict[str, dict[int, str]] = {}
    for k, joint in header.joints.items():
        if match := NUMBERED_JOINT_NAME.fullmatch(names[k]):
            orders.setdefault(match[1], {})[int(match[2])] = joint
    return Table(columns, header.units | {names[k]: "s" for k in dates}, other, orders)


def _read_header(path: Path, lines: Iterator[tuple[int, str]]) -> tuple[Header, Iterator[str]]:
    """Read up to the first sample; return the lines after it, too."""
    comment, number, line = None, 1, ""
    for number, line in lines:
        if line.startswith("#"):
            comment = number, line
        elif not _is_blank(line):
            break
    # numpy.savetxt writes the names as a comment.
    if comment is not None:
        first = _split_cells(line, _find_separator(comment[1]))[0]
        if line.startswith("#") or _is_blank(line) or _is_value(first):
            lines = itertools.chain([(number, line)], lines)
            number, line = comment
    if "\0" in line:
        raise _wrong_encoding(path)
    separator = _find_separator(line)
    names = _parse_names(path, line, separator)
    header_line, units = number, {}
    number, line = _next_line(lines, number)
    cells = _split_cells(line, separator)
    if line and not any(map(_is_value, cells)):
        units = _parse_units(path, number, names, cells, header_line)
        number, line = _next_line(lines, number)
        cells = _split_cells(line, separator)
    if not line:
        raise FitError(
            f"{path}: it has no samples below its header.",
            "A CSV log is a header line and one line for each sample.",
            "Check that the file is complete.",
        )
    _check_width(path, number, cells, len(names))
    columns = list(enumerate(zip(names, cells, strict=True)))
    dates = {k: x for k, (_, cell) in columns if (x := parse_datetime(cell)) is not None}
    joints = {
        k: cell
        for k, (name, cell) in columns
        if NUMBERED_JOINT_NAME.fullmatch(name) and _kind_of(cell) == "text"
    }
    header = Header(names, separator, units, number, line, cells, dates, joints)
    return header, (text for _, text in lines)


def expand_layout(layout: str) -> list[str]:
    """Names of the columns of a file without a header.

    Args:
        layout: quantities in order, with the number of their columns, "t,q*6,qd*6,tau*6". "-" or "-*3" are
            columns that are not used.

    Returns:
        A name for each column, "" for those that are not used.

    Raises:
        FitError: if a part is not a quantity.

    Example:
        >>> from torchsko.identification.logs.csv_file import expand_layout
        >>> expand_layout("t,q*2,-")
        ['t', 'q_1', 'q_2', '']
    """
    names: list[str] = []
    for part in layout.split(","):
        match = re.fullmatch(r"\s*(t|q|qd|tau|-)\s*(?:\*\s*(\d+))?\s*", part)
        if match is None or (match[1] == "t" and match[2]):
            raise FitError(
                f"the columns {layout!r} contain {part!r}.",
                "Each part is t, q, qd, tau or - (not used), with the number of its columns.",
                "Type --columns t,q*6,qd*6,tau*6, for example.",
            )
        for _ in range(int(match[2] or 1)):
            number = 1 + sum(x.startswith(f"{match[1]}_") for x in names)
            names.append({"t": "t", "-": ""}.get(match[1], f"{match[1]}_{number}"))
    return names


def _given_header(
    path: Path, lines: Iterator[tuple[int, str]], names: list[str]
) -> tuple[Header, Iterator[str]]:
    """The columns of a file without a header; lines before the first sample are skipped."""
    samples = (
        (k, line)
        for k, line in lines
        if not _is_blank(line) and _is_value(_split_cells(line, _find_separator(line))[0])
    )
    number, line = next(samples, (0, ""))
    if not line:
        raise FitError(f"{path}: it has no samples.", "No line begins with a number.", "Check it.")
    separator = _find_separator(line)
    cells = _split_cells(line, separator)
    if len(cells) != len(names):
        raise FitError(
            f"{path}: line {number} has {len(cells)} columns, {len(names)} are listed.",
            "The list must name all columns, - for those that are not used.",
            "Correct the numbers: --columns t,q*6,qd*6,tau*6, for example.",
        )
    dates = {k: x for k, cell in enumerate(cells) if (x := parse_datetime(cell)) is not None}
    return Header(names, separator, {}, number, line, cells, dates, {}), (x for _, x in lines)


def _next_line(lines: Iterator[tuple[int, str]], number: int) -> tuple[int, str]:
    """Next line with cells, and its number; an empty line at the end of the file."""
    return next(((k, line) for k, line in lines if not _is_blank(line)), (number, ""))


def _parse_names(path: Path, line: str, separator: str | None) -> list[str]:
    """Names of the columns."""
    names = [x.strip("#").strip() for x in _split_cells(line.lstrip("#"), separator)]
    example = 'Put a header line first: "t,q_1,q_2,tau_1,tau_2", for example.'
    if not any(names):
        raise FitError(f"{path}: it has no header line.", "The header names the columns.", example)
    if _is_number(names[0]):
        raise FitError(
            f"{path}: its first line holds numbers, {line.strip()[:40]!r}.",
            "The first line must name the columns.",
            "Put a header line first, or list the columns: --columns t,q*6,qd*6,tau*6, or "
            'columns="t,q*6,qd*6,tau*6".',
        )
    duplicates = [name for k, name in enumerate(names) if name and name in names[:k]]
    if duplicates:
        name = duplicates[0]
        raise FitError(
            f"{path}: {names.count(name)} columns are named {name!r}.",
            "The names of columns must be unique.",
            "Rename the others in the header, or remove them.",
        )
    return names


def _parse_units(
    path: Path, number: int, names: list[str], cells: list[str], header_line: int
) -> dict[str, str]:
    """Units from a line below the header, by column."""
    normalized = [normalize_unit(x.strip("[]()")) for x in cells]
    unknown = [x for x in normalized if x not in SI_SCALE and x not in ("", "-")]
    if not unknown:
        units = {name: x for name, x in zip(names, normalized, strict=False) if x in SI_SCALE}
        for name, unit in units.items():
            if (other := unit_in_name(name)) not in (None, unit):
                raise FitError(
                    f"{path}: line {number} gives the unit {unit} for {name!r}, whose name gives {other}.",
                    "The two units contradict each other.",
                    "Correct the name, or the line.",
                )
        return units
    for cell in cells:
        _check_decimal_comma(path, number, cell)
    what = f"{path}: line {number} has no number, but {unknown[0][:40]!r}."
    known = ", ".join(SI_SCALE)
    if any(x in SI_SCALE for x in normalized):
        raise FitError(
            what, "It seems to be a line of units with an unknown one.", f"Known units are {known}."
        )
    if any(x.lower() in QUANTITY_NAMES["t"] for x in cells):
        wrong = number if cells == names else header_line
        raise FitError(
            what,
            "It seems to be the header, but the first line counts as the header.",
            f"Delete the other line: sed -i {wrong}d {path.name}.",
        )
    raise FitError(
        what,
        "Below the header a line of units may follow, and then samples.",
        f"Delete the line: sed -i {number}d {path.name}. Known units are {known}.",
    )


def _read_rows(path: Path, header: Header, lines: Iterator[str]) -> Array:
    """All samples, `[samples, columns]`; nan for cells that are not numbers."""
    lines, number = itertools.chain([header.text], lines), header.line
    only_numbers = not header.dates and not header.joints
    blocks = []
    while block := list(itertools.islice(lines, BLOCK_LINES)):
        rows = _parse_numbers(block, header) if only_numbers else None
        blocks.append(_parse_cells(path, number, block, header) if rows is None else rows)
        number += len(block)
    return np.concatenate(blocks)


def _parse_numbers(lines: list[str], header: Header) -> Array | None:
    """Parse samples by the fast parser of NumPy; None if a cell is not a number."""
    if all(map(_is_blank, lines[:1])) and all(map(_is_blank, lines)):
        return np.empty((0, len(header.names)))
    try:
        rows = np.loadtxt(lines, delimiter=header.separator, quotechar='"', ndmin=2)
    except ValueError:
        return None
    return rows if rows.shape[1] == len(header.names) else None


def _parse_cells(path: Path, number: int, lines: Sequence[str], header: Header) -> Array:
    """Parse samples cell by cell, the first from line `number` of the file."""
    rows = []
    for line_number, line in enumerate(lines, number):
        if _is_blank(line):
            continue
        cells = _split_cells(line, header.separator)
        for k, cell in enumerate(cells):
            value, comment, _ = cell.partition("#")
            if comment and _is_number(value):  # a joint may be named "arm #2"
                cells = [*cells[:k], value]
                break
        _check_width(path, line_number, cells, len(header.names))
        row = []
        for k, cell in enumerate(cells):
            if k in header.dates:
                row.append(seconds_after(header.dates[k], cell))
            elif k in header.joints and cell != header.joints[k]:
                raise FitError(
                    f"{path}: line {line_number} names the joint {cell!r}, line {header.line} names "
                    f"{header.joints[k]!r}.",
                    "The columns must be the same joints in all samples.",
                    "Remove the samples of other joints, or sort the columns of each sample by joint.",
                )
            else:
                try:
                    row.append(float(cell))
                except ValueError:
                    _check_decimal_comma(path, line_number, cell)
                    row.append(np.nan)
        rows.append(row)
    return np.array(rows).reshape(-1, len(header.names))


def _check_width(path: Path, number: int, cells: Sequence[str], width: int) -> None:
    """Check that a line has as many cells as the header."""
    if len(cells) == width:
        return
    advice = f"Correct the line, or delete it: sed -i {number}d {path.name}."
    if len(cells) == width + 1 and not cells[-1]:
        advice = "Lines end in a separator: remove it, or let the header end in one, too."
    raise FitError(
        f"{path}: line {number} has {len(cells)} columns, the header has {width}.",
        "Each line must have a cell for each column.",
        advice,
    )


def _check_decimal_comma(path: Path, number: int, cell: str) -> None:
    if DECIMAL_COMMA.fullmatch(cell):
        raise FitError(
            f"{path}: line {number} has a decimal comma, {cell!r}.",
            "CSV logs are read with decimal points.",
            _conversion(path, 'sep=";", decimal=","'),
        )


def _wrong_encoding(path: Path) -> FitError:
    return FitError(
        f"{path}: it is not UTF-8 text.",
        "CSV logs are read as UTF-8.",
        _conversion(path, 'encoding="utf-16"'),
    )


def _conversion(path: Path, options: str) -> str:
    """Advice to convert a file with pandas."""
    return (
        f'Convert it: pandas.read_csv("{path.name}", {options}).to_csv("plain.csv", index=False).'
    )


def _is_blank(line: str) -> bool:
    """Test for a comment, and for a line of separators, quotes and spaces only."""
    return line.lstrip()[:1] == "#" or not line.strip(' \t\r\n,;"')


def _find_separator(line: str) -> str | None:
    """The separator of a header line: the most frequent of comma, semicolon and tab; None: white space."""
    separator = max(",;\t", key=line.count)
    return separator if separator in line else None


def _split_cells(line: str, separator: str | None) -> list[str]:
    """Cells of a line; quotes protect separators."""
    line = line.strip(" \r\n")
    if separator is None or '"' not in line:
        cells = line.split(separator)
    else:
        cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True))
    return [x.strip().strip("\"'") for x in cells] or [""]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_value(cell: str) -> bool:
    return _is_number(cell) or parse_datetime(cell) is not None


def _kind_of(cell: str) -> str | None:
    """Type of a column whose first cell is not a number; None if that cell is a missing number."""
    if cell.lower() in NO_VALUE or cell.startswith("#"):
        return None
    return "lists" if cell[:1] in "[({" or cell.startswith("array") else "text"
