"""Parquet logs: columns of numbers, dates, and lists with a number for each joint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import QUANTITY_NAMES
from torchsko.identification.logs.table import (
    NUMBERED_JOINT_NAME,
    Table,
    joint_array_prefix,
    unique_order,
)
from torchsko.identification.logs.timestamps import seconds_of_dates, seconds_of_texts
from torchsko.utils.optional_dependencies import require

Array = NDArray[np.floating[Any]]

PANDAS_INDEX = "__index_level_0__"
"""Name that pandas gives an index without a name."""


LEROBOT_INFO = Path("meta", "info.json")
"""File of a LeRobot dataset with the names of its joints, relative to its folder."""

LEROBOT_QUANTITIES = {"state": "q", "velocity": "qd", "effort": "tau"}
"""Quantities of the columns "observation.state" and others of a LeRobot dataset."""

EPISODE = "episode_index"
"""Column with the number of the episode, in a LeRobot dataset."""


def read_parquet(path: Path) -> Table:
    """Read a Parquet file, or all of a LeRobot dataset; dates become seconds from the first one."""
    root = next((x for x in (path, *path.parents) if (x / LEROBOT_INFO).is_file()), None)
    source = path / "data" if path.is_dir() else path
    table = _read_columns(path, require("pyarrow.parquet", "parquet").read_table(source))
    return table if root is None else _name_lerobot_columns(table, root / LEROBOT_INFO)


def _name_lerobot_columns(table: Table, info: Path) -> Table:
    """Name the columns of a LeRobot dataset by its joints.

    Args:
        table: with arrays "observation.state" and others.
        info: file with the names of their elements.
    """
    features = json.loads(info.read_text("utf-8")).get("features", {})
    columns = dict(table.columns)
    for word, quantity in LEROBOT_QUANTITIES.items():
        x = columns.pop(f"observation.{word}", None)
        names = features.get(f"observation.{word}", {}).get("names")
        if isinstance(names, dict):  # {"motors": [...]} or {"axes": [...]}
            names = next(iter(names.values()), None)
        if x is not None and names is not None and x.ndim == 2 and len(names) == x.shape[1]:
            # Some robots write the quantity behind the joint: "shoulder_pan.pos".
            bare = [name.removesuffix(".pos").removesuffix(".vel") for name in names]
            columns |= {f"{quantity}_{j}": y for j, y in zip(bare, x.T, strict=True)}
        elif x is not None:
            columns[quantity] = x
    return replace(table, columns=columns, episode=columns.get(EPISODE))


def _read_columns(path: Path, data: Any) -> Table:
    """Read the columns of a table of pyarrow."""
    types = require("pyarrow.types", "parquet")
    lists = {n: data[n] for n in data.column_names if _is_list(types, data[n].type)}
    orders = _list_orders(path, types, lists)
    columns, units, other = {}, {}, {}
    for name in data.column_names:
        column = data[name]
        if name in lists and not any(len(chunk.flatten()) for chunk in column.chunks):
            other[name] = "empty lists"  # in ROS messages, for quantities that were not measured
        elif name in lists and _is_number(types, column.type.value_type):
            x = _list_array(path, name, column)
            order = next((o for prefix, o in orders.items() if name.startswith(prefix)), ())
            if len(order) == x.shape[1]:
                columns |= {f"{name}_{j}": y for j, y in zip(order, x.T, strict=True)}
            else:
                columns[name] = x
        elif (times := _dates(types, column)) is not None:
            columns[name], units[name] = times, "s"
        elif _is_number(types, column.type):
            # Not safe: nanoseconds since 1970 have more digits than a double, and are rounded.
            columns[name] = column.cast("float64", safe=False).to_numpy()
        else:
            other[name] = str(column.type)
    has_time = any(name.lower() in QUANTITY_NAMES["t"] for name in columns)
    if PANDAS_INDEX in units and not has_time:  # an index of dates is the time
        columns["time"], units["time"] = columns.pop(PANDAS_INDEX), units.pop(PANDAS_INDEX)
    texts = {n: data[n] for n in other if n not in lists}
    numbered = _numbered_orders(path, texts)
    return Table(
        columns, units, other, numbered | {k: dict(enumerate(o)) for k, o in orders.items()}
    )


def _dates(types: Any, column: Any) -> Array | None:
    """Dates and durations, or dates as text, in seconds; None for other columns."""
    kind = column.type
    if types.is_timestamp(kind) or types.is_duration(kind):
        return seconds_of_dates(column.to_numpy())
    if types.is_string(kind) or types.is_large_string(kind):
        return seconds_of_texts(column.to_pylist())
    return None


def _is_number(types: Any, kind: Any) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _is_list(types: Any, kind: Any) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _list_orders(path: Path, types: Any, lists: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Joint names of lists of numbers, by the prefix of their names, from lists of joint names."""
    orders: dict[str, tuple[str, ...]] = {}
    for name, column in lists.items():
        prefix = joint_array_prefix(name)
        if prefix is None or _is_number(types, column.type.value_type):
            continue
        same_prefix = (x for n, x in lists.items() if n.startswith(prefix))
        if any(_is_number(types, x.type.value_type) for x in same_prefix):
            # By Python objects, because pandas, polars and ROS use different types of text.
            rows = list(dict.fromkeys(tuple(row or ()) for row in column.to_pylist()))
            orders[prefix] = unique_order(path, rows)
    return orders


def _numbered_orders(path: Path, texts: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """Joint names of numbered columns, by the prefix of their names, from columns "name_0".

    Raises:
        FitError: if such a column contains several names.
    """
    orders: dict[str, dict[int, str]] = {}
    for name, column in texts.items():
        if (match := NUMBERED_JOINT_NAME.fullmatch(name)) and len(column):
            rows = [(str(x),) for x in column.unique().to_pylist()]
            orders.setdefault(match[1], {})[int(match[2])] = unique_order(path, rows)[0]
    return orders


def _list_array(path: Path, name: str, column: Any) -> NDArray[np.float64]:
    """Convert a column of lists of equal length to an array, `[samples, length]`."""
    counts = require("pyarrow.compute", "parquet").list_value_length(column)
    lengths = counts.unique().to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        listed = ", ".join(str(n or "no") for n in lengths[:4])
        raise FitError(
            f"{path}: lists of column {name!r} have {listed} numbers.",
            "Each sample needs a number for each joint.",
            "Remove samples that have another length.",
        )
    parts = [
        chunk.flatten().cast("float64").to_numpy(zero_copy_only=False) for chunk in column.chunks
    ]
    return np.concatenate(parts).reshape(-1, lengths[0])
