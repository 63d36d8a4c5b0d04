"""Groups of matrix columns with similar sparsity, each multiplied by one dense operation.

A joint of a limb affects only this limb and the bodies that carry it. Products with columns of one
limb therefore have few nonzero entries, in the same rows for all joints of the limb.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

_ENTRY_COST = 2.0
"""Time to store an operand for an operation and to load a result, in multiplications."""
_MAX_PATTERNS = 16
"""Largest number of sparsity patterns for which merging by pairs is tried."""


@dataclass(frozen=True)
class Group:
    """Columns that one operation multiplies.

    Attributes:
        columns: indices of the columns.
        inner: indices of their nonzero rows.
        rows: indices of the nonzero rows of the left matrix in these columns.
    """

    columns: tuple[int, ...]
    inner: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def products(self) -> int:
        """Number of scalar products."""
        return len(self.rows) * len(self.inner) * len(self.columns)

    @property
    def num_entries(self) -> int:
        """Number of entries of both matrices and of the result."""
        rows, inner, columns = len(self.rows), len(self.inner), len(self.columns)
        return rows * inner + inner * columns + rows * columns

    @property
    def time(self) -> float:
        """Time of the operation, in multiplications."""
        return self.products + _ENTRY_COST * self.num_entries


def group_columns(left: Tensor, columns: Tensor) -> list[Group]:
    """Group the columns of a matrix product so that the operations take the least time.

    Args:
        left: nonzero pattern of the left matrix.
        columns: nonzero pattern of the right matrix.

    Returns:
        Groups of all columns that are not zero.
    """
    patterns: dict[tuple[bool, ...], list[int]] = {}
    for index, pattern in enumerate(map(tuple, columns.mT.tolist())):
        if any(pattern):
            patterns.setdefault(pattern, []).append(index)
    single = [_group(left, columns, range(columns.shape[1]))] if patterns else []
    if len(patterns) > _MAX_PATTERNS:
        return single
    groups = _merged(left, columns, [_group(left, columns, x) for x in patterns.values()])
    return min(single, groups, key=_time)


def _merged(left: Tensor, columns: Tensor, groups: list[Group]) -> list[Group]:
    """Merge the two groups whose merging saves the most time, as long as it saves time."""
    while len(groups) > 1:
        candidates = []
        for i, j in combinations(range(len(groups)), 2):
            union = _group(left, columns, sorted(groups[i].columns + groups[j].columns))
            candidates.append((union.time - groups[i].time - groups[j].time, i, j, union))
        extra_time, i, j, union = min(candidates, key=lambda candidate: candidate[:3])
        if extra_time > 0:
            break
        groups = [*(x for k, x in enumerate(groups) if k not in (i, j)), union]
    return groups


def _group(left: Tensor, columns: Tensor, indices: range | list[int]) -> Group:
    inner = columns[:, list(indices)].any(1).nonzero()[:, 0]
    rows = left[:, inner].any(1).nonzero()[:, 0]
    return Group(tuple(indices), tuple(inner.tolist()), tuple(rows.tolist()))


def _time(groups: list[Group]) -> float:
    return sum(group.time for group in groups)
