"""Logs as Parquet files: numbers, moments, lists of joints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.extras import require

Array = NDArray[np.floating[Any]]


def read_parquet(path: Path) -> tuple[dict[str, Array], dict[str, str], dict[str, str]]:
    """Columns of a Parquet file by name, units of its times, and types of what is no number."""
    table: Any = require("pyarrow.parquet", "parquet").read_table(path)
    types = require("pyarrow.types", "parquet")
    columns, units, other = {}, {}, {}
    lists = {n: table[n] for n in table.column_names if _is_list(types, table[n].type)}
    order = _order(path, types, lists)
    for name in table.column_names:
        column, kind = table[name], table[name].type
        if name in lists and _is_number_type(types, kind.value_type):
            x = _of_lists(path, name, column)
            if len(order) == x.shape[1]:
                columns |= {f"{name}_{j}": y for j, y in zip(order, x.T, strict=True)}
            else:
                columns[name] = x
        elif types.is_timestamp(kind) or types.is_duration(kind):
            # Moments of a calendar become seconds from the first.
            x = column.to_numpy()
            there = x[~np.isnat(x)][:1]
            start = there if types.is_timestamp(kind) else np.timedelta64(0, "s")
            columns[name], units[name] = (x - start) / np.timedelta64(1, "s"), "s"
        elif _is_number_type(types, kind):
            columns[name] = column.cast("float64").to_numpy()
        else:
            other[name] = str(kind)
    return columns, units, other


def _is_number_type(types: Any, kind: Any) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _is_list(types: Any, kind: Any) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _order(path: Path, types: Any, lists: Mapping[str, Any]) -> tuple[str, ...]:
    """Joints in the order of lists, where each row names them alike, as ROS does."""
    names = lists.get("name")
    if names is None or _is_number_type(types, names.type.value_type):
        return ()
    # Whatever kind of words they are: pandas, polars and ROS write others.
    rows = list(dict.fromkeys(tuple(row or ()) for row in names.to_pylist()))
    if len(rows) > 1 and any(_is_number_type(types, x.type.value_type) for x in lists.values()):
        raise FitError(
            f"{path}: a row names its joints {', '.join(rows[0])}, another {', '.join(rows[1])}.\n"
            "Numbers of lists belong to the joints that their row names, and a log has one order.\n"
            "Leave out rows of other names, or sort the numbers of each row by its names."
        )
    return rows[0] if len(rows) == 1 else ()


def _of_lists(path: Path, name: str, column: Any) -> NDArray[np.float64]:
    """A column of lists of one length, `[samples, length]`."""
    found = require("pyarrow.compute", "parquet").list_value_length(column)
    lengths = found.unique().to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        told = ", ".join(str(n or "no") for n in lengths[:4])
        raise FitError(
            f"{path}: lists of column {name!r} have {told} numbers.\n"
            "Each sample has a number for each joint.\nLeave out samples that have another length."
        )
    parts = [
        chunk.flatten().cast("float64").to_numpy(zero_copy_only=False) for chunk in column.chunks
    ]
    return np.concatenate(parts).reshape(-1, lengths[0])
