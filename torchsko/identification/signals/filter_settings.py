"""How a log is filtered: cut-off, rates and kernels, chosen by the motion where none is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.log import Log
from torchsko.identification.logs.timestamps import refuse_times
from torchsko.identification.signals.cleaning import (
    cut_off,
    even_samples,
    in_rows,
    levels,
    repaired,
)
from torchsko.identification.signals.duplicate_samples import repeats, without
from torchsko.identification.signals.filters import Bank, Kernel, bandwidth, low_pass

Array = NDArray[np.floating[Any]]

ROOM = 10.0
"""Cut-off over the bandwidth of the motion: forces have harmonics of the motion (Gautier 1997)."""

ENOUGH = 3.5
"""The same, below which forces miss more than their deviations say: a log has no more samples for it.

Of a Panda's motions of 4 s and 10 s at 10 to 100 Hz base parameters lay 0.8 to 1.1 of their deviations off
from 3.7 on, and 1.2 to 2.2 below (root mean square).
"""

SELDOM = 8.0
"""Rate over the cut-off at least."""

GAP = 0.25
"""Time without samples that is a gap, over the cut-off's period: what lies on its sides is filtered apart."""

LONG = 100.0
"""Missing samples in a row across which no spectrum is taken."""

FINE = 16.0
"""Rate of filtered states over the cut-off: forces are computed of states, and have higher frequencies."""

COARSE = 5.0
"""Rate of filtered forces over the cut-off."""

ALONE = 1.0
"""Length of a stretch between two of these from which on its spectrum is the log's [s]."""

SPECTRUM = 800_000
"""First samples of a log, of which the spectrum is taken."""


@dataclass(frozen=True, eq=False)
class Settings:
    """How a log is filtered; the same for every piece.

    Attributes:
        rate: of the even samples [Hz].
        cutoff: [Hz].
        motion: the bandwidth of the motion [Hz], by which the cut-off was chosen; None if it was given.
        states: takes samples to states, and their derivatives.
        forces: takes forces at the rate of the states to forces filtered.
        laws: the same for laws that bend filtered states: what was measured went through the filter of the
            states besides, and what a law makes of these did not yet.
        ends: where measured forces are cut off, `[2, num_dof]`; None where that was not looked for.
        levels: where they are besides for a while, of each dof.
    """

    rate: float
    cutoff: float
    motion: float | None
    states: Bank
    forces: Kernel
    laws: Kernel
    ends: Array | None = None
    levels: tuple[Array, ...] = ()

    @classmethod
    def of(
        cls, rate: float, cutoff: float, motion: float | None = None, ends: Array | None = None,
        levels: Sequence[Array] = (),
    ) -> Settings:  # fmt: skip
        """Kernels of a rate and a cut-off."""
        states = Bank.of(cutoff, rate, max(1, int(rate / (FINE * cutoff))))
        fine = rate / states.every
        every = max(1, int(fine / (COARSE * cutoff)))
        forces, laws = (low_pass(cutoff, fine, every, times=n) for n in (1, 2))
        return cls(rate, cutoff, motion, states, forces, laws, ends, tuple(levels))

    @property
    def chosen(self) -> bool:
        """Whether the data chose the cut-off."""
        return self.motion is not None

    @property
    def fine(self) -> float:
        """Rate of the states [Hz]."""
        return self.rate / self.states.every

    @property
    def gap(self) -> float:
        """Time between two samples that is a gap [s]."""
        return max(GAP / self.cutoff, 2.5 / self.rate)

    @property
    def reach(self) -> float:
        """Time on each side of a filtered force that it is of [s]."""
        return self.states.reach / self.rate + self.laws.reach / self.fine

    @property
    def coarse(self) -> float:
        """Rate of the filtered forces [Hz]."""
        return self.fine / self.forces.every


def first_times(log: Log) -> Array:
    """Times of the first samples of a log [s]; all are looked at.

    Raises:
        FitError: when times do not grow.
    """
    for at in range(0, len(log), SPECTRUM):
        # One sample more: from a part to the next, too.
        refuse_times(log.name, log.t, at, at + SPECTRUM)
    return np.asarray(log.t[:SPECTRUM], np.float64)


def rate_of(log: Log) -> float:
    """The usual rate of a log [Hz].

    Raises:
        FitError: when times do not grow.
    """
    return _usual_rate(first_times(log))


def _usual_rate(t: Array) -> float:
    return 1 / float(np.median(np.diff(t)))


def settings_of(log: Log, cutoff: float | None = None) -> Settings:
    """The rate of a log, and the cut-off of its filter, chosen by the motion where none is given.

    The cut-off is ten times the frequency below which 99% of the power of the velocities lies.

    Raises:
        FitError: when nothing moves, times do not grow, or the cut-off does not fit.
    """
    t = first_times(log)
    steps, rate = np.diff(t), _usual_rate(t)
    tau = in_rows(log.tau[:SPECTRUM]).T
    ends, within = cut_off(tau), levels(tau)
    if cutoff is not None:
        return Settings.of(rate, cutoff, ends=ends, levels=within)
    edges = np.concatenate([[0], np.flatnonzero(steps > LONG / rate) + 1, [len(t)]])
    most = int(np.diff(edges).argmax())
    some = slice(int(edges[most]), int(edges[most + 1]))
    if some.stop - some.start < ALONE * rate:  # pieces too short to tell: across gaps
        some = slice(0, len(t))
    longest = t[some]
    even = longest[0] + np.arange(int((longest[-1] - longest[0]) * rate)) / rate
    x = in_rows(log.q[some])
    x = without(repeats(x), x)
    if not np.isfinite(x).all():
        x, _ = repaired(longest, x)  # a spectrum has no holes
    (q,) = even_samples(longest, even, [x])
    if not (np.ptp(q, axis=1) > 0).any():
        raise FitError(
            f"{log.name}: no joint moves.",
            "Parameters show in forces of motion.",
            "Check the columns of q, and its units.",
        )
    motion = bandwidth(q.T, rate)
    # Not so low that the filter is longer than a twentieth of the log.
    least = 20 / (even[-1] - even[0])
    chosen = float(np.clip(ROOM * motion, least, rate / SELDOM))
    return Settings.of(rate, chosen, motion, ends, within)
