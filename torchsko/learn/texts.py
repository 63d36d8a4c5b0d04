"""Logs as text, CSV: separators, decimal commas, encodings, and lines that are not whole."""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.learn.called import CALLED
from torchsko.learn.units import SCALE, unit_in, unit_of
from torchsko.learn.words import FAULT, alike, in_seconds, kind_of, moment, naming, orders

Array = NDArray[np.floating[Any]]

HEAD = 65536
"""Bytes of a text by which its encoding is told."""

BLOCK = 10_000
"""Lines that are read at once."""

SHORT = re.compile(r"Line #(\d+) \(got (\d+) columns")
"""What NumPy says of a row of another length."""

DECLARED = re.compile(r'"?sep=(.)"?[,;\t ]*', re.IGNORECASE)
"""What some programs write above the names: the separator."""

QUOTED = re.compile(r'"([^"]*)"')
"""A cell in quotes."""


def read_text(
    path: Path,
) -> tuple[dict[str, Array], dict[str, str], dict[str, str], dict[str, dict[int, str]]]:
    """Columns of a CSV file by name; their units; what others hold, that are no numbers; see `Table`.

    Moments of a calendar become seconds from the first.
    """
    with path.open(encoding=_encoding(path)) as file:
        named, header, sep, lines = _line_of_names(enumerate(file, 1))
        names = _names(path, header, sep)
        at, first = next(((k, x) for k, x in lines if _says(x, sep)), (named, ""))
        cells, units = _cells(first, sep), {}
        if first and not any(_is_number(x) or moment(x) is not None for x in cells):
            units = _row_of_units(path, at, names, cells)
            at, first = next(((k, x) for k, x in lines if _says(x, sep)), (at, ""))
            cells = _cells(first, sep)
        if not first:
            raise FitError(
                f"{path}: there is no sample below its first line.\n"
                "A log is a line of names, and one for each sample.\nCheck that the file is whole."
            )
        if len(cells) != len(names):
            where = "its first line" if named == 1 else f"its line {named}"
            more = (
                "its rows end in a separator, which the names may do too."
                if len(cells) == len(names) + 1 and not cells[-1]
                else "leave out what has none, or name it."
            )
            raise FitError(
                f"{path}: {where} names {len(names)} columns, its rows have {len(cells)} "
                f"(line {at}).\nEach column has a name.\nCorrect line {named}: {more}"
            )
        rest = itertools.chain([first], (x for _, x in lines))
        joints = naming(names, cells)
        moments = {k: x for k, cell in enumerate(cells) if (x := moment(cell)) is not None}
        if joints or moments:
            rest = _told(path, at, rest, sep, {k: cells[k] for k in joints}, moments)
        rows = _rows(path, at, rest, sep, cells)
    if not any(x.lower() in CALLED["t"] for x in names):
        # The index of a table, as pandas writes it, has no name; moments there are the time.
        names = ["time" if not x and k in moments else x for k, x in enumerate(names)]
    units |= {names[k]: "s" for k in moments}
    columns, other = {}, {}
    for k, (name, x) in enumerate(zip(names, rows.T, strict=True)):
        kind = None if k in moments or _is_number(cells[k]) else kind_of(cells[k])
        if not name:
            continue
        if kind is not None and np.isnan(x).all():
            other[name] = kind
        else:
            columns[name] = x
    return columns, units, other, orders(names, cells)


def _line_of_names(
    lines: Iterator[tuple[int, str]],
) -> tuple[int, str, str | None, Iterator[tuple[int, str]]]:
    """The line of names with its number, the separator, and the lines below.

    What stands above is no line of names: comments, empty lines, titles in a cell of their own, and what
    spreadsheets are told a separator by, "sep=;".
    """
    said: list[tuple[int, str]] = []
    at, line = next(lines, (1, ""))
    declared = DECLARED.fullmatch(line.rstrip("\r\n"))
    sep = None if declared is None else declared[1]
    if sep is not None:
        at, line = next(lines, (at, ""))
    while True:
        if line.startswith("#"):
            said.append((at, line))
        elif _says(line, sep):
            # The line below tells a title.
            below = list(itertools.islice((x for x in lines if _says(x[1], sep)), 1))
            lines = itertools.chain(below, lines)
            if not below or not _is_title(line, below[0][1], sep):
                break
        found = next(lines, None)
        if found is None:
            line = ""
            break
        at, line = found
    # numpy.savetxt writes its names as a comment.
    if said and (not line.strip() or _is_number(_cells(line, sep or _separator(said[-1][1]))[0])):
        lines, (at, line) = itertools.chain([(at, line)], lines), said[-1]
    return at, line, sep or _separator(line), lines


def _is_title(line: str, below: str, sep: str | None) -> bool:
    """Whether a line has one cell alone, no number, and the one below has several, of words.

    A log has three columns at least.
    """
    inner = sep or _separator(below)
    cells = [x for x in _cells(below, inner) if x]
    words = [x for x in _cells(line, inner) if x]
    return (
        len(words) == 1 < len(cells)
        and not below.startswith("#")
        and not any(_is_number(x) or moment(x) is not None for x in (*words, *cells))
    )


def _says(line: str, sep: str | None) -> bool:
    """Whether a line says anything: more than separators, as spreadsheets write empty rows, or a comment."""
    return line[:1] != "#" and bool(line.strip(f' \t\r\n,;"{sep or ""}'))


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
            x if k in moments or _is_number(x) or not x else "nan" for k, x in enumerate(parts)
        )


def _said(line: str, sep: str | None) -> list[str]:
    """Cells of a line up to a comment; none of an empty line or a comment alone."""
    if not _says(line.lstrip(), sep):
        return []
    cells = _cells(line, sep)
    for k, x in enumerate(cells):
        number, mark, _ = x.partition("#")
        if mark and _is_number(number):  # a joint may be called "arm #2"
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
            f"{path}: is no text, or of an encoding without a mark.\n"
            "A CSV file is text, in UTF-8, UTF-16 with a byte order mark, or Latin-1.\n"
            "Save it as UTF-8."
        )
    try:
        head[: head.rfind(b"\n") + 1].decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"


def _separator(header: str) -> str | None:
    sep = max(",;\t", key=header.count)
    return sep if sep in header else None


def _cells(line: str, sep: str | None) -> list[str]:
    """Cells of a line; a separator in quotes is none."""
    line = line.strip(" \r\n")
    if sep is None or '"' not in line:
        parts = line.split(sep)
    else:
        parts = next(csv.reader([line], delimiter=sep, skipinitialspace=True))
    return [x.strip().strip("\"'") for x in parts] or [""]


def _unquoted(cell: re.Match[str]) -> str:
    """What stands in quotes, its decimal comma a point."""
    return cell[1].replace(",", ".")


def _names(path: Path, header: str, sep: str | None) -> list[str]:
    if not header.strip():
        raise FitError(
            f"{path}: its first line is empty.\n"
            "The first line of a CSV file names its columns.\n"
            'Put one there: "t,q_1,q_2,tau_1,tau_2", say, and samples below.'
        )
    names = [x.strip("#").strip() for x in _cells(header.lstrip("#").strip("\r\n "), sep)]
    if _is_number(names[0]):
        raise FitError(
            f"{path}: its first line holds numbers, {header.strip()[:40]!r}.\n"
            "The first line of a CSV file names its columns.\n"
            'Put one there: "t,q_1,q_2,tau_1,tau_2", say.'
        )
    twice = [name for k, name in enumerate(names) if name and name in names[:k]]
    if twice:
        raise FitError(
            f"{path}: the column {twice[0]!r} is there {names.count(twice[0])} times.\n"
            "One of them would count, and nobody said which.\n"
            "Name the others otherwise in the first line, or leave them out."
        )
    return names


def _row_of_units(path: Path, at: int, names: list[str], cells: list[str]) -> dict[str, str]:
    """Units that stand below the names."""
    known = [unit_of(x.strip("[]()")) for x in cells]
    wrong = [x for x in known if x not in SCALE and x not in ("", "-")]
    if not wrong:
        units = {name: x for name, x in zip(names, known, strict=False) if x in SCALE}
        for name, unit in units.items():
            if unit_in(name) not in (None, unit):
                raise FitError(
                    f"{path}: line {at} says that {name!r} is in {unit}, and its name that it is in "
                    f"{unit_in(name)}.\nOne of them is wrong.\nCorrect the name, or the line."
                )
        return units
    told = f"{path}: line {at} holds no number: {wrong[0][:40]!r} is one of its words.\n"
    if any(x in SCALE for x in known):
        raise FitError(
            f"{told}Below the names may be a line of units, of which this is not known.\n"
            f"Write those columns in a unit that is, and correct the line; known are {', '.join(SCALE)}."
        )
    if any(x.lower() in CALLED["t"] for x in cells):
        which = at if cells == names else 1 if at == 2 else f"1,{at - 1}"
        raise FitError(
            f"{told}Names of columns stand there, below a line that counts as names.\n"
            f"Leave out the other lines, of a title say: sed -i {which}d {path.name}."
        )
    raise FitError(
        f"{told}Below the names are samples, or one line of units that are known.\n"
        f"Leave the line out; units known are {', '.join(SCALE)}."
    )


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
    lines = [x if _says(x.lstrip(), sep) else "\n" for x in lines]
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
            f"{path}: line {line} has {found} columns, the others have {len(cells)}{more}.\n"
            "A row that was cut off, or has a separator too many, tells no sample.\n"
            f"Leave it out: sed -i {line}d {path.name}, say."
        ) from error


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True
