"""Defects of measured signals: outliers, invalid samples, quaternion sign flips, uneven sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.mechanism.mechanism import Mechanism

Array = NDArray[np.floating[Any]]

MIN_OUTLIER_RATIO = 30.0
"""Smallest distance of an outlier from its neighbors, over the typical distance."""

MIN_OUTLIER_NOISE_RATIO = 10.0
"""Smallest distance of an outlier from its neighbors, over the standard deviation of the noise."""

MIN_OUTLIER_SHARE = 0.05
"""Smallest step to an outlier, over the standard deviation of the signal: more than at fast reversals."""

MAX_BURST = 3
"""Longest run of outliers that is detected [samples]."""

MAX_STATISTICS_SAMPLES = 20_000
"""Samples from which typical distances are estimated; longer signals are thinned."""

CACHED_SAMPLES = 2048
"""Samples that are transposed at a time, few enough for the processor's cache."""

MAX_MAGNITUDE = 1e30
"""Smallest magnitude that counts as invalid: no measurement is as large, and its square is finite."""


@dataclass
class LogDefects:
    """Numbers of defects found in a log.

    Attributes:
        gaps: number of gaps between samples.
        short_segments: segments between gaps that are shorter than the filter.
        outliers: force samples that were replaced, by joint.
        replaced_states: samples of positions and velocities that were replaced, by joint.
        missing_states: those of the replaced ones that lie in long runs, so that forces there are ignored.
        repeated_states: samples of positions and velocities that repeat those of a slow sensor, by joint.
        saturated: force samples at a limit, by joint.
    """

    gaps: int = 0
    short_segments: int = 0
    outliers: dict[str, int] = field(default_factory=dict)
    saturated: dict[str, int] = field(default_factory=dict)
    replaced_states: dict[str, int] = field(default_factory=dict)
    missing_states: dict[str, int] = field(default_factory=dict)
    repeated_states: dict[str, int] = field(default_factory=dict)

    def add(self, other: LogDefects) -> None:
        """Add the counts of another part of the log."""
        self.gaps += other.gaps
        self.short_segments += other.short_segments
        for name in (
            "outliers", "saturated", "replaced_states", "missing_states", "repeated_states"
        ):  # fmt: skip
            mine, theirs = getattr(self, name), getattr(other, name)
            for joint, n in theirs.items():
                mine[joint] = mine.get(joint, 0) + n


def count_samples(counts: dict[str, int], mech: Mechanism, marks: NDArray[np.bool_]) -> None:
    """Add the number of marked samples of each joint to `counts`; marks are `[num_dof, samples]`."""
    if not marks.any():
        return
    for joint in mech.joint_names:
        n = int(marks[mech.dof_slice(joint)].sum())
        if n:
            counts[joint] = counts.get(joint, 0) + n


def to_rows(x: Array) -> Array:
    """Transpose signals `[samples, signals]` to contiguous float64 rows, with nan for invalid magnitudes."""
    rows = np.empty(x.shape[::-1])
    for at in range(0, len(x), CACHED_SAMPLES):
        # In double precision first: half precision cannot represent `MAX_MAGNITUDE`.
        block = np.asarray(x[at : at + CACHED_SAMPLES].T, np.float64)
        rows[:, at : at + CACHED_SAMPLES] = mask_invalid_magnitudes(block)
    return rows


def mask_invalid_magnitudes(x: Array) -> Array:
    """Replace magnitudes that no sensor measures by nan, such as 1.8e308 or 3.4e38 for missing samples."""
    if not x.size or (x.max() < MAX_MAGNITUDE and x.min() > -MAX_MAGNITUDE):
        return x
    return np.where(np.abs(x) < MAX_MAGNITUDE, x, np.nan)


def mark_long_runs(marks: NDArray[np.bool_], longest: int) -> NDArray[np.bool_]:
    """Keep only marks `[signals, samples]` in runs of more than `longest` samples."""
    long = np.zeros_like(marks)
    for row, long_row in zip(marks, long, strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(np.int8)))
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            long_row[start:stop] = stop - start > longest
    return long


def unflip_quaternions(mech: Mechanism, q: Array) -> Array:
    """Remove sign flips of quaternions in positions `[num_q, samples]`; q and -q are one orientation."""
    unflipped = q
    for joint, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        names = mech.joints.kinds[k].coordinates
        if "qw" not in names:
            continue
        first = mech.q_slice(joint).start + names.index("qw")
        x = unflipped[first : first + 4]
        sign = np.where((x[:, 1:] * x[:, :-1]).sum(0) < 0, -1.0, 1.0)
        if (sign < 0).any():
            continuous = x * np.append(1.0, np.cumprod(sign))
            unflipped = np.concatenate([unflipped[:first], continuous, unflipped[first + 4 :]])
    return unflipped


def replace_outliers(t: Array, x: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Interpolate outliers and samples that are not finite.

    An outlier is far above, or far below, both a sample before and one after it.

    Args:
        t: `[samples]`.
        x: `[signals, samples]`.

    Returns:
        The signals, and marks of the replaced samples.
    """
    bad, filled = np.zeros(x.shape, np.bool_), x
    if not np.isfinite(x.sum()):
        bad = ~np.isfinite(x)
        filled = _interpolate(t, x, bad)
    size = x.shape[1]
    step = np.empty(size + MAX_BURST)
    thinned = slice(None, None, max(1, size // MAX_STATISTICS_SAMPLES))
    for j, row in enumerate(filled):
        variance = np.einsum("i,i", row, row) / size - row.mean() ** 2
        threshold = MIN_OUTLIER_SHARE * math.sqrt(max(variance, 0.0))
        # Differences over MAX_BURST samples: from before a burst into it, and from it to after.
        np.subtract(row[MAX_BURST:], row[:-MAX_BURST], out=step[MAX_BURST:-MAX_BURST])
        step[:MAX_BURST], step[-MAX_BURST:] = row[:MAX_BURST] - row[0], row[-1] - row[-MAX_BURST:]
        rise, fall = step[:-MAX_BURST], step[MAX_BURST:]
        up, down = step > threshold, step < -threshold
        # Few samples are far outside both neighbors; most signals have no such sample.
        at = np.flatnonzero(up[:-MAX_BURST] & down[MAX_BURST:] | down[:-MAX_BURST] & up[MAX_BURST:])
        if not len(at):
            continue
        distance = _distance_outside(rise[at], fall[at])
        typical_distances = _distance_outside(rise[thinned], fall[thinned])
        # The typical distance is at least the mean, so the median is rarely needed.
        if distance.max() > MIN_OUTLIER_RATIO * typical_distances.mean():
            # Most noisy samples lie between their neighbors; their distance from the mean gives the noise.
            noise = 1.4826 * float(np.median(np.abs(rise[thinned] - fall[thinned])) / 2)
            typical = max(1.4826 * float(np.median(typical_distances)), typical_distances.mean())
            limit = max(MIN_OUTLIER_RATIO * typical, MIN_OUTLIER_NOISE_RATIO * noise)
            far = np.zeros(size + 2 * MAX_BURST)
            far[at + MAX_BURST] = np.where(distance > limit, distance, 0.0)
            # A sample that is far only from an outlier is valid.
            farther = np.maximum(far[: -2 * MAX_BURST], far[2 * MAX_BURST :])
            bad[j] |= far[MAX_BURST:-MAX_BURST] > farther / 2
    if not bad.any():
        return x, bad
    return _interpolate(t, x, bad), bad


def _interpolate(t: Array, x: Array, bad: NDArray[np.bool_]) -> Array:
    """Replace bad samples by linear interpolation; by zero if a signal has no good sample."""
    filled = np.array(x, np.float64)
    for j in np.flatnonzero(bad.any(1)):
        good = ~bad[j]
        filled[j] = np.interp(t, t[good], x[j, good]) if good.any() else 0.0
    return filled


def _distance_outside(rise: Array, fall: Array) -> Array:
    """Distance of samples outside the range of two neighbors, by the steps to and from the sample."""
    return np.maximum(np.minimum(np.abs(rise), np.abs(fall)) * -np.sign(rise * fall), 0.0)


def resample(t: Array, even: Array, signals: list[Array]) -> list[Array]:
    """Sample signals `[signals, samples]` at even times, by linear interpolation where necessary."""
    step = even[1] - even[0]
    # Most logs are evenly sampled already: then this is a slice.
    first = int(np.searchsorted(t, even[0] - 0.5 * step))
    run = t[first : first + len(even)]
    if len(run) == len(even) and np.abs(run - even).max() < 1e-3 * step:
        return [x[:, first : first + len(even)] for x in signals]
    near = np.clip(np.searchsorted(t, even - 0.5 * step), 0, len(t) - 1)
    if np.abs(t[near] - even).max() < 1e-3 * step:
        return [x[:, near] for x in signals]
    return [np.stack([np.interp(even, t, row) for row in x]) for x in signals]
