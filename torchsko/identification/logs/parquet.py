"""Logs as Parquet files: numbers, moments, lists of joints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import CALLED
from torchsko.identification.logs.csv_cells import NAMED, in_order_of, moments, seconds, stem_of
from torchsko.utils.optional_dependencies import require

Array = NDArray[np.floating[Any]]

INDEX = "__index_level_0__"
"""What pandas calls an index that has no name."""


def read_parquet(
    path: Path,
) -> tuple[dict[str, Array], dict[str, str], dict[str, str], dict[str, dict[int, str]]]:
    """Columns of a Parquet file by name; units of its times; types of what is no number; see `Table`."""
    table: Any = require("pyarrow.parquet", "parquet").read_table(path)
    types = require("pyarrow.types", "parquet")
    lists = {n: table[n] for n in table.column_names if _is_list(types, table[n].type)}
    orders = _orders(path, types, lists)
    columns, units, other = {}, {}, {}
    for name in table.column_names:
        column = table[name]
        if name in lists and _is_empty(column):
            other[name] = "empty lists"
        elif name in lists and _is_number_type(types, column.type.value_type):
            columns |= _by_joint(name, _of_lists(path, name, column), orders)
        elif (times := _times(types, column)) is not None:
            columns[name], units[name] = times, "s"
        elif _is_number_type(types, column.type):
            # Nanoseconds since 1970 have more digits than a double has: the last are rounded.
            columns[name] = column.cast("float64", safe=False).to_numpy()
        else:
            other[name] = str(column.type)
    if not any(name.lower() in CALLED["t"] for name in columns):
        columns, units = _with_time(columns, units)
    words = {n: table[n] for n in other if n not in lists}
    numbered = _numbered(path, words) | {k: dict(enumerate(o)) for k, o in orders.items()}
    return columns, units, other, numbered


def _by_joint(
    name: str, x: NDArray[np.float64], orders: Mapping[str, Sequence[str]]
) -> dict[str, Array]:
    """A column for each joint of lists whose file names the joints; else the lists, as one."""
    order = next((o for stem, o in orders.items() if name.startswith(stem)), ())
    if len(order) != x.shape[1]:
        return {name: x}
    return {f"{name}_{j}": y for j, y in zip(order, x.T, strict=True)}


def _times(types: Any, column: Any) -> Array | None:
    """Moments and spans of time, also in words, in seconds; None where a column is none."""
    kind = column.type
    if types.is_timestamp(kind) or types.is_duration(kind):
        return seconds(column.to_numpy())
    return moments(column.to_pylist()) if _is_word(types, kind) else None


def _with_time(
    columns: dict[str, Array], units: dict[str, str]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Columns of which none is a time: moments in what pandas calls an index without a name are it."""
    if INDEX not in units:
        return columns, units
    return (
        {"time" if n == INDEX else n: x for n, x in columns.items()},
        {"time" if n == INDEX else n: unit for n, unit in units.items()},
    )


def _is_number_type(types: Any, kind: Any) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _is_word(types: Any, kind: Any) -> bool:
    return types.is_string(kind) or types.is_large_string(kind)


def _is_list(types: Any, kind: Any) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _orders(path: Path, types: Any, lists: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Joints in the order of lists whose names begin alike, where each row names them alike, as ROS does."""
    found: dict[str, tuple[str, ...]] = {}
    for name, column in lists.items():
        stem = stem_of(name)
        if stem is None or _is_number_type(types, column.type.value_type):
            continue
        theirs = (x for n, x in lists.items() if n.startswith(stem))
        if any(_is_number_type(types, x.type.value_type) for x in theirs):
            # Whatever kind of words they are: pandas, polars and ROS write others.
            rows = list(dict.fromkeys(tuple(row or ()) for row in column.to_pylist()))
            found[stem] = in_order_of(path, rows)
    return found


def _numbered(path: Path, words: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """Joints that columns of words name by number, "name_0", for each stem of these columns.

    Raises:
        FitError: one names several.
    """
    found: dict[str, dict[int, str]] = {}
    for name, column in words.items():
        if (mark := NAMED.fullmatch(name)) and len(column):
            rows = [(str(x),) for x in column.unique().to_pylist()]
            found.setdefault(mark[1], {})[int(mark[2])] = in_order_of(path, rows)[0]
    return found


def _is_empty(column: Any) -> bool:
    """Whether no list has an entry: ROS writes them so of what a driver does not measure."""
    return not any(len(chunk.flatten()) for chunk in column.chunks)


def _of_lists(path: Path, name: str, column: Any) -> NDArray[np.float64]:
    """A column of lists of one length, `[samples, length]`."""
    found = require("pyarrow.compute", "parquet").list_value_length(column)
    lengths = found.unique().to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        told = ", ".join(str(n or "no") for n in lengths[:4])
        raise FitError(
            f"{path}: lists of column {name!r} have {told} numbers.",
            "Each sample has a number for each joint.",
            "Leave out samples that have another length.",
        )
    parts = [
        chunk.flatten().cast("float64").to_numpy(zero_copy_only=False) for chunk in column.chunks
    ]
    return np.concatenate(parts).reshape(-1, lengths[0])
