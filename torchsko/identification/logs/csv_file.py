"""Logs as text, CSV: encodings, samples with decimal commas, and lines that are not whole."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import CALLED
from torchsko.identification.logs.csv_cells import (
    FAULT,
    alike,
    in_seconds,
    kind_of,
    moment,
    naming,
    orders,
)
from torchsko.identification.logs.csv_header import head_of
from torchsko.identification.logs.csv_lines import cells_of, is_number, says

Array = NDArray[np.floating[Any]]

HEAD = 65536
"""Bytes of a text by which its encoding is told."""

BLOCK = 10_000
"""Lines that are read at once."""

SHORT = re.compile(r"Line #(\d+) \(got (\d+) columns")
"""What NumPy says of a row of another length."""

QUOTED = re.compile(r'"([^"]*)"')
"""A cell in quotes."""


def read_text(
    path: Path,
) -> tuple[dict[str, Array], dict[str, str], dict[str, str], dict[str, dict[int, str]]]:
    """Columns of a CSV file by name; their units; what others hold, that are no numbers; see `Table`.

    Moments of a calendar become seconds from the first.
    """
    with path.open(encoding=_encoding(path)) as file:
        head, below = head_of(path, enumerate(file, 1))
        names, cells = head.names, head.cells
        moments = {k: x for k, cell in enumerate(cells) if (x := moment(cell)) is not None}
        lines = itertools.chain([head.first], below)
        joints = naming(names, cells)
        if joints or moments:
            told = {k: cells[k] for k in joints}
            lines = _told(path, head.at, lines, head.sep, told, moments)
        rows = _rows(path, head.at, lines, head.sep, cells)
    if not any(x.lower() in CALLED["t"] for x in names):
        # The index of a table, as pandas writes it, has no name; moments there are the time.
        names = ["time" if not x and k in moments else x for k, x in enumerate(names)]
    units = head.units | {names[k]: "s" for k in moments}
    words = {k: kind_of(x) for k, x in enumerate(cells) if k not in moments and not is_number(x)}
    columns, other = {}, {}
    for k, (name, x) in enumerate(zip(names, rows.T, strict=True)):
        kind = words.get(k)
        if name and kind is not None and np.isnan(x).all():
            other[name] = kind
        elif name:
            columns[name] = x
    return columns, units, other, orders(names, cells)


def _told(
    path: Path, at: int, lines: Iterator[str], sep: str | None, joints: Mapping[int, str],
    moments: Mapping[int, datetime | timedelta],
) -> Iterator[str]:  # fmt: skip
    """Lines, the first in line `at` of the file, with moments as seconds; joints that they name are alike."""
    # What says nothing stays as an empty line: those below keep their numbers.
    for row in in_seconds(alike(path, at, (_said(x, sep) for x in lines), joints), moments):
        # A comma in a cell is of decimals; or of words, and would be one more column.
        parts = [x.replace(",", ".") for x in row]
        yield (sep or " ").join(
            x if k in moments or is_number(x) or not x else "nan" for k, x in enumerate(parts)
        )


def _said(line: str, sep: str | None) -> list[str]:
    """Cells of a line up to a comment; none of an empty line or a comment alone."""
    if not says(line.lstrip(), sep):
        return []
    cells = cells_of(line, sep)
    for k, x in enumerate(cells):
        number, mark, _ = x.partition("#")
        if mark and is_number(number):  # a joint may be called "arm #2"
            return [*cells[:k], number.strip()]
    return cells


def _encoding(path: Path) -> str:
    """Of a text: by its mark, else UTF-8 where its start is that, else Latin-1."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in head:
        raise FitError(
            f"{path}: is no text, or of an encoding without a mark.",
            "A CSV file is text, in UTF-8, UTF-16 with a byte order mark, or Latin-1.",
            "Save it as UTF-8.",
        )
    try:
        head[: head.rfind(b"\n") + 1].decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"


def _unquoted(cell: re.Match[str]) -> str:
    """What stands in quotes, its decimal comma a point."""
    return cell[1].replace(",", ".")


def _rows(
    path: Path, at: int, lines: Iterator[str], sep: str | None, cells: list[str]
) -> NDArray[np.float64]:
    """Samples, the first in line `at`, read block by block."""
    if sep != ",":  # then commas are of decimals, of which the first samples may have none
        lines = (x.replace(",", ".") for x in lines)
    lines = (FAULT.sub(r"\1nan", x) if "#" in x else x for x in lines)
    lines = (QUOTED.sub(_unquoted, x) if '"' in x else x for x in lines)
    blocks, first = [], ""
    while block := list(itertools.islice(lines, BLOCK)):
        first = first or block[0]
        blocks.append(_numbers(block, sep, len(cells)))
        if blocks[-1] is None:
            blocks[-1] = _whatever(path, at, [first, *block], sep, cells)
        at += len(block)
    return np.concatenate(blocks)


def _numbers(lines: list[str], sep: str | None, width: int) -> NDArray[np.float64] | None:
    """Samples of lines of which every cell is a number; None where one is not.

    NumPy reads these by a program of C, a tenth of the time and of the memory that others take.
    """
    if not any(x.split("#")[0].strip() for x in lines):
        return np.empty((0, width))
    try:
        out = np.loadtxt(lines, delimiter=sep, ndmin=2)
    except ValueError:
        return None
    return out if out.shape[1] == width else None


def _whatever(
    path: Path, at: int, lines: list[str], sep: str | None, cells: list[str]
) -> NDArray[np.float64]:
    """Samples of lines some of whose cells are words, or empty, which are nan; but for the first line.

    It says how many columns there are, and the second is the line `at` of the file.
    """
    lines = [x if says(x.lstrip(), sep) else "\n" for x in lines]
    try:
        rows = np.genfromtxt(lines, delimiter=sep, dtype=np.float64, ndmin=2, invalid_raise=True)
        return rows[1:]
    except ValueError as error:
        odd = SHORT.findall(str(error))
        if not odd:
            raise
        line, found = int(odd[0][0]) + at - 2, int(odd[0][1])
        more = ", the first of several such lines" if len(odd) > 1 else ""
        raise FitError(
            f"{path}: line {line} has {found} columns, the others have {len(cells)}{more}.",
            "A row that was cut off, or has a separator too many, tells no sample.",
            f"Leave it out: sed -i {line}d {path.name}, say.",
        ) from error
