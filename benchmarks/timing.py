"""Interleaved timing: every pass times every contestant once, so that what disturbs one disturbs all."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Passes = list[float]


@dataclass(frozen=True)
class Ratio:
    """Ratio of the times of two contestants over the passes of a run."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g}x [{self.low:.3g}, {self.high:.3g}]"


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    passes: int,
    slot: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Passes]:
    """Seconds of one call of each contestant, once a pass.

    In a pass every contestant gets a slot in turn: one call unmeasured, so that its threads and
    caches are its own again, then calls until the slot is over, of which the median counts. Calls
    longer than a slot go without the unmeasured one.

    Args:
        calls: the contestants.
        passes: how many.
        slot: seconds.
        clock: time in seconds; on a busy machine `time.process_time`, for calls of one thread.
    """
    seconds: dict[str, Passes] = {name: [] for name in calls}
    lasted = {name: timed(call, clock) for name, call in calls.items()}
    for k in range(passes):
        names = list(calls)
        for name in names[k % len(names) :] + names[: k % len(names)]:
            if lasted[name] < slot:
                calls[name]()
            number = max(1, min(10_000, math.ceil(slot / lasted[name])))
            found = statistics.median(timed(calls[name], clock) for _ in range(number))
            seconds[name].append(found)
            lasted[name] = found
    return seconds


def timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call."""
    start = clock()
    call()
    return clock() - start


def processor_time() -> float:
    """Seconds of this process and of its ended children, such as compilers."""
    return sum(os.times()[:4])


def ratio(slower: Passes, faster: Passes) -> Ratio:
    """Median and extremes over passes of the ratio within a pass."""
    found = [a / b for a, b in zip(slower, faster, strict=True)]
    return Ratio(statistics.median(found), min(found), max(found))


def build_time(make: Callable[[], object]) -> float:
    """Seconds until a kernel has given its first result, with an empty cache."""
    before = os.environ.get("TORCHSKO_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHSKO_CACHE"] = folder
        start = time.perf_counter()
        make()
        seconds = time.perf_counter() - start
    if before is None:
        del os.environ["TORCHSKO_CACHE"]
    else:
        os.environ["TORCHSKO_CACHE"] = before
    return seconds
