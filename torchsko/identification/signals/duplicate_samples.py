"""Repeated samples: a slow sensor logged at a faster rate, where its last value is held."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

MIN_REGULAR_SHARE = 0.9
"""Smallest share of runs of typical length, or of repetitions common to all signals, in held signals."""

MIN_RUNS = 20
"""Smallest number of runs from which a typical run length is estimated."""

MAX_REGULAR_RUN = 2.0
"""Longest run, over the typical one, that counts as held samples if run lengths are regular."""

MAX_COMMON_RUN = 10.0
"""Longest run, over the typical one, that counts as held samples if all signals repeat at once."""


def find_repeated_samples(x: Array) -> NDArray[np.bool_]:
    """Mark samples that only repeat the previous one, `[signals, samples]`.

    A slow sensor is recognized by runs of regular length, or by all signals repeating at once. Neither holds
    for an encoder of low resolution. Longer runs are a robot at rest, and are not marked.

    Args:
        x: `[signals, samples]`.
    """
    same = x[:, 1:] == x[:, :-1]
    marks, moving = np.zeros(x.shape, np.bool_), same[~same.all(1)]
    common = len(moving) > 1 and moving.all(0).sum() >= MIN_REGULAR_SHARE * moving.any(0).sum()
    for row, repeated in zip(marks, same, strict=True):
        if 2 * int(repeated.sum()) < len(repeated) - 1:  # fewer than every other sample
            continue
        new = np.append(True, ~repeated)
        runs = np.diff(np.flatnonzero(new), append=len(new))
        typical = np.median(runs)
        regular = (np.abs(runs - typical) <= 1).mean() >= MIN_REGULAR_SHARE
        if len(runs) >= MIN_RUNS and (regular or common):
            longest = typical * (MAX_REGULAR_RUN if regular else MAX_COMMON_RUN)
            row[:] = ~new & np.repeat(runs <= longest, runs)
    return marks


def replace_by_nan(marks: NDArray[np.bool_], x: Array) -> Array:
    """Replace marked samples by nan; x itself if none is marked."""
    return np.where(marks, np.nan, x) if marks.any() else x
