"""Samples that are none: what a slower sensor showed last, written again at every step of a faster log."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

MOST = 0.9
"""Share of runs of one value that are as long as is usual, or of repeats that all signals have at once."""

FEW = 20
"""Runs below which none is usual."""

LONGER = 2.0, 10.0
"""Lengths over the usual one up to which runs repeat: of regular ones, and of all signals at once."""


def repeats(x: Array) -> NDArray[np.bool_]:
    """Which samples `[signals, samples]` repeat the one before, where a slower sensor is new now and then.

    It is new every so many samples, or all its signals are at once. So is no encoder that counts slowly, and
    a robot at rest repeats itself for longer: that is measured.
    """
    same = x[:, 1:] == x[:, :-1]
    out, moving = np.zeros(x.shape, np.bool_), same[~same.all(1)]
    at_once = len(moving) > 1 and moving.all(0).sum() >= MOST * moving.any(0).sum()
    for mine, own in zip(out, same, strict=True):
        if 2 * int(own.sum()) < len(own) - 1:  # not even every other one
            continue
        new = np.append(True, ~own)
        runs = np.diff(np.flatnonzero(new), append=len(new))
        usual = np.median(runs)
        regular = (np.abs(runs - usual) <= 1).mean() >= MOST
        if len(runs) >= FEW and (regular or at_once):
            mine[:] = ~new & np.repeat(runs <= LONGER[not regular] * usual, runs)
    return out


def without(old: NDArray[np.bool_], x: Array) -> Array:
    """Signals that are nan where samples are old; the same where none is."""
    return np.where(old, np.nan, x) if old.any() else x
