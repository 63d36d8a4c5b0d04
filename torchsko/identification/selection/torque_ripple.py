r"""Forces that come back with the position many times a turn: of gears' teeth, and of motors' poles.

How many times nobody knows, and no law of the library has them all. A joint is looked at for them as stars
are for their periods: by least squares on a wave of each number of times, beside all that explains its force
else. One that stands out of all others is the gear's; friction that no law has is in many waves alike.

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
from torchsko.identification.regression.rigid_model import dof_positions
from torchsko.identification.regression.solution import TermChoice
from torchsko.identification.selection.model_selection import (
    BASIC_FRICTION,
    least_squares_structure,
)
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.preprocess import FilteredMotion

MAX_STATES = 10_000
"""States that are looked at."""

MIN_SAMPLES_PER_COLUMN = 4
"""Filtered forces of each number of least squares below which what it leaves over tells nothing."""

RANK_TOLERANCE = 1e-9
"""Of the largest singular value at unit length, up to which columns are others' combinations."""

MIN_PERIODS_IN_RANGE = 2.0
"""In the range of a joint at least: fewer are a law of friction, or a spring."""

FREQUENCIES_PER_PERIOD = 4
"""To one wave more in the range."""

MAX_FREQUENCIES = 1600
"""Waves that are tried at most."""

FREQUENCIES_PER_CHUNK = 64
"""Waves whose columns are in memory at once."""

MIN_PEAK_TO_MEDIAN = 20.0
"""Part of squared errors that a wave takes, over the median of what others then take: of noise the best of
a thousand takes ten times the median."""

MIN_PEAK_TO_SECOND = 2.0
"""The same over that of the best wave which is far from it."""

MIN_EXPLAINED_SHARE = 0.05
"""Of squared errors, that it takes at least."""

MAIN_LOBE_PERIODS = 3
"""Waves more or less in the range from which on one is far."""

MAX_COMPONENTS = 3
"""Waves of a joint at most."""

MIN_FILTERED_POWER = 1e-3
"""Mean square of a wave that the filter leaves, below which it is not looked for."""

INTEGER_PREFERENCE = 0.95
"""Of what the best number of times takes, that a whole number next to it has to take to be the one."""


@dataclass(frozen=True)
class RippleComponent:
    """A force of a joint that comes back with its position.

    Attributes:
        times: in a turn; of a joint that slides, in 2 pi m.
        size: its amplitude [N m or N].
    """

    periods_per_turn: float
    size: float

    @property
    def terms(self) -> tuple[Periodic, Periodic]:
        """What has such a wave, whatever its phase."""
        return Periodic(self.periods_per_turn, 0.0), Periodic(self.periods_per_turn, 0.25)


def find_ripple(
    problem: RegressionProblem, log: Log, settings: FilterSettings, dofs: Sequence[int]
) -> dict[int, list[RippleComponent]]:
    """Waves of a log besides a rigid robot, viscous and dry friction and an offset.

    Args:
        problem: what explains forces.
        log: a part of it is read.
        settings: how it is filtered.
        dofs: to look at.

    Returns:
        Of dofs that have some, the strongest first.
    """
    if not dofs:
        return {}
    plain = least_squares_structure(problem)
    return find_residual_ripple(
        problem, reread_sample(problem, log, settings).motions, plain.choice, dofs
    )


def find_residual_ripple(
    problem: RegressionProblem,
    motions: Iterable[FilteredMotion],
    choice: TermChoice,
    dofs: Sequence[int],
) -> dict[int, list[RippleComponent]]:
    """Waves of motions besides a rigid robot and terms of each dof; see `find_ripple`."""
    some, room = [], MAX_STATES
    for motion in motions:
        some += [slice_motion(motion, slice(room))] if room > 0 else []
        room -= len(motion)
    parts = [(motion, *map(torch.cat, zip(*rows, strict=True)))
             for motion in some if (rows := [x[1:] for x in problem.filtered_rows([motion])])]  # fmt: skip
    found = {}
    for j in dofs if parts else ():
        columns = [*range(len(problem.base)), *(len(problem.base) + k for k in choice[j]), -1]
        sheet = _RippleSearch.of(
            [dof_positions(problem.mech, motion.q)[:, j] for motion, _, _ in parts],
            [motion.qd[:, j] for motion, _, _ in parts],
            torch.cat([X[:, j, columns] for _, X, _ in parts]),
            torch.cat([good[:, j] for _, _, good in parts]),
            parts[0][0].settings,
        )
        if waves := sheet.waves():
            found[j] = waves
    return found


def find_unmodelled_ripple(
    problem: RegressionProblem,
    motions: Iterable[FilteredMotion],
    choice: TermChoice,
    dofs: Sequence[int],
) -> dict[int, list[RippleComponent]]:
    """Waves besides a rigid robot, terms of each dof, and viscous and dry friction and an offset.

    Where friction was not named, what it leaves comes back with the position, too, as motions do.
    """
    wider = replace(problem, terms=tuple(dict.fromkeys([*problem.terms, *BASIC_FRICTION])))
    plain = least_squares_structure(wider).choice
    both = tuple((*dict.fromkeys(x + y),) for x, y in zip(choice, plain, strict=True))
    return find_residual_ripple(wider, motions, both, dofs)


@dataclass(frozen=True, eq=False)
class _RippleSearch:
    """What is known of one dof.

    Attributes:
        q: positions of each motion, `[states]`.
        fastest: its largest speed.
        known: orthonormal columns that explain its force else, `[samples, columns]`.
        error: force besides these, `[samples]`.
        good: which samples count, `[samples, 1]`.
        settings: how the log was filtered.
    """

    q: list[Tensor]
    fastest: float
    known: Tensor
    error: Tensor
    good: Tensor
    settings: FilterSettings

    @classmethod
    def of(
        cls, q: list[Tensor], qd: list[Tensor], X: Tensor, good: Tensor, settings: FilterSettings
    ) -> _RippleSearch:
        """Of columns `[samples, columns]` of which the last is the force."""
        good = good[:, None].to(X)
        X = X * good
        unit = X[:, :-1] / X[:, :-1].norm(dim=0).clamp_min(1e-300)
        U, size, _ = torch.linalg.svd(unit, full_matrices=False)
        known = U[:, size > RANK_TOLERANCE * size[0]]
        fastest = max(float(x.abs().max()) for x in qd)
        return cls(q, fastest, known, X[:, -1] - known @ (known.mT @ X[:, -1]), good, settings)

    def waves(self) -> list[RippleComponent]:
        """Those that stand out, the strongest first."""
        every = torch.cat(self.q)
        span = float(every.max() - every.min())
        if not (
            span > 0
            and self.fastest > 0
            and self.good.sum() > MIN_SAMPLES_PER_COLUMN * self.known.shape[1]
        ):
            return []
        lobe = 2 * math.pi / span
        # States are too far apart for faster waves: they would show as slow ones.
        last = 2 * math.pi * (self.settings.state_rate - 2 * self.settings.cutoff) / self.fastest
        first, step = MIN_PERIODS_IN_RANGE * lobe, lobe / FREQUENCIES_PER_PERIOD
        # A joint that stands, of noisy velocity, is too fast for any.
        times = torch.arange(first, max(first, min(last, first + MAX_FREQUENCIES * step)), step).to(
            every
        )
        if len(times) <= 4 * MAIN_LOBE_PERIODS * FREQUENCIES_PER_PERIOD:
            return []
        out, error = [], self.error
        while len(out) < MAX_COMPONENTS:
            part, _ = self.taken(times, error)
            at = part.argmax()
            far = (times - times[at]).abs() > MAIN_LOBE_PERIODS * lobe
            if not float(part[at]) > max(
                MIN_EXPLAINED_SHARE, MIN_PEAK_TO_SECOND * float(part[far].max())
            ):
                break
            best = self._exactly(float(times[at]), step, error)
            taken, numbers = self.taken(best, error)
            error = error - self.columns(best)[:, 0] @ numbers[0]
            # A wave is in its neighbours, too: what is usual shows without it.
            usual = self.taken(times, error)[0].median() * (1 - taken)
            if not bool(taken > MIN_PEAK_TO_MEDIAN * usual):
                break
            out.append(RippleComponent(float(best), float(numbers.norm())))
        return out

    def columns(self, times: Tensor) -> Tensor:
        """Cosines and sines of so many times the position, besides what is known, `[samples, times, 2]`.

        They are filtered as laws of friction are.
        """
        each = []
        for q in self.q:
            angle = q[:, None] * times
            each.append(self.settings.double_filter(torch.stack([angle.cos(), angle.sin()], -1)))
        X = torch.cat(each) * self.good[..., None]
        return X - (self.known @ (self.known.mT @ X.flatten(1))).unflatten(1, X.shape[1:])

    def taken(self, times: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Part of squared errors that each wave takes, `[times]`, and its numbers `[times, 2]`."""
        parts = []
        for some in times.split(FREQUENCIES_PER_CHUNK):
            X = self.columns(some)
            squares = torch.einsum("ska,skb->kab", X, X)
            both = torch.einsum("ska,s->ka", X, error)
            # Of waves that the filter, or what is known, leaves nothing of.
            shown = (
                squares.diagonal(dim1=-2, dim2=-1).sum(-1) > MIN_FILTERED_POWER * self.good.sum()
            )
            near = 1e-9 * self.good.sum() * torch.eye(2).to(X)
            numbers = torch.linalg.solve(squares + near, both[..., None])[..., 0] * shown[:, None]
            parts.append(((numbers * both).sum(-1), numbers))
        part, numbers = (torch.cat(x) for x in zip(*parts, strict=True))
        return part / error.square().sum().clamp_min(1e-300), numbers

    def _exactly(self, about: float, step: float, error: Tensor) -> Tensor:
        """The best number of times near one, `[1]`; a whole one where that is as good, as gears have."""
        near = torch.linspace(about - step, about + step, 41).to(error)
        part, _ = self.taken(near, error)
        best = near[part.argmax()][None]
        whole = best.round()
        return (
            whole if bool(self.taken(whole, error)[0] > INTEGER_PREFERENCE * part.max()) else best
        )
