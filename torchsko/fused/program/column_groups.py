"""Groups of matrix columns with similar sparsity, each multiplied by one loop.

A joint of a limb affects only this limb and the bodies that carry it. Products with columns of one
limb therefore have few nonzero entries, in the same rows for all joints of the limb.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

_ITERATION_SIZES = (4, 3, 2, 1)
"""Possible numbers of columns of an iteration, which reads invariant entries once for all of them."""
_READ_COST = 0.25
"""Time to read an invariant entry, in multiplications."""
_CODE_COST = 0.4
"""Time to fetch an instruction from memory, in multiplications."""
_MAX_PATTERNS = 16
"""Largest number of sparsity patterns for which merging by pairs is tried."""


@dataclass(frozen=True)
class Group:
    """Columns that one loop multiplies.

    Attributes:
        columns: indices of the columns.
        products_per_column: scalar products for one column.
    """

    columns: tuple[int, ...]
    products_per_column: int

    @property
    def width(self) -> int:
        """Number of columns of an iteration, chosen so that the last iteration has few unused columns."""
        n = len(self.columns)
        return min(_ITERATION_SIZES, key=lambda k: (-(-n // k) * k * (1 + _READ_COST / k), -k))

    @property
    def products(self) -> int:
        """Scalar products of all iterations."""
        return -(-len(self.columns) // self.width) * self.width * self.products_per_column

    @property
    def products_in_code(self) -> int:
        """Scalar products of one iteration, each an instruction."""
        return self.width * self.products_per_column


def group_columns(factors: Sequence[Tensor], columns: Tensor) -> list[Group]:
    """Group the columns of a matrix product so that the loops take the least time.

    Args:
        factors: nonzero patterns of all factors but the last, from the left.
        columns: nonzero pattern of the last factor.

    Returns:
        Groups of all columns that are not zero.
    """
    patterns: dict[tuple[bool, ...], list[int]] = {}
    for index, pattern in enumerate(map(tuple, columns.mT.tolist())):
        if any(pattern):
            patterns.setdefault(pattern, []).append(index)
    single = [_group(factors, columns.any(1), range(columns.shape[1]))] if patterns else []
    if len(patterns) > _MAX_PATTERNS:
        return single
    parts = [(torch.tensor(pattern), indices) for pattern, indices in patterns.items()]
    groups = [_group(factors, *part) for part in _merged(factors, parts)]
    return min(single, groups, key=_time)


_Part = tuple[Tensor, list[int]]
"""Nonzero rows of some columns, and the indices of these columns."""


def _merged(factors: Sequence[Tensor], parts: list[_Part]) -> list[_Part]:
    """Merge the two parts whose merging saves the most time, as long as it saves time."""
    while len(parts) > 1:
        best: tuple[float, int, int, _Part] | None = None
        for i, j in combinations(range(len(parts)), 2):
            (rows, indices), (other_rows, other_indices) = parts[i], parts[j]
            union = rows | other_rows, sorted(indices + other_indices)
            extra_time = _time([_group(factors, *union)]) - _time(
                [_group(factors, *parts[i]), _group(factors, *parts[j])]
            )
            if best is None or extra_time < best[0]:
                best = extra_time, i, j, union
        if best is None or best[0] > 0:
            break
        _, i, j, union = best
        parts = [*(part for k, part in enumerate(parts) if k not in (i, j)), union]
    return parts


def _group(factors: Sequence[Tensor], rows: Tensor, indices: Sequence[int]) -> Group:
    products = 0
    for factor in reversed(factors):
        products += int(factor[:, rows].sum())
        rows = factor[:, rows].any(1)
    return Group(tuple(indices), products)


def _time(groups: Sequence[Group]) -> float:
    """Time of the loops, in multiplications whose instructions are in the cache."""
    return sum(
        group.products * (1 + _READ_COST / group.width) + _CODE_COST * group.products_in_code
        for group in groups
    )
