"""Lines of logs as text: their cells, and whether they say anything."""

from __future__ import annotations

import csv


def says(line: str, sep: str | None) -> bool:
    """Whether a line says anything: more than separators, as spreadsheets write empty rows, or a comment."""
    return line[:1] != "#" and bool(line.strip(f' \t\r\n,;"{sep or ""}'))


def separator_of(header: str) -> str | None:
    """What stands between the names of a line; None: white space."""
    sep = max(",;\t", key=header.count)
    return sep if sep in header else None


def cells_of(line: str, sep: str | None) -> list[str]:
    """Cells of a line; a separator in quotes is none."""
    line = line.strip(" \r\n")
    if sep is None or '"' not in line:
        parts = line.split(sep)
    else:
        parts = next(csv.reader([line], delimiter=sep, skipinitialspace=True))
    return [x.strip().strip("\"'") for x in parts] or [""]


def is_number(text: str) -> bool:
    """Whether a cell is a number, with a decimal comma or a point."""
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True
