"""What is wrong in a log: counted, named, and mended where it can be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.mechanism.mechanism import Mechanism

Array = NDArray[np.floating[Any]]

OUTLIER = 30.0
"""Deviation from neighbours over the usual one beyond which a sample is no measurement."""

CLEAR = 10.0
"""The same over the deviation of noise."""

BURST = 3
"""Longest run of outliers that is found [samples]."""

ENOUGH = 20_000
"""Samples whose median tells what deviations are usual; of more every so many are looked at."""

CACHED = 2048
"""Samples that are turned into rows at once: few enough to stay in the cache meanwhile."""

FLAT = 3
"""Samples in a row at a signal's very end that are a plateau, and plateaus from which on it is cut off."""

STEEP = 8
"""Samples at the end over those at the next value: peaks of quantised signals have few times as many."""

SHARP = 0.3
"""Step with which a signal comes to a plateau where it is cut off, over its usual: to rest it slows down."""

HUGE = 1e30
"""Size that no signal has, and whose square is a number."""

TWICE = 2
"""Plateaus of one value within the range, at least."""


@dataclass
class Faults:
    """What was wrong in a log, counted while it is read; lines to read.

    Attributes:
        gaps: number of them.
        outliers: samples replaced, by joint.
        positions: samples of positions and velocities replaced, by joint.
        missing: of these, how many lay in runs so long that nothing counts meanwhile, by joint.
        repeated: samples of positions and velocities that repeat those of a slower sensor, by joint.
        saturated: samples of forces at their limit, by joint.
        short: pieces between gaps that were too short for the filter.
    """

    gaps: int = 0
    short: int = 0
    outliers: dict[str, int] = field(default_factory=dict)
    saturated: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    repeated: dict[str, int] = field(default_factory=dict)

    def add(self, other: Faults) -> None:
        """Count what another piece has as well."""
        self.gaps += other.gaps
        self.short += other.short
        for name in ("outliers", "saturated", "positions", "missing", "repeated"):
            mine, theirs = getattr(self, name), getattr(other, name)
            for joint, n in theirs.items():
                mine[joint] = mine.get(joint, 0) + n


def count(into: dict[str, int], mech: Mechanism, bad: NDArray[np.bool_]) -> None:
    """Add how many samples of each joint are bad, `[num_dof, samples]`."""
    if not bad.any():
        return
    for joint in mech.joint_names:
        n = int(bad[mech.dof_slice(joint)].sum())
        if n:
            into[joint] = into.get(joint, 0) + n


def in_rows(x: Array) -> Array:
    """Signals `[samples, signals]` as rows: what is done along the time is done in order of memory.

    What nobody can have measured is no number there.
    """
    out = np.empty(x.shape[::-1])
    for at in range(0, len(x), CACHED):
        # In double precision first: numbers of half of it cannot be compared with `HUGE`.
        out[:, at : at + CACHED] = within_reach(np.asarray(x[at : at + CACHED].T, np.float64))
    return out


def within_reach(x: Array) -> Array:
    """Numbers as they are, nan where as large as none is measured: 1.8e308 and 3.4e38 stand for none."""
    if not x.size or (x.max() < HUGE and x.min() > -HUGE):
        return x
    return np.where(np.abs(x) < HUGE, x, np.nan)


def in_runs(bad: NDArray[np.bool_], longest: int) -> NDArray[np.bool_]:
    """Which marks of `[signals, samples]` lie in runs longer than so many."""
    out = np.zeros_like(bad)
    for row, mine in zip(bad, out, strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(np.int8)))
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            mine[start:stop] = stop - start > longest
    return out


def cut_off(x: Array) -> Array:
    """Where signals are cut off, as forces of a drive at its limit are, by plateaus at their ends.

    Args:
        x: `[samples, signals]`.

    Returns:
        The least and the most they reach, `[2, signals]`; infinite where they are not cut off.
    """
    ends = np.stack([np.full(x.shape[1], -np.inf), np.full(x.shape[1], np.inf)])
    for j, row in enumerate(x.T):
        finite = row[np.isfinite(row)]
        for end, (most, least) in enumerate(((np.min, np.inf), (np.max, -np.inf))):
            top = most(finite, initial=least)
            at = np.flatnonzero(finite == top)
            # Most signals are at their very end once: they have no plateaus.
            runs = np.diff(np.append(np.flatnonzero(np.diff(at, prepend=-2) > 1), len(at)))
            # What is zero is no drive's limit: a robot that flies, and a brush that lifts off, feel nothing.
            if top and (runs >= FLAT).sum() >= FLAT and len(at) < len(finite):
                below = np.delete(finite, at)
                # The longest may be a robot at rest.
                often = runs.sum() - runs.max() >= STEEP * (below == most(below)).sum()
                ends[end, j] = top if often else ends[end, j]
    return ends


def levels(x: Array) -> list[Array]:
    """Values within their range at which signals are cut off, as by a drive that lowers its limit at times.

    A signal comes to such a value without slowing down, as it would to rest, and stays there exactly.

    Args:
        x: `[samples, signals]`.

    Returns:
        Of each signal.
    """
    out = []
    for row in x.T:
        finite = row[np.isfinite(row)]
        step = np.diff(finite)
        start = np.flatnonzero(np.append(True, step != 0))
        runs = np.diff(np.append(start, len(finite)))
        flat = (runs >= FLAT) & (start > 0) & (start + runs < len(finite))
        start, runs = start[flat], runs[flat]
        found: list[float] = []
        if len(start) >= TWICE:
            values, which = np.unique(finite[start], return_inverse=True)
            every, often = np.unique(finite, return_counts=True)
            usual = SHARP * np.median(np.abs(step[step != 0]))
            edge = np.minimum(*(np.abs(step[at]) for at in (start - 1, start + runs - 1)))
            for k in np.flatnonzero(np.bincount(which) >= TWICE):
                own, at = which == k, int(np.searchsorted(every, values[k]))
                beside = max(often[max(at - 1, 0) : at].sum(), often[at + 1 : at + 2].sum())
                # The longest may be a robot at rest.
                if (
                    values[k]
                    and runs[own].sum() - runs[own].max() >= STEEP * beside
                    and np.median(edge[own]) >= usual
                ):
                    found.append(float(values[k]))
        out.append(np.array(found))
    return out


def without_flips(mech: Mechanism, q: Array) -> Array:
    """Positions `[num_q, samples]` whose quaternions do not jump to their negative, the same orientation."""
    out = q
    for joint, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        names = mech.joints.kinds[k].coordinates
        if "qw" not in names:
            continue
        first = mech.q_slice(joint).start + names.index("qw")
        x = out[first : first + 4]
        sign = np.where((x[:, 1:] * x[:, :-1]).sum(0) < 0, -1.0, 1.0)
        if (sign < 0).any():
            turned = x * np.append(1.0, np.cumprod(sign))
            out = np.concatenate([out[:first], turned, out[first + 4 :]])
    return out


def repaired(t: Array, x: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Samples that stand out of their neighbours, or are not finite, interpolated; and which.

    Args:
        t: `[samples]`.
        x: `[signals, samples]`.
    """
    bad, filled = np.zeros(x.shape, np.bool_), x
    if not np.isfinite(x.sum()):
        bad = ~np.isfinite(x)
        filled = _filled(t, x, bad)
    size = x.shape[1]
    step, some = np.empty(size + BURST), slice(None, None, max(1, size // ENOUGH))
    for j, row in enumerate(filled):
        variance = np.einsum("i,i", row, row) / size - row.mean() ** 2
        # Turns of fast motion deviate by a small part of the whole.
        least = 0.05 * math.sqrt(max(variance, 0.0))
        # From a neighbour before to each sample, and from it to one after: bursts are shorter.
        np.subtract(row[BURST:], row[:-BURST], out=step[BURST:-BURST])
        step[:BURST], step[-BURST:] = row[:BURST] - row[0], row[-1] - row[-BURST:]
        rise, fall = step[:-BURST], step[BURST:]
        up, down = step > least, step < -least
        # Few are far outside of both neighbours, of most signals none.
        at = np.flatnonzero(up[:-BURST] & down[BURST:] | down[:-BURST] & up[BURST:])
        if not len(at):
            continue
        off, often = _outside(rise[at], fall[at]), _outside(rise[some], fall[some])
        # What is usual is at least the mean: the median is seldom asked.
        if off.max() > OUTLIER * often.mean():
            # Of noise most samples are between their neighbours: how far it goes, their mean's error tells.
            noise = 1.4826 * float(np.median(np.abs(rise[some] - fall[some])) / 2)
            usual = max(1.4826 * float(np.median(often)), often.mean())
            far = np.zeros(size + 2 * BURST)
            far[at + BURST] = np.where(off > max(OUTLIER * usual, CLEAR * noise), off, 0.0)
            # One that is far from an outlier only is none.
            worse = np.maximum(far[: -2 * BURST], far[2 * BURST :])
            bad[j] |= far[BURST:-BURST] > worse / 2
    if not bad.any():
        return x, bad
    return _filled(t, x, bad), bad


def _filled(t: Array, x: Array, bad: NDArray[np.bool_]) -> Array:
    """Signals whose samples that are bad lie on a line between the others; zero where there are none."""
    out = np.array(x, np.float64)
    for j in np.flatnonzero(bad.any(1)):
        keep = ~bad[j]
        out[j] = np.interp(t, t[keep], x[j, keep]) if keep.any() else 0.0
    return out


def _outside(rise: Array, fall: Array) -> Array:
    """How far samples are outside of two neighbours, by what leads from one to them and on to the other."""
    return np.maximum(np.minimum(np.abs(rise), np.abs(fall)) * -np.sign(rise * fall), 0.0)


def even_samples(t: Array, even: Array, parts: list[Array]) -> list[Array]:
    """Samples `[signals, samples]` at even times: those there are, or between them on a line."""
    step = even[1] - even[0]
    # The usual log is even already: its samples are a run.
    first = int(np.searchsorted(t, even[0] - 0.5 * step))
    run = t[first : first + len(even)]
    if len(run) == len(even) and np.abs(run - even).max() < 1e-3 * step:
        return [x[:, first : first + len(even)] for x in parts]
    near = np.clip(np.searchsorted(t, even - 0.5 * step), 0, len(t) - 1)
    if np.abs(t[near] - even).max() < 1e-3 * step:
        return [x[:, near] for x in parts]
    return [np.stack([np.interp(even, t, row) for row in x]) for x in parts]
