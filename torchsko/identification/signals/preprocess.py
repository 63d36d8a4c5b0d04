"""Preprocessing of a log for a fit: cleaning, even sampling and zero-phase filtering, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.logs.log import Log
from torchsko.identification.signals.cleaning import (
    MAX_BURST,
    LogDefects,
    count_samples,
    mark_long_runs,
    replace_outliers,
    resample,
    to_rows,
    unflip_quaternions,
)
from torchsko.identification.signals.duplicate_samples import find_repeated_samples, replace_by_nan
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.saturation import at_effort_limit
from torchsko.mechanism.mechanism import Mechanism

Array = NDArray[np.floating[Any]]

PIECE_SAMPLES = 200_000
"""Samples of a log that are read at a time."""

MAX_INVALID_FORCE_WEIGHT = 0.02
"""Largest filter weight on invalid force samples of a valid output."""

MAX_MISSING_STATE_WEIGHT = 1e-4
"""Largest filter weight on missing states of a valid output; interpolated states have large errors."""


@dataclass(frozen=True, eq=False)
class FilteredMotion:
    """Filtered states and forces without a gap.

    Attributes:
        t: `[samples]` [s].
        q: `[samples, num_q]`.
        qd: `[samples, num_dof]`.
        qdd: `[samples, num_dof]`.
        tau: `[samples, num_dof]`.
        force_rate: time derivative of tau, `[samples, num_dof]` [N m/s or N/s].
        valid: 1 where a force is valid, 0 where it is saturated, interpolated or near missing states,
            `[samples, num_dof]`.
        settings: filters that were used.
    """

    t: Tensor
    q: Tensor
    qd: Tensor
    qdd: Tensor
    tau: Tensor
    force_rate: Tensor
    valid: Tensor
    settings: FilterSettings

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.t)


@dataclass(frozen=True)
class LogPiece:
    """Part of a segment between gaps that is filtered at a time.

    Attributes:
        segment: range of samples of the log between two gaps.
        start: time of the first sample of the segment [s].
        rows: range of evenly resampled samples, counted from `start`.
    """

    segment: tuple[int, int]
    start: float
    rows: tuple[int, int]


def split_log(
    log: Log, settings: FilterSettings, defects: LogDefects, piece: int | None = None
) -> list[LogPiece]:
    """Split a log into overlapping pieces whose filtered forces are those of the whole log.

    Args:
        log: only its times are read.
        settings: from `design_filters`.
        defects: receives the numbers of gaps and of segments shorter than the filter.
        piece: samples per piece; `PIECE_SAMPLES` if None.
    """
    states, forces = settings.state_filter, settings.double_filter
    # The stride is a multiple of both decimations, so that outputs of adjacent pieces are adjacent.
    decimation = states.decimation * forces.decimation
    stride = max((PIECE_SAMPLES if piece is None else piece) // decimation, 1) * decimation
    overlap = 2 * states.half_width + 2 * forces.half_width * states.decimation
    pieces: list[LogPiece] = []
    for start, stop in find_segments(log, settings):
        defects.gaps += start > 0
        first = float(log.t[start])
        total = int(np.floor((float(log.t[stop - 1]) - first) * settings.rate * (1 + 1e-9))) + 1
        if total <= overlap:
            defects.short_segments += 1
            continue
        count = -(-(total - overlap) // stride)
        pieces += [
            LogPiece((start, stop), first, (k * stride, min((k + 1) * stride + overlap, total)))
            for k in range(count)
        ]
    return pieces


def filter_log(
    mech: Mechanism,
    log: Log,
    settings: FilterSettings,
    defects: LogDefects,
    piece: int | None = None,
) -> Iterator[FilteredMotion]:
    """Filter a log piece by piece.

    Args:
        mech: mechanism whose joints are the columns.
        log: its arrays are read piece by piece.
        settings: from `design_filters`.
        defects: receives the numbers of defects.
        piece: samples per piece; `PIECE_SAMPLES` if None.

    Yields:
        Filtered motions in order of time.
    """
    check_columns(mech, log)
    for part in split_log(log, settings, defects, piece):
        yield filter_piece(mech, log, settings, defects, part)


def find_segments(log: Log, settings: FilterSettings) -> Iterator[tuple[int, int]]:
    """Ranges of samples between gaps."""
    start, total = 0, len(log)
    for at in range(0, total, 4 * PIECE_SAMPLES):
        t = np.asarray(log.t[max(at - 1, 0) : at + 4 * PIECE_SAMPLES], np.float64)
        for k in np.flatnonzero(np.diff(t) > settings.max_gap):
            stop = max(at - 1, 0) + int(k) + 1
            yield start, stop
            start = stop
    yield start, total


def check_columns(mech: Mechanism, log: Log) -> None:
    """Check that the numbers of columns are those of the mechanism.

    Raises:
        FitError: if they differ, or velocities are missing and some joint has a quaternion.
    """
    log.check_columns(mech)
    quaternions = quaternion_joints(mech)
    if quaternions and log.qd is None:
        raise FitError(
            f"joint {quaternions[0]!r} has a quaternion, and the log has no velocities.",
            "Velocities are computed from positions only if these are a vector.",
            "Log qd as well.",
        )


def quaternion_joints(mech: Mechanism) -> list[str]:
    """Names of the joints whose coordinates are not a vector."""
    joints = zip(mech.joint_names, mech.independent_joints, strict=True)
    return [name for name, k in joints if not mech.joints.kinds[k].vector]


def filter_piece(
    mech: Mechanism, log: Log, settings: FilterSettings, defects: LogDefects, piece: LogPiece
) -> FilteredMotion:
    """Clean, resample and filter a piece of a log; `defects` receives the numbers of defects."""
    state_filter = settings.state_filter
    start, stop = piece.segment
    even = piece.start + np.arange(*piece.rows) / settings.rate
    times = log.t[start:stop]
    # One more sample on each side, to interpolate at the ends as well.
    rows = slice(
        start + max(int(np.searchsorted(times, even[0])) - 1, 0),
        start + min(int(np.searchsorted(times, even[-1])) + 2, stop - start),
    )
    t = np.asarray(log.t[rows], np.float64)
    arrays = [log.q, log.tau] if log.qd is None else [log.q, log.tau, log.qd]
    measured = [to_rows(x[rows]) for x in arrays]
    log.release_pages()
    invalid = _saturated(mech, settings, measured[1])
    count_samples(defects.saturated, mech, invalid)
    measured[0] = unflip_quaternions(mech, measured[0])
    repeated = [find_repeated_samples(x) for x in measured[::2]]
    none = np.zeros(measured[1].shape, np.bool_)
    new = map(replace_by_nan, [repeated[0], none, *repeated[1:]], measured)
    cleaned = [replace_outliers(t, x) for x in new]
    signals, outliers = [x for x, _ in cleaned], cleaned[1][1]
    count_samples(defects.outliers, mech, outliers)
    invalid |= outliers
    missing = _missing_states(mech, settings, defects, [bad for _, bad in cleaned[::2]], repeated)
    q, tau, *qd = (torch.from_numpy(x) for x in resample(t, even, signals))
    if qd:
        (position,), (velocity, acceleration) = state_filter(q, 0), state_filter(qd[0], 0, 1)
    else:
        position, velocity, acceleration = state_filter(q, 0, 1, 2)
    force, force_rate = state_filter(tau, 0, 1)

    def filter_weight(marks: NDArray[np.bool_]) -> Tensor:
        """Total filter weight of marked samples in each output."""
        (evenly,) = resample(t, even, [marks.astype(np.float64)])
        return state_filter(torch.from_numpy(evenly), 0)[0]

    valid = torch.ones_like(force)
    if invalid.any():
        valid = (filter_weight(invalid) < MAX_INVALID_FORCE_WEIGHT).to(force)
    if missing.any():
        valid = valid * (filter_weight(missing).abs() < MAX_MISSING_STATE_WEIGHT).to(force)
    at = slice(state_filter.half_width, None, state_filter.decimation)
    outputs = (position, velocity, acceleration, force, force_rate, valid)
    return FilteredMotion(
        torch.from_numpy(even)[at][: force.shape[1]],
        *(x.mT.contiguous() for x in outputs),
        settings=settings,
    )


def _saturated(mech: Mechanism, settings: FilterSettings, force: Array) -> NDArray[np.bool_]:
    """Mark forces `[num_dof, samples]` at an effort limit, or where measured forces are clipped."""
    marks = at_effort_limit(force, mech.effort_limit.detach().cpu().numpy())
    if settings.force_limits is not None:
        lower, upper = settings.force_limits[..., None]
        marks |= (force <= lower) | (force >= upper)
    return np.asarray(marks & np.isfinite(force))  # infinite forces are outliers


def _missing_states(
    mech: Mechanism,
    settings: FilterSettings,
    defects: LogDefects,
    replaced: Sequence[NDArray[np.bool_]],
    repeated: Sequence[NDArray[np.bool_]],
) -> NDArray[np.bool_]:
    """Mark samples at which some position or velocity is missing for too long, `[1, samples]`.

    Args:
        mech: mechanism whose joints are the rows.
        settings: defines the longest gap.
        defects: receives the numbers of samples.
        replaced: marks of replaced positions `[num_q, samples]`, and of velocities `[num_dof, samples]`.
        repeated: marks of those samples that repeated the previous one.
    """
    missing = np.zeros((1, replaced[0].shape[1]), np.bool_)
    if not any(x.any() for x in replaced):
        return missing
    longest = max(MAX_BURST, round(settings.max_gap * settings.rate))
    for marks, again, slices in zip(
        replaced, repeated, (mech.q_slice, mech.dof_slice), strict=False
    ):
        long = mark_long_runs(marks, longest)
        missing |= long.any(0)
        for joint in mech.joint_names:
            rows = slices(joint)
            for counts, x in (
                (defects.replaced_states, marks & ~again),
                (defects.missing_states, long),
                (defects.repeated_states, again),
            ):
                if n := int(x[rows].any(0).sum()):
                    counts[joint] = counts.get(joint, 0) + n
    return missing
