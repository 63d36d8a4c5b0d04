"""Bias of estimates by noise of positions, estimated by simulation (SIMEX).

Regressor columns of noisy positions bias least squares, by the mean square of the noise in the columns.
Simulated noise of the same size adds as much to the normal equations. The average over noise of both signs
cancels its linear effect. Subtracting this addition corrects linear estimates. For other estimates the
simulation is repeated with more noise.

Reference: J. Cook, L. Stefanski, *Simulation-extrapolation estimation in parametric measurement error
models*, Journal of the American Statistical Association 89(428), 1994; W. Fuller, *Measurement error models*,
1987 (corrected normal equations).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchsko.identification.logs.log import Array, Log
from torchsko.identification.regression.instrumental import (
    MIN_STRENGTH,
    instrumental_fit,
    paired,
    paired_systems,
    strengths,
)
from torchsko.identification.regression.least_squares import scaled_pseudo_inverse
from torchsko.identification.regression.normal_equations import (
    NormalEquations,
    RegressionProblem,
    TimeFolds,
    accumulate_equations,
    slice_motion,
)
from torchsko.identification.regression.solution import ModelStructure, TermChoice
from torchsko.identification.signals.cleaning import replace_outliers, resample, to_rows
from torchsko.identification.signals.duplicate_samples import find_repeated_samples, replace_by_nan
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.preprocess import FilteredMotion, find_segments
from torchsko.identification.signals.spectrum import power_spectrum
from torchsko.mechanism.mechanism import Mechanism

MAX_NOISE_SAMPLES = 50_000
"""Largest number of samples from which noise is estimated."""

QUIET_SHARE = 0.8
"""Share of time segments, the quietest ones, from which noise is estimated."""

MAX_STATES = 2_500
"""Largest number of filtered states to which noise is added in the simulation."""

INSTRUMENT_STATE_FACTOR = 4
"""Factor on `MAX_STATES` for instrumental variables, whose instruments must be as strong as in the log."""

BLOCK_FILTER_LENGTHS = 8
"""Length of a block of these states in filter lengths; the filter loses samples at both ends."""


@dataclass(frozen=True, eq=False)
class PositionNoise:
    """Standard deviations of white measurement noise.

    Attributes:
        q: noise of positions, 0 for quaternions, `[num_q]` [rad or m].
        qd: noise of velocities, `[num_dof]` [rad/s or m/s]; None if the log has none.
    """

    q: Tensor
    qd: Tensor | None

    @classmethod
    def of(cls, mech: Mechanism, log: Log, settings: FilterSettings) -> PositionNoise:
        """Estimate the noise from the upper half of the spectrum, where robots do not move."""
        q = torch.from_numpy(_white_noise_std(log, log.q, settings))
        vector = torch.zeros_like(q)
        for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
            vector[mech.q_slice(name)] = float(mech.joints.kinds[k].vector)
        qd = None if log.qd is None else torch.from_numpy(_white_noise_std(log, log.qd, settings))
        return cls(q * vector, qd)

    def added(
        self, motion: FilteredMotion, sign: float, generator: torch.Generator
    ) -> FilteredMotion:
        """Add simulated noise, with a sign, to a filtered motion."""
        bank = motion.settings.state_filter
        length = (len(motion) - 1) * bank.decimation + 2 * bank.half_width + 1

        def white(size: Tensor) -> Tensor:
            n = torch.randn(len(size), length, generator=generator, dtype=size.dtype)
            return sign * size[:, None] * n

        if self.qd is None:
            noise = bank(white(self.q), 0, 1, 2)
        else:
            noise = [*bank(white(self.q), 0), *bank(white(self.qd), 0, 1)]
        q, qd, qdd = (x.mT.to(motion.q) for x in noise)
        return replace(motion, q=motion.q + q, qd=motion.qd + qd, qdd=motion.qdd + qdd)


def _white_noise_std(log: Log, signals: Array, settings: FilterSettings) -> Array:
    """Standard deviations `[signals]` of white noise, from the middle of the longest segment of a log.

    Jumps have power at all frequencies, so the loudest time segments are ignored.
    """
    start, stop = max(find_segments(log, settings), key=lambda x: x[1] - x[0])
    start += max(0, (stop - start - MAX_NOISE_SAMPLES) // 2)
    rows = slice(start, min(start + MAX_NOISE_SAMPLES, stop))
    t, x = np.asarray(log.t[rows], np.float64), to_rows(signals[rows])
    # Outliers have power at all frequencies, like noise.
    x, _ = replace_outliers(t, replace_by_nan(find_repeated_samples(x), x))
    even = t[0] + np.arange(int((t[-1] - t[0]) * settings.rate)) / settings.rate
    (x,) = resample(t, even, [x])
    length = min(len(even), max(int(4 * settings.rate) + 1, len(even) // 50))
    taper = np.sin(np.pi * np.arange(length) / length) ** 2
    starts = range(0, len(even) - length + 1, max(length // 2, 1))
    spectra = [power_spectrum(x[:, a : a + length].T, settings.rate, length)[1] for a in starts]
    # The power of white noise is exponentially distributed, and its median is log(2) times its mean.
    power = np.stack([np.median(s[len(s) // 2 :], axis=0) / math.log(2) for s in spectra])
    quiet = np.sort(power, axis=0)[: max(1, int(QUIET_SHARE * len(power)))]
    return np.sqrt(quiet.mean(0) / (taper**2).sum())


def noise_bias(
    problem: RegressionProblem,
    normal: NormalEquations,
    noise: PositionNoise,
    motions: Sequence[FilteredMotion],
    model: ModelStructure,
    choice: TermChoice,
    lag: int,
) -> Tensor:
    """Simulate the bias of base parameters and terms by noise of positions, `[base + terms]`.

    Args:
        problem: regression problem.
        normal: equations of the whole log.
        noise: measurement noise of the log.
        motions: motions to which noise is added.
        model: weights of the fit.
        choice: fitted terms of each dof.
        lag: lag of the instruments [samples]; 0 for least squares.
    """
    used = sorted({k for chosen in choice for k in chosen})
    reduced = replace(problem, terms=tuple(problem.terms[k] for k in used))
    model = replace(model, choice=tuple(tuple(map(used.index, chosen)) for chosen in choice))
    sample = _sample_blocks(motions, INSTRUMENT_STATE_FACTOR * MAX_STATES if lag else MAX_STATES)
    one_fold = TimeFolds(0.0, math.inf, 1)

    def equations(sign: float, lag: int = 0) -> NormalEquations:
        g = torch.Generator().manual_seed(0)
        noisy = [noise.added(x, sign, g) for x in sample]
        return accumulate_equations(reduced, noisy, one_fold, lag=lag)

    if lag:
        fits = [
            instrumental_fit(paired(equations(x, lag), equations(x)), model, problem.base)
            for x in (1.0, -1.0, 0.0)
        ]
        plus, minus, plain = (torch.cat([fit.beta, *fit.coefficients]) for fit in fits)
        return (plus + minus) / 2 - plain
    plus, minus, plain = map(equations, (1.0, -1.0, 0.0))
    # The addition by noise is the same for all samples. The information is not, since robots may rest.
    added = (plus.sums + minus.sums) / 2 - plain.sums
    factor = (normal.count / plain.count.clamp_min(1))[..., None, None]
    columns = [
        *range(normal.num_base),
        *(normal.num_base + k for k in used),
        normal.sums.shape[-1] - 1,
    ]
    noisy = replace(normal, sums=normal.sums[..., columns, :][..., columns])
    corrected = replace(noisy, sums=noisy.sums - factor * added)
    (A, c), (A0, c0) = paired_systems(paired(corrected, noisy), model)
    start = scaled_pseudo_inverse(A0)[0] @ c0
    root, value, vector = strengths(A, A0)
    return -root @ (
        vector @ ((vector.mT @ (root.mT @ (c - A @ start))) / value.clamp_min(MIN_STRENGTH))
    )


def _sample_blocks(motions: Sequence[FilteredMotion], max_states: int) -> Sequence[FilteredMotion]:
    """Evenly spaced blocks of motions with at most `max_states` states."""
    total = sum(map(len, motions))
    if total <= max_states:
        return motions
    blocks = []
    for motion in motions:
        size = BLOCK_FILTER_LENGTHS * len(motion.settings.double_filter.taps)
        starts = range(0, max(len(motion) - size, 0) + 1, size)
        blocks += [slice_motion(motion, slice(a, a + size)) for a in starts]
    return blocks[:: math.ceil(total / max_states)]
