r"""Search for torque ripple: periodic forces of gear teeth and motor poles (cogging).

The number of periods per turn is unknown, and no candidate term covers all of them. A least-squares
periodogram of the residual force over joint position finds them. A ripple is one clear peak, while unmodelled
friction spreads over many frequencies.

Reference: N. Lomb, *Least-squares frequency analysis of unequally spaced data*, Astrophysics and Space
Science 39, 1976.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.friction import Periodic
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.accumulate import reread_sample
from torchsko.identification.regression.normal_equations import RegressionProblem, slice_motion
from torchsko.identification.regression.solution import TermChoice
from torchsko.identification.selection.model_selection import (
    BASIC_FRICTION,
    least_squares_structure,
)
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.preprocess import FilteredMotion

MAX_STATES = 10_000
"""Largest number of states in the search."""

MIN_SAMPLES_PER_COLUMN = 4
"""Smallest number of filtered samples for each column of the regression."""

RANK_TOLERANCE = 1e-9
"""Relative singular value below which scaled columns count as collinear."""

MIN_PERIODS_IN_RANGE = 2.0
"""Smallest number of periods in the range of a joint. Fewer look like friction or a spring."""

FREQUENCIES_PER_PERIOD = 4
"""Frequencies of the search for each period in the range."""

MAX_FREQUENCIES = 1600
"""Largest number of frequencies in the search."""

FREQUENCIES_PER_CHUNK = 64
"""Frequencies whose columns are in memory at once."""

MIN_PEAK_TO_MEDIAN = 20.0
"""Smallest ratio of a peak to the median of the periodogram. The largest of a thousand values of white noise
has a ratio of ten."""

MIN_PEAK_TO_SECOND = 2.0
"""Smallest ratio of a peak to the next highest one outside of its main lobe."""

MIN_EXPLAINED_SHARE = 0.05
"""Smallest share of the squared residual that a ripple explains."""

MAIN_LOBE_PERIODS = 3
"""Half-width of the main lobe of a peak, in periods per range."""

MAX_COMPONENTS = 3
"""Largest number of ripple components of a joint."""

MIN_FILTERED_POWER = 1e-3
"""Smallest mean square of a filtered unit sine; faster ripple is not searched."""

INTEGER_PREFERENCE = 0.95
"""Share of the best explained variance from which on the nearest integer frequency is taken."""


@dataclass(frozen=True)
class RippleComponent:
    """A sinusoidal force over joint position.

    Attributes:
        periods_per_turn: number of periods in a turn, or in 2 pi m for a prismatic joint.
        amplitude: amplitude [N m or N].
    """

    periods_per_turn: float
    amplitude: float

    @property
    def terms(self) -> tuple[Periodic, Periodic]:
        """Two terms that represent the ripple with any phase."""
        return Periodic(self.periods_per_turn, 0.0), Periodic(self.periods_per_turn, 0.25)


def find_ripple(
    problem: RegressionProblem, log: Log, settings: FilterSettings, dofs: Sequence[int]
) -> dict[int, list[RippleComponent]]:
    """Find ripple in a log, beside a rigid robot with viscous and dry friction and an offset.

    Args:
        problem: regression problem.
        log: log, of which a sample is read.
        settings: filter settings.
        dofs: dofs to search.

    Returns:
        Components of the dofs with ripple, strongest first.
    """
    if not dofs:
        return {}
    motions = reread_sample(problem, log, settings).motions
    return find_residual_ripple(problem, motions, least_squares_structure(problem).choice, dofs)


def find_residual_ripple(
    problem: RegressionProblem,
    motions: Iterable[FilteredMotion],
    choice: TermChoice,
    dofs: Sequence[int],
) -> dict[int, list[RippleComponent]]:
    """Find ripple in motions, beside a rigid robot and the given terms of each dof."""
    used, room = [], MAX_STATES
    for motion in motions:
        used += [slice_motion(motion, slice(room))] if room > 0 else []
        room -= len(motion)
    parts = [(motion, *map(torch.cat, zip(*rows, strict=True)))
             for motion in used if (rows := [x[1:] for x in problem.filtered_rows([motion])])]  # fmt: skip
    ripple = {}
    for j in dofs if parts else ():
        columns = [*range(len(problem.base)), *(len(problem.base) + k for k in choice[j]), -1]
        search = _RippleSearch.of(
            [problem.positions(motion.q)[:, j] for motion, _, _ in parts],
            [motion.qd[:, j] for motion, _, _ in parts],
            torch.cat([X[:, j, columns] for _, X, _ in parts]),
            torch.cat([good[:, j] for _, _, good in parts]),
            parts[0][0].settings,
        )
        if components := search.components():
            ripple[j] = components
    return ripple


def find_unmodelled_ripple(
    problem: RegressionProblem,
    motions: Iterable[FilteredMotion],
    choice: TermChoice,
    dofs: Sequence[int],
) -> dict[int, list[RippleComponent]]:
    """Find ripple beside a rigid robot, the given terms, and viscous and dry friction and an offset.

    Unmodelled friction would repeat with position like ripple, since motions repeat.
    """
    wider = replace(problem, terms=tuple(dict.fromkeys([*problem.terms, *BASIC_FRICTION])))
    basic = least_squares_structure(wider).choice
    merged = tuple((*dict.fromkeys(x + y),) for x, y in zip(choice, basic, strict=True))
    return find_residual_ripple(wider, motions, merged, dofs)


@dataclass(frozen=True, eq=False)
class _RippleSearch:
    """Periodogram of the residual force of one dof over its position.

    Attributes:
        q: positions of each motion, `[states]`.
        max_speed: largest speed.
        known: orthonormal basis of the columns of the other parameters, `[samples, columns]`.
        error: residual force, `[samples]`.
        good: weights of samples, 0 or 1, `[samples, 1]`.
        settings: filter settings.
    """

    q: list[Tensor]
    max_speed: float
    known: Tensor
    error: Tensor
    good: Tensor
    settings: FilterSettings

    @classmethod
    def of(
        cls, q: list[Tensor], qd: list[Tensor], X: Tensor, good: Tensor, settings: FilterSettings
    ) -> _RippleSearch:
        """Build the search from columns `[samples, columns]`, of which the last is the force."""
        good = good[:, None].to(X)
        X = X * good
        unit = X[:, :-1] / X[:, :-1].norm(dim=0).clamp_min(1e-300)
        U, size, _ = torch.linalg.svd(unit, full_matrices=False)
        known = U[:, size > RANK_TOLERANCE * size[0]]
        max_speed = max(float(x.abs().max()) for x in qd)
        return cls(q, max_speed, known, X[:, -1] - known @ (known.mT @ X[:, -1]), good, settings)

    def components(self) -> list[RippleComponent]:
        """Significant components, strongest first."""
        q = torch.cat(self.q)
        span = float(q.max() - q.min())
        if not (
            span > 0
            and self.max_speed > 0
            and self.good.sum() > MIN_SAMPLES_PER_COLUMN * self.known.shape[1]
        ):
            return []
        lobe = 2 * math.pi / span
        # Faster ripple aliases at the rate of the states.
        last = 2 * math.pi * (self.settings.state_rate - 2 * self.settings.cutoff) / self.max_speed
        first, step = MIN_PERIODS_IN_RANGE * lobe, lobe / FREQUENCIES_PER_PERIOD
        # A joint at rest with noisy velocity has no admissible frequency.
        last = max(first, min(last, first + MAX_FREQUENCIES * step))
        frequencies = torch.arange(first, last, step).to(q)
        if len(frequencies) <= 4 * MAIN_LOBE_PERIODS * FREQUENCIES_PER_PERIOD:
            return []
        components, error = [], self.error
        while len(components) < MAX_COMPONENTS:
            share, _ = self.explained(frequencies, error)
            peak = share.argmax()
            outside = (frequencies - frequencies[peak]).abs() > MAIN_LOBE_PERIODS * lobe
            second = float(share[outside].max())
            if not float(share[peak]) > max(MIN_EXPLAINED_SHARE, MIN_PEAK_TO_SECOND * second):
                break
            best = self._refine(float(frequencies[peak]), step, error)
            share, coefficients = self.explained(best, error)
            error = error - self.columns(best)[:, 0] @ coefficients[0]
            # Side lobes of the peak would raise the median, so it is taken without the component.
            median = self.explained(frequencies, error)[0].median() * (1 - share)
            if not bool(share > MIN_PEAK_TO_MEDIAN * median):
                break
            components.append(RippleComponent(float(best), float(coefficients.norm())))
        return components

    def columns(self, frequencies: Tensor) -> Tensor:
        """Filtered cosines and sines, orthogonal to the known columns, `[samples, frequencies, 2]`."""
        parts = []
        for q in self.q:
            angle = q[:, None] * frequencies
            parts.append(self.settings.double_filter(torch.stack([angle.cos(), angle.sin()], -1)))
        X = torch.cat(parts) * self.good[..., None]
        return X - (self.known @ (self.known.mT @ X.flatten(1))).unflatten(1, X.shape[1:])

    def explained(self, frequencies: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Share of the squared error that each frequency explains, and coefficients `[frequencies, 2]`."""
        decreases, coefficients = [], []
        for chunk in frequencies.split(FREQUENCIES_PER_CHUNK):
            X = self.columns(chunk)
            squares = torch.einsum("ska,skb->kab", X, X)
            products = torch.einsum("ska,s->ka", X, error)
            # Frequencies that the filter or the known columns remove have no coefficient.
            power = squares.diagonal(dim1=-2, dim2=-1).sum(-1)
            present = power > MIN_FILTERED_POWER * self.good.sum()
            ridge = 1e-9 * self.good.sum() * torch.eye(2).to(X)
            solution = torch.linalg.solve(squares + ridge, products[..., None])[..., 0]
            coefficients.append(solution * present[:, None])
            decreases.append((coefficients[-1] * products).sum(-1))
        total = error.square().sum().clamp_min(1e-300)
        return torch.cat(decreases) / total, torch.cat(coefficients)

    def _refine(self, guess: float, step: float, error: Tensor) -> Tensor:
        """Best frequency near a guess, `[1]`; an integer, as of gears, where it is nearly as good."""
        near = torch.linspace(guess - step, guess + step, 41).to(error)
        share, _ = self.explained(near, error)
        best = near[share.argmax()][None]
        integer = best.round()
        is_close = bool(self.explained(integer, error)[0] > INTEGER_PREFERENCE * share.max())
        return integer if is_close else best
