"""How surely parameters are known when errors last, and go with the motion: from their influence on the fit.

A tooth that pulls, or friction that is not quite what the terms say, leaves errors that are no noise: they
come back where the joint comes back. The autocorrelation of errors alone does not tell what they do to a
parameter, since its columns go with the motion, too. What a sample does to a parameter, its influence,
does: sums of influences over stretches longer than errors last vary as the estimate does, and so do sums
over the times that a joint was at one place. Where a motion repeats itself, as Fourier series do, errors
come back with it: periods are laid on top of one another before. The largest of these counts.

Errors of accelerations cancel in time. A stretch that begins and ends at once cuts pairs which cancel, at
both ends, and that was most of its sum: there samples count more and more, and less and less (Hann). Where
errors outlast the filter, deviations are no less than those by errors that last so long and go with nothing.

References: W. Newey, K. West, *A simple, positive semi-definite, heteroskedasticity and autocorrelation
consistent covariance matrix*, Econometrica 55(3), 1987; D. Andrews, *Heteroskedasticity and autocorrelation
consistent covariance matrix estimation*, Econometrica 59(3), 1991 (too small of short series).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.regression.least_squares import ParameterUncertainty, SandwichBread
from torchsko.identification.regression.normal_equations import NormalEquations, RegressionProblem
from torchsko.identification.regression.rigid_model import dof_positions
from torchsko.identification.regression.solution import ModelStructure, Solution
from torchsko.identification.signals.autocorrelation import lagged_products
from torchsko.identification.signals.filters import FIRFilter
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.identification.workers import side_by_side

SAME = 1e-2
"""Mean square difference, relative to that of unrelated motions, of a motion to itself a period later."""

STRETCHES = 5
"""Length of a stretch in times that errors last: what is left out beyond is a fifth of a fifth."""

PLACES = (32, 64)
"""Parts of a joint's range that are looked at as places."""


def with_robust_std(
    told: ParameterUncertainty, problem: RegressionProblem, motions: Sequence[FilteredMotion],
    normal: NormalEquations, solution: Solution, inflation: Tensor, influence: InfluenceFunction,
    cancelling: Cancelling | None = None,
) -> ParameterUncertainty:  # fmt: skip
    """Enlarge standard errors where residuals are correlated with the motion.

    Args:
        told: by errors that go with nothing.
        problem: what explains forces.
        motions: to look at errors in.
        normal: equations of one fold: all.
        solution: what was fitted.
        inflation: samples of each dof's error that are one, `[num_dof]`.
        influence: what errors do to the solution.
        cancelling: where sums over stretches of time count where they are smaller, too.

    Reference: Newey, West 1987.
    """
    sizes = [normal.num_base, *(len(x) for x in told.term_std)]
    known = torch.cat([told.covariance.diagonal(), *(x.square() for x in told.term_std)])
    length = max(1, math.ceil(STRETCHES * float(inflation.max())))
    if cancelling is not None:
        length = max(length, cancelling.length)
    over = block_sum_products if cancelling is None else tapered_sum_products
    ranges = _ranges(problem, motions)
    sums = _Sums(problem, solution, influence, inflation, length, over, ranges, known)
    each = zip(*side_by_side(sums, motions), strict=True)
    in_time, free, seen, again, *at_places = (torch.stack(x).sum(0) for x in each)
    # Motions may be a choice out of more. Every parameter that is fitted takes its part of errors.
    scale = normal.count[0].sum() / seen.clamp_min(1)
    found = [
        (in_time.diagonal(), free),
        *((x.square().sum((0, 1)), x.any(-1).sum()) for x in at_places),
    ]
    more = [
        (scale * total - known).clamp_min(0) * count / (count - len(known)).clamp_min(1)
        for total, count in found
    ]
    if cancelling is not None:
        part = scale * in_time * free / (free - len(known)).clamp_min(1)
        told, more, alone = cancelling.with_rest(part, sizes), more[1:], known
        known = torch.cat([told.covariance.diagonal(), *(x.square() for x in told.term_std)])
        # What outlasts the filter does not cancel, and its stretches are too few to sum over.
        if float(inflation.max()) > cancelling.length and float(again) < float(seen) / 2:
            more.append((alone - known).clamp_min(0))
    wider = 1 + torch.stack(more).amax(0) / known.clamp_min(1e-300)
    base_wider, *own = wider.sqrt().split(sizes)
    return replace(
        told,
        covariance=base_wider[:, None] * told.covariance * base_wider,
        term_std=tuple(x * y for x, y in zip(told.term_std, own, strict=True)),
    )


@dataclass(frozen=True, eq=False)
class Cancelling:
    """Errors that cancel in time, as of accelerations: of these, a second derivative, no sum grows.

    Attributes:
        length: of a stretch at least, in which they do [samples].
        rest: what is not by these errors' influence.
    """

    length: int
    rest: ParameterUncertainty

    def with_rest(self, part: Tensor, sizes: Sequence[int]) -> ParameterUncertainty:
        """The rest, and a covariance of all parameters `[parameters, parameters]`, of such sizes."""
        own = part.diagonal().split(list(sizes))[1:]
        both = zip(self.rest.term_std, own, strict=True)
        return replace(
            self.rest,
            covariance=self.rest.covariance + part[: sizes[0], : sizes[0]],
            term_std=tuple((x.square() + y).sqrt() for x, y in both),
        )


def _ranges(problem: RegressionProblem, motions: Sequence[FilteredMotion]) -> Tensor:
    """Least and largest position of each dof, `[2, num_dof]`."""
    own = [dof_positions(problem.mech, motion.q) for motion in motions if len(motion)]
    return torch.stack(
        [
            torch.stack([x.amin(0) for x in own]).amin(0),
            torch.stack([x.amax(0) for x in own]).amax(0),
        ]
    )


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of influences over a motion.

    Attributes:
        problem: what explains forces.
        solution: what was fitted.
        influence: of errors on parameters.
        inflation: samples of each dof's error that are one, `[num_dof]`.
        length: of a stretch [samples].
        over: mean products of sums over stretches of a series, of such a length.
        ranges: of positions, `[2, num_dof]`.
        like: of as many entries as there are parameters.
    """

    problem: RegressionProblem
    solution: Solution
    influence: InfluenceFunction
    inflation: Tensor
    length: int
    over: Callable[[Tensor, int], Tensor]
    ranges: Tensor
    like: Tensor

    def __call__(self, motion: FilteredMotion) -> tuple[Tensor, ...]:
        """Products of sums over stretches, how many, samples, those that come again, sums at places."""
        none, dofs = self.like.new_zeros(()), len(self.inflation)
        at_places = [self.like.new_zeros(dofs, count, len(self.like)) for count in PLACES]
        parts = list(self.problem.filtered_rows([motion]))
        if not parts:
            return torch.diag(self.like * 0), none, none, none, *at_places
        t, X, good = (torch.cat(part) for part in zip(*parts, strict=True))
        q = motion.q[torch.searchsorted(motion.t.contiguous(), t).clamp_max(len(motion.t) - 1)]
        first, last = self.ranges
        share = (dof_positions(self.problem.mech, q) - first) / (last - first).clamp_min(1e-300)
        error = torch.where(good, self.solution.prediction_error(X), 0.0)
        after, total = find_period(q), none
        for j in range(dofs):
            x = self.influence(j, X[:, j], error[:, j])
            total = total + x
            for into in at_places:
                place = (share[:, j] * into.shape[1]).long().clamp(0, into.shape[1] - 1)
                into[j].index_add_(0, place, x)
        in_time = self.over(_folded(total, after), self.length)
        free = (good.sum(0) / self.inflation).sum() * after / len(t)
        count = good.sum().to(free)
        return in_time, free, count, count * (after < len(t)), *at_places


InfluenceFunction = Callable[[int, Tensor, Tensor], Tensor]
"""What each sample's error of a dof does to base parameters and terms, `[samples, parameters]`.

Of the dof, its columns `[samples, columns]`, samples in order of time, and its errors `[samples]`.
"""


class LeastSquaresInfluence:
    """The `InfluenceFunction` of weighted least squares."""

    def __init__(self, normal: NormalEquations, model: ModelStructure, solution: Solution) -> None:
        self.scale, self.num_base = model.scale, normal.num_base
        self.bread = SandwichBread.of(normal, model, solution.choice)

    def __call__(self, dof: int, X: Tensor, error: Tensor) -> Tensor:
        """Of one dof's columns `[samples, columns]` and errors `[samples]`: `[samples, parameters]`."""
        told, e = self.bread, error[:, None]
        terms = X.index_select(-1, told.columns[dof])
        left = X[..., : self.num_base] - terms @ told.base_gain[dof]
        base = self.scale[dof] * e * left @ told.bread
        own = [-base @ gain.mT for gain in told.base_gain]
        own[dof] = own[dof] + e * terms @ told.term_inverse[dof]
        return torch.cat([base, *own], -1)


def block_sum_products(x: Tensor, length: int) -> Tensor:
    """Mean products of sums over all stretches of a length that touch a series, per sample of a stretch."""
    run = torch.nn.functional.pad(x, (0, 0, length, length - 1)).cumsum(0)
    sums = run[length:] - run[:-length]
    return sums.mT @ sums / length


def tapered_sum_products(x: Tensor, length: int) -> Tensor:
    """The same of sums whose samples count more and more, then less and less: no end cuts what cancels."""
    reach = length // 2
    place = torch.arange(1, 2 * reach + 2).to(x) / (2 * reach + 2)
    taper = FIRFilter((torch.pi * place).sin().square(), 1)
    sums = taper(torch.nn.functional.pad(x, (0, 0, 2 * reach, 2 * reach)))
    return sums.mT @ sums / taper.taps.square().sum()


def _folded(x: Tensor, period: int) -> Tensor:
    """Periods of a series on top of one another."""
    place = torch.arange(len(x), device=x.device) % period
    return x.new_zeros(min(period, len(x)), x.shape[1]).index_add(0, place, x)


def find_period(q: Tensor) -> int:
    """After how many samples a series `[samples, coordinates]` repeats itself; its length if it does not."""
    n = len(q)
    x = q - q.mean(0)
    products = lagged_products(x, n).sum(1)
    squares = x.square().sum(1).cumsum(0)
    both = squares.flip(0) + squares[-1] - torch.cat([squares.new_zeros(1), squares[:-1]])
    apart = (both - 2 * products) / both.clamp_min(1e-300)  # 1 between what has nothing in common
    lags = torch.arange(n, device=q.device)
    away = (apart > 0.5).cumsum(0) > 0
    again = (away & (apart < SAME) & (lags <= n - n // 5)).nonzero()
    if not len(again):
        return n
    first = int(again[0])
    near = apart[first : first + max(1, first // 10)]
    return first + int(near.argmin())
