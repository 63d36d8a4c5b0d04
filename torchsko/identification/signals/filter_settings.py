"""Filter design: cut-off frequency, sampling rates and filters for a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.log import Log
from torchsko.identification.logs.timestamps import check_times
from torchsko.identification.signals.cleaning import replace_outliers, resample, to_rows
from torchsko.identification.signals.duplicate_samples import find_repeated_samples, replace_by_nan
from torchsko.identification.signals.filters import DerivativeFilter, FIRFilter, butterworth_filter
from torchsko.identification.signals.saturation import saturation_limits
from torchsko.identification.signals.spectrum import motion_bandwidth

Array = NDArray[np.floating[Any]]

CUTOFF_RATIO = 10.0
"""Cut-off over the bandwidth of the motion: forces contain harmonics of the motion (Gautier 1997)."""

MIN_CUTOFF_RATIO = 3.5
"""Cut-off over the bandwidth of the motion below which standard errors are too small.

The filter then removes harmonics of the forces. On a Panda, errors of base parameters were 0.8 to 1.1
standard errors (root mean square) above this ratio and 1.2 to 2.2 below it. Motions lasted 4 s and 10 s at
10 to 100 Hz.
"""

MIN_RATE_RATIO = 8.0
"""Smallest sampling rate over the automatic cut-off."""

GAP_PERIODS = 0.25
"""Time between samples that counts as a gap, in periods of the cut-off frequency."""

SPECTRUM_GAP_SAMPLES = 100.0
"""Missing samples in a row that separate the segments of which a spectrum is taken."""

STATE_RATE_RATIO = 16.0
"""Sampling rate of filtered states over the cut-off: forces computed from states have higher frequencies."""

FORCE_RATE_RATIO = 5.0
"""Sampling rate of filtered forces over the cut-off."""

MIN_SPECTRUM_SECONDS = 1.0
"""Shortest segment between gaps whose spectrum represents the log [s]."""

MIN_BURST_RATIO = 4.0
"""Mean time step over the median one, from which on samples may have come in bursts."""

MIN_BURST_SHARE = 0.02
"""Smallest share of steps between bursts; longer steps are gaps if they are rarer."""

MIN_USABLE_SHARE = 0.5
"""Smallest share of the filtered time, relative to the best cut-off, that the automatic cut-off leaves."""

CUTOFF_STEP = 0.85
"""Ratio of one automatic cut-off to the next higher one that is tested."""

MAX_SPECTRUM_SAMPLES = 800_000
"""Number of samples at the start of a log from which the cut-off is chosen."""


@dataclass(frozen=True, eq=False)
class FilterSettings:
    """Filters of a log, common to all of its pieces.

    Attributes:
        rate: sampling rate of the evenly resampled log [Hz].
        cutoff: cut-off frequency [Hz].
        bandwidth: bandwidth of the motion that determined the cut-off [Hz]; None if the cut-off was given.
        state_filter: filters and differentiates positions and velocities, and filters forces.
        force_filter: filters forces once more, from the rate of the states to the rate of the equations.
        double_filter: `force_filter` applied twice, for terms that are nonlinear in the filtered states; like
            measured forces they are then filtered twice.
        force_limits: values at which measured forces are clipped, `[2, num_dof]`; None if not determined.
    """

    rate: float
    cutoff: float
    bandwidth: float | None
    state_filter: DerivativeFilter
    force_filter: FIRFilter
    double_filter: FIRFilter
    force_limits: Array | None = None

    @classmethod
    def of(
        cls,
        rate: float,
        cutoff: float,
        bandwidth: float | None = None,
        force_limits: Array | None = None,
    ) -> FilterSettings:
        """Design the filters for a sampling rate and a cut-off frequency."""
        decimation = max(1, int(rate / (STATE_RATE_RATIO * cutoff)))
        state_filter = DerivativeFilter.of(cutoff, rate, decimation)
        state_rate = rate / state_filter.decimation
        decimation = max(1, int(state_rate / (FORCE_RATE_RATIO * cutoff)))
        once, twice = (butterworth_filter(cutoff, state_rate, decimation, passes=n) for n in (1, 2))
        return cls(rate, cutoff, bandwidth, state_filter, once, twice, force_limits)

    @property
    def automatic(self) -> bool:
        """True if the bandwidth of the motion determined the cut-off."""
        return self.bandwidth is not None

    @property
    def state_rate(self) -> float:
        """Sampling rate of the filtered states [Hz]."""
        return self.rate / self.state_filter.decimation

    @property
    def force_rate(self) -> float:
        """Sampling rate of the filtered forces [Hz]."""
        return self.state_rate / self.force_filter.decimation

    @property
    def max_gap(self) -> float:
        """Longest time between two samples of one segment [s]."""
        return max(GAP_PERIODS / self.cutoff, 2.5 / self.rate)

    @property
    def half_width(self) -> float:
        """Time on each side of a filtered force that contributes to it [s]."""
        states = self.state_filter.half_width / self.rate
        return states + self.double_filter.half_width / self.state_rate


def _first_times(log: Log) -> Array:
    """Times of the first samples [s]; checks the times of all samples."""
    for at in range(0, len(log), MAX_SPECTRUM_SAMPLES):
        # Parts overlap by one sample, to check the step between them too.
        check_times(log.name, log.t, at, at + MAX_SPECTRUM_SAMPLES)
    return np.asarray(log.t[:MAX_SPECTRUM_SAMPLES], np.float64)


def sampling_rate(log: Log) -> float:
    """Sampling rate of a log, from its median time step; from the mean one if samples come in bursts [Hz].

    Raises:
        FitError: if times do not increase.
    """
    return _rate_of(_first_times(log))


def _rate_of(t: Array) -> float:
    burst = find_bursts(t)
    return 1 / float(np.median(np.diff(t))) if burst is None else (len(t) - 1) / float(t[-1] - t[0])


def find_bursts(t: Array) -> tuple[float, float] | None:
    """Samples in each burst, and the time between bursts [s]; None if times are not those of bursts.

    Args:
        t: increasing times, `[samples]` [s].
    """
    steps = np.diff(t)
    mean, median = float(steps.mean()), float(np.median(steps))
    long = steps > mean
    if mean < MIN_BURST_RATIO * median or long.mean() < MIN_BURST_SHARE:
        return None
    return 1 / float(long.mean()), float(np.median(steps[long]))


def usable_share(t: Array, settings: FilterSettings) -> float:
    """Share of the time of which filtered forces are left between gaps.

    Args:
        t: increasing times, `[samples]` [s].
        settings: of the filter.
    """
    edges = np.concatenate([[0], np.flatnonzero(np.diff(t) > settings.max_gap) + 1, [len(t)]])
    lengths = t[edges[1:] - 1] - t[edges[:-1]]
    left = (lengths - 2 * settings.half_width).clip(min=0).sum()
    return float(left / max(t[-1] - t[0], 1e-300))


def cutoff_for_gaps(t: Array, rate: float, highest: float, lowest: float) -> float | None:
    """Highest cut-off frequency whose filter leaves most of the time between gaps [Hz].

    Args:
        t: increasing times, `[samples]` [s].
        rate: sampling rate [Hz].
        highest: cut-off without gaps [Hz].
        lowest: smallest cut-off that is tested [Hz].

    Returns:
        None if no cut-off leaves any time.
    """
    count = max(1, 1 + int(np.ceil(np.log(lowest / highest) / np.log(CUTOFF_STEP))))
    cutoffs = [*np.geomspace(highest, min(lowest, highest), count).tolist()]
    shares = [usable_share(t, FilterSettings.of(rate, x)) for x in cutoffs]
    best = max(shares)
    if best == 0:
        return None
    return next(x for x, y in zip(cutoffs, shares, strict=True) if y >= MIN_USABLE_SHARE * best)


def design_filters(log: Log, cutoff: float | None = None) -> FilterSettings:
    """Design the filters of a log.

    Without a given cut-off it is ten times the frequency below which 99% of the power of the velocities lies.
    If gaps would then leave too little of the log, it is lower, since gaps up to a quarter of its period are
    interpolated.

    Args:
        log: at least its times and forces are read.
        cutoff: cut-off frequency [Hz]; chosen by the motion if None.

    Raises:
        FitError: if no joint moves, times do not increase, or the cut-off is too high.
    """
    t = _first_times(log)
    steps = np.diff(t)
    rate = _rate_of(t)
    limits = saturation_limits(to_rows(log.tau[:MAX_SPECTRUM_SAMPLES]).T)
    if cutoff is not None:
        return FilterSettings.of(rate, cutoff, force_limits=limits)
    gaps = np.flatnonzero(steps > SPECTRUM_GAP_SAMPLES / rate) + 1
    edges = np.concatenate([[0], gaps, [len(t)]])
    longest = int(np.diff(edges).argmax())
    rows = slice(int(edges[longest]), int(edges[longest + 1]))
    if rows.stop - rows.start < MIN_SPECTRUM_SECONDS * rate:
        rows = slice(0, len(t))  # all segments are too short: one spectrum across gaps
    whole, t = t, t[rows]
    even = t[0] + np.arange(int((t[-1] - t[0]) * rate)) / rate
    x = to_rows(log.q[rows])
    x = replace_by_nan(find_repeated_samples(x), x)
    if not np.isfinite(x).all():
        x, _ = replace_outliers(t, x)
    (q,) = resample(t, even, [x])
    if not (np.ptp(q, axis=1) > 0).any():
        raise FitError(
            f"{log.name}: no joint moves.",
            "Only forces during motion determine the parameters.",
            "Check the columns of q and their units.",
        )
    bandwidth = motion_bandwidth(q.T, rate)
    # The filter is at most a twentieth of the log.
    lowest = 20 / (even[-1] - even[0])
    automatic = float(np.clip(CUTOFF_RATIO * bandwidth, lowest, rate / MIN_RATE_RATIO))
    settings = FilterSettings.of(rate, automatic, bandwidth, limits)
    if not (np.diff(whole) > settings.max_gap).any():
        return settings
    lower = cutoff_for_gaps(whole, rate, automatic, max(MIN_CUTOFF_RATIO * bandwidth, lowest))
    return settings if lower is None else FilterSettings.of(rate, lower, bandwidth, limits)
