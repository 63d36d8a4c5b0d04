"""Logs from one file, from files that are joined by time, and from several complete files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.columns import extra_columns, match_columns
from torchsko.identification.logs.log_files import read_table
from torchsko.identification.logs.table import Table
from torchsko.identification.logs.timestamps import check_times
from torchsko.identification.logs.units import Units, apply_file_units, to_si

Array = NDArray[np.floating[Any]]

REQUIRED = ("t", "q", "tau")
"""Quantities of a complete log."""

MAX_GAP_STEPS = 2.5
"""Time between samples over the median time step, above which no value is interpolated between them."""

Fields = dict[str, Any]


def load_fields(
    paths: Sequence[Path],
    joints: tuple[str, ...],
    units: Units,
    columns: Mapping[str, Sequence[str]] | str,
    rate: float | None = None,
) -> list[Fields]:
    """Arrays of the logs in several files; see `torchsko.identification.Log.load`.

    Args:
        paths: of the files.
        joints: names of the columns, in the robot's order.
        units: declared by the user.
        columns: names of columns by quantity, or the layout of files without a header.
        rate: sampling rate of files without times [Hz].

    Returns:
        For each log the arguments t, q, tau, qd, name and others of a `Log`.

    Raises:
        FitError: if a quantity is missing, or some files are complete and others are not.
    """
    partial = len(paths) > 1
    files = [_read_file(path, joints, units, columns, rate, partial=partial) for path in paths]
    quantities = {name for _, arrays in files for name in arrays}
    if absent := [name for name in units if name not in quantities]:
        raise FitError(
            f"a unit is given for {absent[0]!r}, which the log does not have.",
            f"It has {', '.join(sorted(quantities))}.",
            "Remove this unit.",
        )
    complete = [all(name in arrays for name in REQUIRED) for _, arrays in files]
    if all(complete):
        return [
            {
                **part,
                "name": path.name,
                "others": _columns_of_other_joints(path, table, joints, units),
            }
            for path, (table, arrays) in zip(paths, files, strict=True)
            for part in _episodes(arrays, table.episode)
        ]
    if any(complete):
        listed = ", ".join(x.name for x, whole in zip(paths, complete, strict=True) if whole)
        raise FitError(
            f"{listed}: complete logs, beside files that have no t, q or tau.",
            "Files are joined by time, or each file is a log.",
            "Pass only files of one kind.",
        )
    missing = [name for name in REQUIRED if name not in quantities]
    if missing:
        raise FitError(
            f"{', '.join(x.name for x in paths)}: no file has {missing[0]}.",
            f"The files have {', '.join(sorted(quantities))}.",
            'Select columns by name: columns={"tau": ["a", "b"]}, or --column tau=a,b.',
        )
    joined = join_by_time([(x.name, arrays) for x, (_, arrays) in zip(paths, files, strict=True)])
    return [{**joined, "name": ", ".join(x.name for x in paths)}]


def _read_file(
    path: Path,
    joints: tuple[str, ...],
    units: Units,
    columns: Mapping[str, Sequence[str]] | str,
    rate: float | None,
    *,
    partial: bool,
) -> tuple[Table, dict[str, Array]]:
    """Contents of a file, and its quantities in SI units."""
    layout = columns if isinstance(columns, str) else None
    chosen = {} if isinstance(columns, str) else columns
    table = read_table(path, layout, joints)
    if partial and layout is None:
        chosen = {k: x for k, x in chosen.items() if any(name in table.columns for name in x)}
    table = apply_file_units(path, table, joints, chosen, units)
    arrays = match_columns(path, table, joints, chosen, units, partial=partial, rate=rate)
    return table, {name: to_si(name, x, units.get(name), joints) for name, x in arrays.items()}


def _columns_of_other_joints(
    path: Path, table: Table, joints: tuple[str, ...], units: Units
) -> dict[str, dict[str, Array]]:
    """Columns of other joints; none if the file has several recordings."""
    return {} if table.episode is not None else extra_columns(path, table, joints, units)


def _episodes(arrays: dict[str, Array], episode: Array | None) -> list[dict[str, Array]]:
    """Split arrays where the number of the recording changes."""
    if episode is None:
        return [arrays]
    edges = np.flatnonzero(np.diff(episode)) + 1
    parts = {name: np.split(np.asarray(x), edges) for name, x in arrays.items()}
    return [{name: x[k] for name, x in parts.items()} for k in range(len(edges) + 1)]


def join_by_time(files: Sequence[tuple[str, Mapping[str, Array]]]) -> dict[str, Array]:
    """Join the quantities of several files at the times of the positions, by linear interpolation.

    Values are nan where a file has no sample near; the joined log covers the time that all files cover.

    Args:
        files: names, and arrays by quantity.

    Raises:
        FitError: if two files have the same quantity, or have no time in common.
    """
    owner: dict[str, int] = {}
    for k, (file, arrays) in enumerate(files):
        for name in arrays:
            if name != "t" and name in owner:
                raise FitError(
                    f"{files[owner[name]][0]} and {file} both have {name}.",
                    "Files are joined by time if each quantity is in one of them.",
                    "Remove the columns from one file, or select those of the other.",
                )
            owner[name] = k
    times = [check_times(file, arrays["t"]) for file, arrays in files]
    first, last = max(t[0] for t in times), min(t[-1] for t in times)
    base = times[owner["q"]]
    rows = (base >= first) & (base <= last)
    if rows.sum() < 2:
        spans = ", ".join(
            f"{file} {t[0]:.6g} to {t[-1]:.6g} s" for (file, _), t in zip(files, times, strict=True)
        )
        raise FitError(
            f"the files have no time in common: {spans}.",
            "Files are joined by time, which must count from one start.",
            "Use the time stamps of one clock, and declare their units in each file.",
        )
    joined: dict[str, Array] = {"t": base[rows]}
    for name in ("q", "qd", "tau"):
        if name in owner:
            k = owner[name]
            x = np.asarray(files[k][1][name], np.float64)
            same = k == owner["q"]
            joined[name] = x[rows] if same else _interpolated(base[rows], times[k], x)
    return joined


def _interpolated(t: Array, source: Array, x: Array) -> Array:
    """Columns `x` at other times; nan in gaps of their times."""
    columns = np.stack([np.interp(t, source, column) for column in x.T], -1)
    step = np.diff(source)
    after = np.clip(np.searchsorted(source, t), 1, len(step))
    gap = step[after - 1] > MAX_GAP_STEPS * np.median(step)
    exact = source[np.clip(np.searchsorted(source, t), 0, len(source) - 1)] == t
    return np.where((gap & ~exact)[:, None], np.nan, columns)
