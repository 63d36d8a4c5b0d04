"""Times of samples: finite and ascending, or refused with what went wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError

Array = NDArray[np.floating[Any]]

OFTEN = 0.01
"""Share of times that repeat the one before from which on it is their digits, and no sample written twice."""


def refuse_times(name: str, t: Array, at: int = 0, stop: int | None = None) -> Array:
    """Times of a part of a log `[samples]` [s], one sample more, in double precision.

    Args:
        name: of the log.
        t: all times, which may be memory-mapped.
        at: first sample that is looked at.
        stop: last one; all when left out.

    Raises:
        FitError: where a time is not finite or not after the one before; names the sample.
    """
    found = np.asarray(t[at : None if stop is None else stop + 1], np.float64)
    none = np.flatnonzero(~np.isfinite(found))
    if len(none):
        raise FitError(
            f"{name}: {len(none)} times are not finite, the first at sample {at + none[0]}.",
            "Samples are placed by their time; a second line of names in a file has none.",
            "Leave those samples out.",
        )
    step = np.diff(found)
    back = np.flatnonzero(step <= 0)
    if not len(back):
        return found
    k = int(back[0])
    raise FitError(
        f"{name}: the time at sample {at + k + 1} is {found[k + 1]:.15g} s, after {found[k]:.15g} s.",
        "Times ascend.",
        f"{_advice(step, at + k, np.asarray(t[at + k : at + k + 1]))}",
    )


def _advice(step: Array, k: int, given: Array) -> str:
    """What to do about times that do not ascend, by their steps and the last one before, sample k."""
    same = int((step == 0).sum())
    first = float(step[step <= 0][0])
    if first == 0 and given.dtype.kind == "f" and given.dtype.itemsize < 8:
        return (
            f"In {given.dtype} they are {np.spacing(np.abs(given))[0]:.2g} s apart there at least: pass t "
            "in float64, as it was measured."
        )
    if first == 0 and same > OFTEN * len(step):
        return (
            f"{same} of {len(step)} times repeat the one before, as those of a slower clock or of too few "
            "digits: write them with more, or from the start of the log on."
        )
    if first < 0 and (step < 0).sum() <= OFTEN * len(step):
        return (
            "Where a clock was set back, or another log begins, cut it: ts.identification.Log.joined("
            f"[log.pick(slice({k + 1})), log.pick(slice({k + 1}, None))]), or two files. Samples out of "
            "order sort by their time."
        )
    return "Sort the samples and leave out those that come twice."
