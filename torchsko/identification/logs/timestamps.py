"""Checks that times are finite and increase."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError

Array = NDArray[np.floating[Any]]

SYSTEMATIC_SHARE = 0.01
"""Share of faulty time steps above which the clock or its resolution is at fault, not single samples."""


def check_times(name: str, t: Array, start: int = 0, stop: int | None = None) -> Array:
    """Check the times of a part of a log and of the sample after it; return them [s] in double precision.

    Args:
        name: of the log, for messages.
        t: all times, which may be memory-mapped, `[samples]` [s].
        start: first sample to check.
        stop: end of the samples to check, exclusive; all if None.

    Raises:
        FitError: if a time is not finite or not later than the previous one; names the sample.
    """
    times = np.asarray(t[start : None if stop is None else stop + 1], np.float64)
    invalid = np.flatnonzero(~np.isfinite(times))
    if len(invalid):
        raise FitError(
            f"{name}: {len(invalid)} times are not finite, the first at sample {start + invalid[0]}.",
            "Every sample needs a time; a second header line in a file has none.",
            "Remove these samples.",
        )
    step = np.diff(times)
    backward = np.flatnonzero(step <= 0)
    if not len(backward):
        return times
    k = int(backward[0])
    raise FitError(
        f"{name}: the time at sample {start + k + 1} is {times[k + 1]:.15g} s, after {times[k]:.15g} s.",
        "Times must increase.",
        _advice(step, start + k, np.asarray(t[start + k : start + k + 1])),
    )


def _advice(step: Array, k: int, previous: Array) -> str:
    """Advice for times that do not increase, from the time steps and the time of the sample before, k."""
    first = float(step[step <= 0][0])
    if first == 0 and previous.dtype.kind == "f" and previous.dtype.itemsize < 8:
        return (
            f"The resolution of {previous.dtype} is {np.spacing(np.abs(previous))[0]:.2g} s there: pass t in "
            "float64, as it was measured."
        )
    repeated = int((step == 0).sum())
    if first == 0 and repeated > SYSTEMATIC_SHARE * len(step):
        return (
            f"{repeated} of {len(step)} times repeat the previous one: the clock is too slow, or the times "
            "have too few digits. Write more digits, or times from the start of the log. If the samples are "
            "even, type --even-times, or call log.with_even_times()."
        )
    if first < 0 and (step < 0).sum() <= SYSTEMATIC_SHARE * len(step):
        return (
            "If the clock was set back or another log begins there, split the log: ts.identification.Log."
            f"concatenate([log.pick(slice({k + 1})), log.pick(slice({k + 1}, None))]), or use two files. If "
            "samples are out of order, sort them by time."
        )
    return "Sort the samples by time, and remove duplicates."
