"""Tables of named columns, and the joints that a file specifies for numbered columns and arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import (
    ALL_NAMES,
    JOINT_PREFIX,
    match_joint,
    name_rank,
    prefixed_joints,
)

Array = NDArray[np.floating[Any]]

NUMBERED_JOINT_NAME = re.compile(
    r"((?:.*(?:[/.]|__))?)(?:joint_?)?names?[\s_./\[(-]*(\d+)[\])]*", re.IGNORECASE
)
"""Name of a column that contains the name of a numbered joint: "field.name0", "name_0"."""

JOINT_NAME_ARRAYS = "name names joint_name joint_names joints joint_order jointnames".split()
"""Names of arrays that contain the names of all joints, in order."""


@dataclass(frozen=True)
class Table:
    """Contents of the file of a log.

    Attributes:
        columns: arrays by name, `[samples]` or `[samples, joints]`.
        units: units that the file specifies, by column.
        other: types of the columns that do not contain numbers, by name.
        orders: joint names that the file specifies for numbered columns and arrays, by number from 0 or 1
            on. The key is the prefix of the names of these columns, "" for all columns.
        episode: number of the recording to which each sample belongs, `[samples]`; None for one recording.
    """

    columns: dict[str, Array]
    units: dict[str, str] = field(default_factory=dict)
    other: dict[str, str] = field(default_factory=dict)
    orders: dict[str, dict[int, str]] = field(default_factory=dict)
    episode: Array | None = None


def joint_array_prefix(name: str) -> str | None:
    """Prefix of the arrays whose joints an array of joint names specifies; None for other arrays."""
    last = re.split(r"[/.]|__", name)[-1]
    return name[: len(name) - len(last)] if last.lower() in JOINT_NAME_ARRAYS else None


def unique_order(path: Path, rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Joint names that all samples have in common.

    Raises:
        FitError: if `rows`, the distinct lists of names, are several; names two.
    """
    if len(rows) > 1:
        raise FitError(
            f"{path}: one sample has the joints {', '.join(rows[0])}, another {', '.join(rows[1])}.",
            "The columns must be the same joints in all samples.",
            "Remove the samples of other joints, or sort the columns of each sample by joint.",
        )
    return tuple(rows[0]) if rows else ()


def name_columns_by_joint(
    path: Path, table: Table, joints: tuple[str, ...], columns: Mapping[str, Sequence[str]]
) -> Table:
    """Replace the numbers of columns by joint names, if the file specifies the joints.

    Messages of ROS, for example, have their own order of joints. Arrays `[samples, joints]` are reordered to
    the order of the robot.

    Args:
        path: of the file.
        table: its contents.
        joints: names in the robot's order.
        columns: names that the user gave, by quantity.
    """
    renamed, units = dict(table.columns), dict(table.units)
    for prefix, file_names in table.orders.items():
        order = {k: _without_namespace(x, joints) for k, x in file_names.items()}
        if not set(order.values()) & set(joints):
            same = prefixed_joints(order.values(), joints)
            order = {k: same.get(x, x) for k, x in order.items()}
        if not set(order.values()) & set(joints):
            continue
        duplicates = [x for x in joints if list(order.values()).count(x) > 1]
        if duplicates:
            raise FitError(
                f"{path}: it names the joint {duplicates[0]!r} twice, in {', '.join(order.values())}.",
                "Each joint has one column of a quantity.",
                "Select the columns by columns= or --column.",
            )
        numbered = re.compile(
            rf"{re.escape(prefix)}({JOINT_PREFIX}(?:{'|'.join(ALL_NAMES)}))[\s_./\[(-]*(\d+)[\])]*",
            re.IGNORECASE,
        )
        names = [order[k] for k in sorted(order)]
        for name, x in table.columns.items():
            new: dict[str, Array] = {}
            if x.ndim == 2 and name.startswith(prefix):
                new = _reorder(path, name, x, names, joints, columns)
            match = numbered.fullmatch(name)
            if match and int(match[2]) in order:
                new = {f"{prefix}{match[1]}_{order[int(match[2])]}": x}
            if new:
                if name not in new:
                    del renamed[name]
                renamed |= new
                units |= dict.fromkeys(new, units[name]) if name in units else {}
    return replace(table, columns=renamed, units=units)


def _reorder(
    path: Path,
    name: str,
    x: Array,
    names: Sequence[str],
    joints: tuple[str, ...],
    columns: Mapping[str, Sequence[str]],
) -> dict[str, Array]:
    """Reorder an array with named columns; split it into columns if joints of the robot are missing.

    Raises:
        FitError: if it has another number of columns than names, and the names are not in the robot's order.
    """
    if x.shape[1] == len(names):
        if set(joints) <= set(names):
            if names == list(joints):
                return {name: x}
            extra = {f"{name}_{j}": x[:, i] for i, j in enumerate(names) if j not in joints}
            return {name: x[:, [names.index(j) for j in joints]]} | extra
        return {f"{name}_{j}": x[:, i] for i, j in enumerate(names)}
    is_used = name_rank(name, ALL_NAMES) < len(ALL_NAMES) or any(
        name in chosen for chosen in columns.values()
    )
    # A floating joint has several coordinates, and one name.
    if is_used and list(names) != [j for j in joints if j in names]:
        raise FitError(
            f"{path}: {name!r} has {x.shape[1]} columns, and the file names the joints {', '.join(names)}.",
            "The columns cannot be assigned to joints, because their order is not that of the robot.",
            f"Give the array a column for each name, or use the robot's order: {', '.join(joints)}.",
        )
    return {}


def _without_namespace(name: str, joints: tuple[str, ...]) -> str:
    """Name of a joint without its namespace, "left/elbow", unless the robot's joint has it too."""
    bare = name.rsplit("/", 1)[-1]
    return next((x for text in (name, bare) if (x := match_joint(text, joints))), bare)
