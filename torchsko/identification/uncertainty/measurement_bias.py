"""What the noise of positions does to least squares, by measure: the same noise once more, and what it adds.

Columns that are computed of noisy positions make least squares biased, by the mean square of what noise
does to them. A second noise of the same size adds as much to their products; of it added and subtracted, what
it does by chance cancels. Products less that have no bias; estimates that are not linear in them are made
with the noise once more.

Reference: J. Cook, L. Stefanski, *Simulation-extrapolation estimation in parametric measurement error
models*, Journal of the American Statistical Association 89(428), 1994; W. Fuller, *Measurement error models*,
1987 (products less those of noise).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchsko.identification.estimators.instrumental import (
    STRONG,
    both,
    instrumental_fit,
    paired,
    strengths,
)
from torchsko.identification.logs.log import Array, Log
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
"""Samples whose noise is looked at."""

QUIET_SHARE = 0.8
"""Share of pieces of time, the quietest, that noise is told of."""

MAX_STATES = 2_500
"""Filtered states that are moved by more noise, at most: what it adds shows in few."""

INSTRUMENT_STATE_FACTOR = 4
"""Times as many for instruments, which have to be as strong in these states as they are in all."""

BLOCK_FILTER_LENGTHS = 8
"""Length of blocks of them over the filter's, whose reach at both ends is lost."""


@dataclass(frozen=True, eq=False)
class PositionNoise:
    """Standard deviations of white noise.

    Attributes:
        q: of positions, 0 where they are no vector, `[num_q]` [rad or m].
        qd: of velocities, `[num_dof]` [rad/s or m/s]; None where there are none.
    """

    q: Tensor
    qd: Tensor | None

    @classmethod
    def of(cls, mech: Mechanism, log: Log, settings: FilterSettings) -> PositionNoise:
        """That of a log, by the upper half of its spectrum, where no robot moves."""
        q = torch.from_numpy(_white(log, log.q, settings))
        vector = torch.zeros_like(q)
        for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
            vector[mech.q_slice(name)] = float(mech.joints.kinds[k].vector)
        qd = None if log.qd is None else torch.from_numpy(_white(log, log.qd, settings))
        return cls(q * vector, qd)

    def added(
        self, motion: FilteredMotion, sign: float, generator: torch.Generator
    ) -> FilteredMotion:
        """A motion of which as much was measured once more, filtered as it was."""
        bank = motion.settings.state_filter
        length = (len(motion) - 1) * bank.decimation + 2 * bank.half_width + 1

        def white(size: Tensor) -> Tensor:
            n = torch.randn(len(size), length, generator=generator, dtype=size.dtype)
            return sign * size[:, None] * n

        if self.qd is None:
            more = bank(white(self.q), 0, 1, 2)
        else:
            more = [*bank(white(self.q), 0), *bank(white(self.qd), 0, 1)]
        q, qd, qdd = (x.mT.to(motion.q) for x in more)
        return replace(motion, q=motion.q + q, qd=motion.qd + qd, qdd=motion.qdd + qdd)


def _white(log: Log, signals: Array, settings: FilterSettings) -> Array:
    """Standard deviation of signals' white noise, `[signals]`, of the middle of a log's longest stretch.

    A jump between two logs, or as a robot starts, has all frequencies: what most pieces of time have counts.
    """
    start, stop = max(find_segments(log, settings), key=lambda x: x[1] - x[0])
    start += max(0, (stop - start - MAX_NOISE_SAMPLES) // 2)
    rows = slice(start, min(start + MAX_NOISE_SAMPLES, stop))
    t, x = np.asarray(log.t[rows], np.float64), to_rows(signals[rows])
    # A value that stands out has all frequencies, as noise has.
    x, _ = replace_outliers(t, replace_by_nan(find_repeated_samples(x), x))
    even = t[0] + np.arange(int((t[-1] - t[0]) * settings.rate)) / settings.rate
    (x,) = resample(t, even, [x])
    length = min(len(even), max(int(4 * settings.rate) + 1, len(even) // 50))
    taper = np.sin(np.pi * np.arange(length) / length) ** 2
    starts = range(0, len(even) - length + 1, max(length // 2, 1))
    each = [power_spectrum(x[:, a : a + length].T, settings.rate, length)[1] for a in starts]
    # Of one piece the power at a frequency spreads as a square of two normal numbers: its median is less.
    power = np.stack([np.median(some[len(some) // 2 :], axis=0) / math.log(2) for some in each])
    usual = np.sort(power, axis=0)[: max(1, int(QUIET_SHARE * len(power)))]
    return np.sqrt(usual.mean(0) / (taper**2).sum())


def noise_bias(
    problem: RegressionProblem,
    normal: NormalEquations,
    noise: PositionNoise,
    motions: Sequence[FilteredMotion],
    model: ModelStructure,
    choice: TermChoice,
    lag: int,
) -> Tensor:
    """What noise of positions moves base parameters and terms by, `[base + terms]`.

    Args:
        problem: what explains forces.
        normal: equations of the whole log, of all of its terms.
        noise: of the log.
        motions: of it, to add the noise to once more.
        model: weights of the fit.
        choice: terms of each dof that were fitted.
        lag: of instruments; 0 for least squares.
    """
    used = sorted({k for some in choice for k in some})
    few = replace(problem, terms=tuple(problem.terms[k] for k in used))
    model = replace(model, choice=tuple(tuple(map(used.index, some)) for some in choice))
    some = _spread(motions, INSTRUMENT_STATE_FACTOR * MAX_STATES if lag else MAX_STATES)
    whole = TimeFolds(0.0, math.inf, 1)

    def equations(sign: float, lag: int = 0) -> NormalEquations:
        g = torch.Generator().manual_seed(0)
        return accumulate_equations(few, [noise.added(x, sign, g) for x in some], whole, lag=lag)

    if lag:
        fits = [
            instrumental_fit(paired(equations(x, lag), equations(x)), model, problem.base)
            for x in (1.0, -1.0, 0.0)
        ]
        more, less, now = (torch.cat([fit.beta, *fit.coefficients]) for fit in fits)
        return (more + less) / 2 - now
    more, less, now = map(equations, (1.0, -1.0, 0.0))
    # What noise adds to a sample, of some; what robots tell, of all: some may have been at rest.
    added = (more.sums + less.sums) / 2 - now.sums
    each = (normal.count / now.count.clamp_min(1))[..., None, None]
    columns = [
        *range(normal.num_base),
        *(normal.num_base + k for k in used),
        normal.sums.shape[-1] - 1,
    ]
    known = replace(normal, sums=normal.sums[..., columns, :][..., columns])
    without = replace(known, sums=known.sums - each * added)
    (A, c), (A0, c0) = both(paired(without, known), model)
    start = scaled_pseudo_inverse(A0)[0] @ c0
    root, value, vector = strengths(A, A0)
    return -root @ (vector @ ((vector.mT @ (root.mT @ (c - A @ start))) / value.clamp_min(STRONG)))


def _spread(motions: Sequence[FilteredMotion], most: int) -> Sequence[FilteredMotion]:
    """States of motions, no more than so many: every so many blocks, for a robot may rest as it begins."""
    total = sum(map(len, motions))
    if total <= most:
        return motions
    blocks = []
    for motion in motions:
        size = BLOCK_FILTER_LENGTHS * len(motion.settings.double_filter.taps)
        starts = range(0, max(len(motion) - size, 0) + 1, size)
        blocks += [slice_motion(motion, slice(a, a + size)) for a in starts]
    return blocks[:: math.ceil(total / most)]
