"""CSV logs: a header line with the names of the columns, and samples."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import match_joint

Array = NDArray[np.floating[Any]]

BLOCK_LINES = 10_000
"""Lines that are parsed at a time, to bound the memory."""


class Table(NamedTuple):
    """Contents of the file of a log.

    Attributes:
        columns: arrays by name, `[samples]` or `[samples, joints]`.
        invalid: for columns that contain something else than numbers, what and where.
    """

    columns: dict[str, Array]
    invalid: dict[str, str]


class Header(NamedTuple):
    """Columns of a CSV file.

    Attributes:
        names: of the columns, "" for columns that are not used.
        separator: between cells; None for white space.
        samples: lines of the samples with their numbers.
    """

    names: list[str]
    separator: str | None
    samples: Iterator[tuple[int, str]]


def read_csv(path: Path, layout: str | None = None, joints: Sequence[str] = ()) -> Table:
    """Read a CSV file in UTF-8 with decimal points. Lines that begin with # are comments.

    Args:
        path: of the file.
        layout: its columns, if it has no header; see `expand_layout`.
        joints: names in the robot's order.

    Raises:
        FitError: if the file is not a plain CSV file, or has names of joints as cells; names the line.
    """
    with path.open(encoding="utf-8-sig") as file:
        lines = ((k, x) for k, x in enumerate(file, 1) if x.strip(' \t\r\n,;"'))
        header = _header(path, lines) if layout is None else _given_header(lines, layout)
        invalid: dict[str, str] = {}
        blocks: list[Array] = [np.empty((0, len(header.names)))]
        samples = (x for x in header.samples if not x[1].lstrip().startswith("#"))
        while block := list(itertools.islice(samples, BLOCK_LINES)):
            rows = _parse_numbers([x for _, x in block], header)
            blocks.append(_parse_cells(path, block, header, invalid) if rows is None else rows)
    rows = np.concatenate(blocks)
    if not len(rows):
        raise FitError(
            f"{path}: it has no samples below its header.",
            "A CSV log is a header line and one line for each sample.",
            "Check that the file is complete.",
        )
    for name, cell in invalid.items():
        if match_joint(cell, joints) is not None:
            raise joint_as_value(path, name, cell)
    columns = {name: x for name, x in zip(header.names, rows.T, strict=True) if name}
    return Table(columns, {name: repr(cell[:40]) for name, cell in invalid.items() if name})


def joint_as_value(path: Path, name: str, value: str) -> FitError:
    """A column contains names of joints, whose order would be that of numbered columns."""
    return FitError(
        f"{path}: {name!r} has the joint {value!r} as a value.",
        "Columns are assigned to joints by their names, not by values of other columns.",
        f'Name the columns by joint, "q_{value}", for example with pandas.',
    )


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


def _header(path: Path, lines: Iterator[tuple[int, str]]) -> Header:
    """The names of the columns; numpy.savetxt writes them as a comment."""
    comment, first = "", next(lines, (1, ""))
    while first[1].startswith("#"):
        comment, first = first[1], next(lines, (1, ""))
    line, samples = first[1], lines
    if comment and (not line or _is_number(_split_cells(line, _find_separator(comment))[0])):
        line, samples = comment, itertools.chain([first] if line else [], lines)
    separator = _find_separator(line)
    names = [x.strip("#").strip() for x in _split_cells(line.lstrip("#"), separator)]
    if not any(names) or _is_number(names[0]):
        raise FitError(
            f"{path}: its first line has no names, {line.strip()[:40]!r}.",
            "The first line must name the columns.",
            'Put a header line first, "t,q_1,q_2,tau_1,tau_2", or list the columns: --columns '
            't,q*6,qd*6,tau*6, or columns="t,q*6,qd*6,tau*6".',
        )
    duplicates = [name for k, name in enumerate(names) if name and name in names[:k]]
    if duplicates:
        raise FitError(
            f"{path}: {names.count(duplicates[0])} columns are named {duplicates[0]!r}.",
            "The names of columns must be unique.",
            "Rename the others in the header, or remove them.",
        )
    return Header(names, separator, samples)


def _given_header(lines: Iterator[tuple[int, str]], layout: str) -> Header:
    """The columns of a file without a header; lines before the first sample are skipped."""
    for number, line in lines:
        separator = _find_separator(line)
        if _is_number(_split_cells(line, separator)[0]):
            samples = itertools.chain([(number, line)], lines)
            return Header(expand_layout(layout), separator, samples)
    return Header(expand_layout(layout), None, lines)


def _parse_numbers(lines: list[str], header: Header) -> Array | None:
    """Parse samples by the fast parser of NumPy; None if a cell is not a number."""
    try:
        rows = np.loadtxt(lines, delimiter=header.separator, quotechar='"', ndmin=2)
    except ValueError:
        return None
    return rows if rows.shape[1] == len(header.names) else None


def _parse_cells(
    path: Path, lines: list[tuple[int, str]], header: Header, invalid: dict[str, str]
) -> Array:
    """Parse samples cell by cell; empty cells are nan, and others that are no numbers are noted."""
    rows = np.full((len(lines), len(header.names)), np.nan)
    for row, (number, line) in zip(rows, lines, strict=True):
        cells = _split_cells(line, header.separator)
        if len(cells) != len(row):
            raise FitError(
                f"{path}: line {number} has {len(cells)} columns, not {len(row)}.",
                "Each line must have a cell for each column.",
                f"Correct the line, or delete it: sed -i {number}d {path.name}.",
            )
        for k, (name, cell) in enumerate(zip(header.names, cells, strict=True)):
            if _is_number(cell):
                row[k] = float(cell)
            elif cell:
                invalid.setdefault(name, cell)
    return rows


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
