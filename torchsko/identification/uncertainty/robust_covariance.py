r"""Standard errors that are robust to autocorrelated and motion-dependent residuals.

Cogging torque, gear ripple and imperfect friction models leave residuals that are autocorrelated and depend
on joint position. Regressor columns depend on the motion as well, so the autocorrelation of residuals alone
does not determine the variance of an estimate. Influence functions do: the estimate's error is the sum of the
influences of all samples. Two estimators of the variance of that sum are used. Each counts by its excess over
the variance for residuals that do not depend on the motion, and the larger excess is added:

- a HAC estimator (Newey and West), in which products of influences up to a block length apart count. Blocks
  are tapered (Hann), so that influences that cancel in time, as of noisy accelerations, cancel in a block.
  Periodic motions repeat their residuals, so periods are summed before.
- a cluster estimator (Liang and Zeger), in which influences at one position of a joint are one cluster.

References: W. Newey, K. West, *A simple, positive semi-definite, heteroskedasticity and autocorrelation
consistent covariance matrix*, Econometrica 55(3), 1987; D. Andrews, *Heteroskedasticity and autocorrelation
consistent covariance matrix estimation*, Econometrica 59(3), 1991 (small-sample bias); K.-Y. Liang, S. Zeger,
*Longitudinal data analysis using generalized linear models*, Biometrika 73(1), 1986.
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
from torchsko.identification.signals.autocorrelation import find_period
from torchsko.identification.signals.filters import FIRFilter
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.identification.workers import side_by_side

BLOCK_AUTOCORRELATION_TIMES = 5
"""Length of a block in autocorrelation times of the residuals."""

POSITION_BINS = 32
"""Clusters in the range of a joint."""

InfluenceFunction = Callable[[int, Tensor, Tensor], Tensor]
"""Maps a dof, its columns `[samples, columns]` and residuals `[samples]` in order of time to influences
`[samples, parameters]`."""


def with_robust_std(
    plain: ParameterUncertainty, problem: RegressionProblem, motions: Sequence[FilteredMotion],
    normal: NormalEquations, solution: Solution, autocorrelation: Tensor,
    influence: InfluenceFunction, canceling: Canceling | None = None,
) -> ParameterUncertainty:  # fmt: skip
    """Enlarge standard errors where the HAC or the cluster estimate exceeds that of stationary residuals.

    Correlations between estimates stay.

    Args:
        plain: uncertainty for residuals that do not depend on the motion.
        problem: regression problem.
        motions: motions for residuals.
        normal: equations of the whole log as one fold.
        solution: fitted parameters.
        autocorrelation: integrated autocorrelation of each dof's residual in samples, `[num_dof]`.
        influence: influence function of the estimator.
        canceling: the part that cancels in time. Its HAC estimate replaces that of `plain`, also where it is
            smaller. If the autocorrelation is longer than the blocks and most motions are not periodic, there
            are too few blocks to sum over. Standard errors are then at least those of `plain`.
    """
    sizes = [normal.num_base, *(len(x) for x in plain.term_std)]
    length = max(1, math.ceil(BLOCK_AUTOCORRELATION_TIMES * float(autocorrelation.max())))
    if canceling is not None:
        length = max(length, canceling.length)
    sums = _InfluenceSums(
        problem, solution, influence, autocorrelation, length, _ranges(problem, motions), sum(sizes)
    )
    parts = zip(*side_by_side(sums, motions), strict=True)
    hac, free, count, periodic, clusters = (torch.stack(x).sum(0) for x in parts)
    # Motions may be a sample of the log.
    scale = normal.count[0].sum() / count.clamp_min(1)
    hac, cluster = scale * hac, scale * clusters.square().sum((0, 1))
    correction = _correction(free, sum(sizes))
    known = plain if canceling is None else canceling.with_rest(correction * hac, sizes)
    stationary, variance = _variances(plain), _variances(known)
    # Influences that cancel in time do not cancel in position bins, and `plain` includes them as well.
    excess = _correction(clusters.any(-1).sum(), sum(sizes)) * (cluster - stationary)
    if canceling is None:
        excess = torch.maximum(excess, correction * (hac.diagonal() - stationary))
    elif float(autocorrelation.max()) > canceling.length and float(periodic) < float(count) / 2:
        excess = torch.maximum(excess, stationary - variance)
    factor = (1 + excess.clamp_min(0) / variance.clamp_min(1e-300)).sqrt()
    base_factor, *term_factors = factor.split(sizes)
    return replace(
        known,
        covariance=base_factor[:, None] * known.covariance * base_factor,
        term_std=tuple(x * y for x, y in zip(known.term_std, term_factors, strict=True)),
    )


def _variances(uncertainty: ParameterUncertainty) -> Tensor:
    """Variances of base parameters and of the terms of all dofs, `[parameters]`."""
    squares = (x.square() for x in uncertainty.term_std)
    return torch.cat([uncertainty.covariance.diagonal(), *squares])


def _correction(groups: Tensor, parameters: int) -> Tensor:
    """Small-sample factor for the degrees of freedom that the fitted parameters use."""
    return groups / (groups - parameters).clamp_min(1)


@dataclass(frozen=True, eq=False)
class Canceling:
    """Estimators whose influences cancel in time, as those of noisy accelerations do.

    Attributes:
        length: smallest block length at which they cancel [samples].
        rest: uncertainty from other causes, without these influences.
    """

    length: int
    rest: ParameterUncertainty

    def with_rest(self, covariance: Tensor, sizes: Sequence[int]) -> ParameterUncertainty:
        """Add a covariance of all parameters, of groups with the given sizes, to the rest."""
        base = slice(sizes[0])
        variances = covariance.diagonal().split(list(sizes))[1:]
        pairs = zip(self.rest.term_std, variances, strict=True)
        return replace(
            self.rest,
            covariance=self.rest.covariance + covariance[base, base],
            term_std=tuple((x.square() + y).sqrt() for x, y in pairs),
        )


def _ranges(problem: RegressionProblem, motions: Sequence[FilteredMotion]) -> Tensor:
    """Smallest and largest position of each dof, `[2, num_dof]`."""
    q = [dof_positions(problem.mech, motion.q) for motion in motions if len(motion)]
    lower, upper = (torch.stack([x.amin(0) for x in q]), torch.stack([x.amax(0) for x in q]))
    return torch.stack([lower.amin(0), upper.amax(0)])


@dataclass(frozen=True, eq=False)
class _InfluenceSums:
    """Sums of influences over a motion, in time blocks and in position bins.

    Attributes:
        problem: regression problem.
        solution: fitted parameters.
        influence: influence function.
        autocorrelation: integrated autocorrelation of each dof's residual in samples, `[num_dof]`.
        length: length of a block [samples].
        ranges: ranges of positions, `[2, num_dof]`.
        parameters: number of parameters.
    """

    problem: RegressionProblem
    solution: Solution
    influence: InfluenceFunction
    autocorrelation: Tensor
    length: int
    ranges: Tensor
    parameters: int

    def __call__(self, motion: FilteredMotion) -> tuple[Tensor, ...]:
        """HAC covariance, numbers of independent, of all and of periodic samples, and sums of bins.

        The sums of position bins are `[num_dof, bins, parameters]`.
        """
        dofs, like = len(self.autocorrelation), self.ranges
        bins = like.new_zeros(dofs, POSITION_BINS, self.parameters)
        rows = list(self.problem.filtered_rows([motion]))
        if not rows:
            zero = like.new_zeros(())
            return like.new_zeros(self.parameters, self.parameters), zero, zero, zero, bins
        t, X, good = (torch.cat(part) for part in zip(*rows, strict=True))
        q = motion.q[torch.searchsorted(motion.t.contiguous(), t).clamp_max(len(motion.t) - 1)]
        lower, upper = self.ranges
        share = (dof_positions(self.problem.mech, q) - lower) / (upper - lower).clamp_min(1e-300)
        index = (share * POSITION_BINS).long().clamp(0, POSITION_BINS - 1)
        error = torch.where(good, self.solution.prediction_error(X), 0.0)
        total = like.new_zeros(len(t), self.parameters)
        for j in range(dofs):
            x = self.influence(j, X[:, j], error[:, j])
            total = total + x
            bins[j].index_add_(0, index[:, j], x)
        period = find_period(q)
        hac = tapered_sum_products(_sum_periods(total, period), self.length)
        free = (good.sum(0) / self.autocorrelation).sum() * period / len(t)
        count = good.sum().to(free)
        return hac, free, count, count * (period < len(t)), bins


class LeastSquaresInfluence:
    """The `InfluenceFunction` of weighted least squares."""

    def __init__(self, normal: NormalEquations, model: ModelStructure, solution: Solution) -> None:
        self.scale, self.num_base = model.scale, normal.num_base
        self.sandwich = SandwichBread.of(normal, model, solution.choice)

    def __call__(self, dof: int, X: Tensor, error: Tensor) -> Tensor:
        """Influences `[samples, parameters]` of one dof's columns and residuals."""
        sandwich, e = self.sandwich, error[:, None]
        terms = X.index_select(-1, sandwich.columns[dof])
        partial = X[..., : self.num_base] - terms @ sandwich.base_gain[dof]
        base = self.scale[dof] * e * partial @ sandwich.bread
        influences = [-base @ gain.mT for gain in sandwich.base_gain]
        influences[dof] = influences[dof] + e * terms @ sandwich.term_inverse[dof]
        return torch.cat([base, *influences], -1)


def tapered_sum_products(x: Tensor, length: int) -> Tensor:
    """HAC estimate of the covariance of the sum of a series, from sums over all Hann-tapered blocks.

    Args:
        x: `[samples, columns]`.
        length: length of a block [samples].
    """
    reach = length // 2
    place = torch.arange(1, 2 * reach + 2).to(x) / (2 * reach + 2)
    taper = FIRFilter((torch.pi * place).sin().square(), 1)
    sums = taper(torch.nn.functional.pad(x, (0, 0, 2 * reach, 2 * reach)))
    return sums.mT @ sums / taper.taps.square().sum()


def _sum_periods(x: Tensor, period: int) -> Tensor:
    """Add the periods of a series, `[min(period, samples), columns]`."""
    place = torch.arange(len(x), device=x.device) % period
    return x.new_zeros(min(period, len(x)), x.shape[1]).index_add(0, place, x)
