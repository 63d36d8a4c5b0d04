"""Columns of a log's file that are of joints besides those that are asked for, as of joints that follow."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.identification.logs.column_names import called_by, owners_of
from torchsko.identification.logs.columns import by_joint
from torchsko.identification.logs.units import SCALE, Units

if TYPE_CHECKING:
    from torchsko.identification.logs.table import Table

Array = NDArray[np.floating[Any]]


def of_others(
    path: Path, table: Table, joints: tuple[str, ...], units: Units
) -> dict[str, dict[str, Array]]:
    """Positions and forces of joints that are not asked for, by quantity and by joint, `[samples]`.

    They are in SI units. Whose a column is its name says; who has a joint of this name knows whether it is
    one. Where two may be of one joint, neither is taken.

    Args:
        path: of the file.
        table: what it holds, in SI units where it says them.
        joints: that are asked for.
        units: that are declared.
    """
    found = by_joint(path, table, joints, {}).columns if joints else {}
    out: dict[str, dict[str, Array]] = {}
    for name in ("q", "tau"):
        named: dict[str, set[str]] = {}
        for word, column in itertools.product(called_by(units.get("tau"))[name], found):
            if found[column].ndim == 1:
                for owner in owners_of(word, column):
                    named.setdefault(owner, set()).add(column)
        out[name] = {
            owner: _in_si(found[next(iter(some))], units.get(name), owner)
            for owner, some in named.items()
            if len(some) == 1 and owner not in joints and not owner.isdigit()
        }
    return out


def _in_si(x: Array, unit: str | Mapping[str, str] | None, joint: str) -> Array:
    """A column of a joint in SI units, by the unit of all joints or its own."""
    its = unit.get(joint) if isinstance(unit, Mapping) else unit
    return x if its is None or SCALE[its] == 1 else x * SCALE[its]
