"""What logs as text say above their second sample: names, units, and how lines are to be read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import CALLED
from torchsko.identification.logs.csv_cells import moment
from torchsko.identification.logs.csv_lines import cells_of, is_number, says, separator_of
from torchsko.identification.logs.units import SCALE, unit_in, unit_of

DECLARED = re.compile(r'"?sep=(.)"?[,;\t ]*', re.IGNORECASE)
"""What some programs write above the names: the separator."""


class Head(NamedTuple):
    """What a text says up to its first sample.

    Attributes:
        names: of the columns.
        sep: what stands between cells; None: white space.
        units: of columns by name, where a line of units stands below the names.
        at: number of the line of the first sample.
        first: this line.
        cells: of this line.
    """

    names: list[str]
    sep: str | None
    units: dict[str, str]
    at: int
    first: str
    cells: list[str]


def head_of(path: Path, lines: Iterator[tuple[int, str]]) -> tuple[Head, Iterator[str]]:
    """What a text says up to its first sample, and the lines below that.

    Args:
        path: of the file.
        lines: with their numbers.

    Raises:
        FitError: where names or samples are missing, or are not as many as each other.
    """
    named, header, sep, lines = _line_of_names(lines)
    names, units = _names(path, header, sep), {}
    at, first = _next_that_says(lines, sep, named)
    cells = cells_of(first, sep)
    if first and not any(is_number(x) or moment(x) is not None for x in cells):
        units = _row_of_units(path, at, names, cells)
        at, first = _next_that_says(lines, sep, at)
        cells = cells_of(first, sep)
    if not first:
        raise FitError(
            f"{path}: there is no sample below its first line.",
            "A log is a line of names, and one for each sample.",
            "Check that the file is whole.",
        )
    head = Head(names, sep, units, at, first, cells)
    _refuse_unnamed(path, named, head)
    return head, (line for _, line in lines)


def _next_that_says(lines: Iterator[tuple[int, str]], sep: str | None, at: int) -> tuple[int, str]:
    """The next line that says anything, with its number; an empty one, below line `at`, without any."""
    return next(((k, line) for k, line in lines if says(line, sep)), (at, ""))


def _refuse_unnamed(path: Path, named: int, head: Head) -> None:
    """Refuse samples of more or fewer cells than the line of names, `named`, has."""
    names, cells = head.names, head.cells
    if len(cells) == len(names):
        return
    where = "its first line" if named == 1 else f"its line {named}"
    more = (
        "its rows end in a separator, which the names may do too."
        if len(cells) == len(names) + 1 and not cells[-1]
        else "leave out what has none, or name it."
    )
    raise FitError(
        f"{path}: {where} names {len(names)} columns, its rows have {len(cells)} (line {head.at}).",
        "Each column has a name.",
        f"Correct line {named}: {more}",
    )


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
        elif says(line, sep):
            # The line below tells a title.
            below = list(itertools.islice((x for x in lines if says(x[1], sep)), 1))
            lines = itertools.chain(below, lines)
            if not below or not _is_title(line, below[0][1], sep):
                break
        found = next(lines, None)
        if found is None:
            line = ""
            break
        at, line = found
    # numpy.savetxt writes its names as a comment.
    if said and (
        not line.strip() or is_number(cells_of(line, sep or separator_of(said[-1][1]))[0])
    ):
        lines, (at, line) = itertools.chain([(at, line)], lines), said[-1]
    return at, line, sep or separator_of(line), lines


def _is_title(line: str, below: str, sep: str | None) -> bool:
    """Whether a line has one cell alone, no number, and the one below has several, of words.

    A log has three columns at least.
    """
    inner = sep or separator_of(below)
    cells = [x for x in cells_of(below, inner) if x]
    words = [x for x in cells_of(line, inner) if x]
    return (
        len(words) == 1 < len(cells)
        and not below.startswith("#")
        and not any(is_number(x) or moment(x) is not None for x in (*words, *cells))
    )


def _names(path: Path, header: str, sep: str | None) -> list[str]:
    if not header.strip():
        raise FitError(
            f"{path}: its first line is empty.",
            "The first line of a CSV file names its columns.",
            'Put one there: "t,q_1,q_2,tau_1,tau_2", say, and samples below.',
        )
    names = [x.strip("#").strip() for x in cells_of(header.lstrip("#").strip("\r\n "), sep)]
    if is_number(names[0]):
        raise FitError(
            f"{path}: its first line holds numbers, {header.strip()[:40]!r}.",
            "The first line of a CSV file names its columns.",
            'Put one there: "t,q_1,q_2,tau_1,tau_2", say.',
        )
    twice = [name for k, name in enumerate(names) if name and name in names[:k]]
    if twice:
        raise FitError(
            f"{path}: the column {twice[0]!r} is there {names.count(twice[0])} times.",
            "One of them would count, and nobody said which.",
            "Name the others otherwise in the first line, or leave them out.",
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
                    f"{unit_in(name)}.",
                    "One of them is wrong.",
                    "Correct the name, or the line.",
                )
        return units
    told = f"{path}: line {at} holds no number: {wrong[0][:40]!r} is one of its words.\n"
    if any(x in SCALE for x in known):
        raise FitError(
            f"{told}Below the names may be a line of units, of which this is not known.",
            advice="Write those columns in a unit that is, and correct the line; "
            f"known are {', '.join(SCALE)}.",
        )
    if any(x.lower() in CALLED["t"] for x in cells):
        which = at if cells == names else 1 if at == 2 else f"1,{at - 1}"
        raise FitError(
            f"{told}Names of columns stand there, below a line that counts as names.",
            advice=f"Leave out the other lines, of a title say: sed -i {which}d {path.name}.",
        )
    raise FitError(
        f"{told}Below the names are samples, or one line of units that are known.",
        advice=f"Leave the line out; units known are {', '.join(SCALE)}.",
    )
