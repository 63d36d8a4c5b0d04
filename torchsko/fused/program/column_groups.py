"""Columns of a matrix that a loop of products takes together: those of few zeros in common rows.

What one limb of a robot does moves that limb and what it hangs on. Products with columns of that kind are of
few entries, the same for all joints of the limb, and each group of such columns has a loop of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

_TOGETHER = (
    4,
    3,
    2,
    1,
)  # columns of a round, so that what stays is read less often than multiplied
_READ = 0.25  # time to read an entry that stays, in products
_CODE = 0.4  # time of an instruction that comes from memory first, in products
_FEW = 16  # patterns that are compared with one another


@dataclass(frozen=True)
class Group:
    """Columns of one loop.

    Attributes:
        columns: their numbers.
        each: products of entries for one column.
    """

    columns: tuple[int, ...]
    each: int

    @property
    def width(self) -> int:
        """How many columns a round computes: such that few come again to fill the last one."""
        n = len(self.columns)
        return min(_TOGETHER, key=lambda k: (-(-n // k) * k * (1 + _READ / k), -k))

    @property
    def products(self) -> int:
        """Products of entries of all rounds."""
        return -(-len(self.columns) // self.width) * self.width * self.each

    @property
    def written(self) -> int:
        """Those of one round."""
        return self.width * self.each


def grouped(factors: Sequence[Tensor], columns: Tensor) -> list[Group]:
    """The groups of columns of a product, each with a loop of its own.

    Args:
        factors: which entries of the matrices in front are not zero, from the left.
        columns: which ones of the last matrix are not.

    Returns:
        Groups of all columns that are not zero.
    """
    patterns: dict[tuple[bool, ...], list[int]] = {}
    for number, pattern in enumerate(map(tuple, columns.mT.tolist())):
        if any(pattern):
            patterns.setdefault(pattern, []).append(number)
    every = [*range(columns.shape[1])]
    whole = [_group(factors, columns.any(1), every)] if patterns else []
    if len(patterns) > _FEW:
        return whole
    parts = [(torch.tensor(pattern), numbers) for pattern, numbers in patterns.items()]
    parts = _merged(factors, parts)
    groups = [_group(factors, pattern, numbers) for pattern, numbers in parts]
    return min(whole, groups, key=_time)


_Part = tuple[Tensor, list[int]]


def _merged(factors: Sequence[Tensor], parts: list[_Part]) -> list[_Part]:
    """Parts with others that cost least to take along, while that saves time."""
    while len(parts) > 1:
        best: tuple[float, int, int, _Part] | None = None
        for i, j in combinations(range(len(parts)), 2):
            (one, first), (other, second) = parts[i], parts[j]
            both = one | other, sorted(first + second)
            more = _time([_group(factors, *both)]) - _time(
                [_group(factors, one, first), _group(factors, other, second)]
            )
            if best is None or more < best[0]:
                best = more, i, j, both
        if best is None or best[0] > 0:
            break
        _, i, j, both = best
        parts = [*(part for k, part in enumerate(parts) if k not in (i, j)), both]
    return parts


def _group(factors: Sequence[Tensor], pattern: Tensor, numbers: Sequence[int]) -> Group:
    each = 0
    for factor in reversed(factors):
        each += int(factor[:, pattern].sum())
        pattern = factor[:, pattern].any(1)
    return Group(tuple(numbers), each)


def _time(groups: Sequence[Group]) -> float:
    """Time of loops, in products whose instructions are in the cache."""
    return sum(
        group.products * (1 + _READ / group.width) + _CODE * group.written for group in groups
    )
