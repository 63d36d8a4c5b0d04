"""Estimators of one interface: which normal equations each takes of a log, and how it solves them.

=========  ===========================================================================================
method     what it is
=========  ===========================================================================================
physical   least squares in the cone of physical inertias, with a prior to the nominal robot
ols        ordinary least squares on base parameters
wls        the same, each dof's error weighed by its own size
irls       the same, iteratively reweighted: samples that stand out count less (Huber)
iv         instrumental variables: the regressor of a little earlier and later, whose noise is another
shooting   maximum likelihood of positions by forward dynamics, window by window, from where "physical" is
=========  ===========================================================================================

Reference: M. Gautier, Ph. Poignet, *Extended Kalman filtering and weighted least squares dynamic
identification of robot*, Control Engineering Practice 9(12), 2001 (wls); P. Huber, *Robust estimation of a
location parameter*, Annals of Mathematical Statistics 35(1), 1964; A. Janot, P. Vandanjon, M. Gautier, *A
generic instrumental variable approach for industrial robot identification*, IEEE Trans. Control Systems
Technology 22(1), 2014; T. Soderstrom, P. Stoica, *Instrumental variable methods for system identification*,
1983 (delayed signals as instruments).
`torchsko.identification.estimators.shooting` says more of the last, which needs no accelerations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.estimators.instrumental import (
    Instrumental,
    instrumental_fit,
    instrumental_information,
    paired,
)
from torchsko.identification.estimators.shooting import ForwardModel, ShootingEstimator, Windows
from torchsko.identification.friction import Term
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.accumulate import ResidualSample
from torchsko.identification.regression.least_squares import (
    ParameterUncertainty,
    fit_base_parameters,
    parameter_uncertainty,
)
from torchsko.identification.regression.normal_equations import (
    NormalEquations,
    RegressionProblem,
    TimeFolds,
)
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import (
    ModelStructure,
    Solution,
    TermChoice,
    solve_physical,
)
from torchsko.identification.selection.cross_validation import (
    PRIOR_WEIGHTS,
    Folds,
    one_standard_error_rule,
)
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.uncertainty.measurement_bias import PositionNoise, noise_bias
from torchsko.identification.uncertainty.residuals import Residuals, compute_residuals
from torchsko.identification.uncertainty.robust_covariance import (
    Cancelling,
    LeastSquaresInfluence,
    with_robust_std,
)
from torchsko.identification.workers import cores, threads
from torchsko.verbs.base_parameters import BaseParameters

HUBER = 1.345
"""Deviations beyond which a sample counts less: of normal noise 5% of the precision is lost."""

ROUNDS = 20
"""Of reweighting at most."""

STILL = 1e-3
"""Change of weights at which they are the same."""

LAG = 1.5
"""Time over the cut-off's period after which filtered noise is another."""


SEVERAL = 12
"""Stretches of a log that influences are summed over, at least."""


@dataclass(frozen=True, eq=False)
class Data:
    """What estimators know of a log.

    Attributes:
        problem: what explains forces.
        normal: its normal equations.
        seen: motions to look at residuals in.
        settings: how the log was filtered.
        log: as it was measured.
        again: other normal equations, of `lag` or `weigh`.
        prior: weight of the prior where one was asked for.
        window: length of shooting's windows [s], where one was asked for.
        tell: called with the part of the estimation that is done.
    """

    problem: RegressionProblem
    normal: NormalEquations
    seen: ResidualSample
    settings: FilterSettings
    log: Log
    again: Callable[..., NormalEquations]
    prior: float | None
    window: float | None
    tell: Callable[[float], None]

    @property
    def terms(self) -> Sequence[Term]:
        """That there are to choose from."""
        return self.problem.terms


Solve = Callable[[NormalEquations], Solution]
Estimator = Callable[[Data, ModelStructure, BaseParameters, EntropicPrior], "Estimate"]


@dataclass(frozen=True, eq=False)
class Estimate:
    """A method's equations, and what it makes of them.

    Attributes:
        normal: the equations, apart for each fold of time.
        solve: takes those of some folds, as one, to a solution.
        inform: what the data tell of the solution of all folds, by what it leaves over.
        bias: what noise of positions moves base parameters and terms by, `[base + terms]`, with such terms;
            None of a method that it does not bias.
        advice: what to do about it.
        weight: of the prior, where the method has one of its own.
        notes: lines to read.
    """

    normal: NormalEquations
    solve: Solve
    inform: Callable[[Solution, Residuals], ParameterUncertainty]
    bias: Callable[[PositionNoise, TermChoice], Tensor] | None = None
    advice: str = ""
    weight: float | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def weighted(
        cls, data: Data, normal: NormalEquations, solve: Solve, model: ModelStructure
    ) -> Estimate:
        """Of least squares with the weights of a model."""

        def inform(solution: Solution, left: Residuals) -> ParameterUncertainty:
            whole, seen = normal.pooled, data.seen.motions
            told = parameter_uncertainty(
                whole, model, solution.choice, left.variance, left.autocorrelation_samples
            )
            influence = LeastSquaresInfluence(whole, model, solution)
            return with_robust_std(
                told, data.problem, seen, whole, solution, left.autocorrelation_samples, influence
            )

        def bias(noise: PositionNoise, choice: TermChoice) -> Tensor:
            return noise_bias(
                data.problem, data.normal.pooled, noise, data.seen.motions, model, choice, 0
            )

        return cls(normal, solve, inform, bias, 'take method="iv" (--method iv), or "shooting"')


def physical(
    data: Data, model: ModelStructure, base: BaseParameters, prior: EntropicPrior
) -> Estimate:
    """Physically consistent least squares."""
    return Estimate.weighted(
        data, data.normal, lambda normal: solve_physical(normal, model, prior, data.terms), model
    )


def ordinary(
    data: Data, model: ModelStructure, base: BaseParameters, prior: EntropicPrior
) -> Estimate:
    """Ordinary least squares."""
    return weighted(data, replace(model, scale=torch.ones_like(model.scale)), base, prior)


def weighted(
    data: Data, model: ModelStructure, base: BaseParameters, prior: EntropicPrior
) -> Estimate:
    """Least squares weighed dof by dof."""
    return Estimate.weighted(
        data, data.normal, lambda normal: fit_base_parameters(normal, model, base), model
    )


def reweighted(
    data: Data, model: ModelStructure, base: BaseParameters, prior: EntropicPrior
) -> Estimate:
    """Least squares whose weights follow the errors, until they do not change."""
    normal, last = data.normal, None
    for _ in range(ROUNDS):
        fit = fit_base_parameters(normal.pooled, model, base)
        spread = usual(compute_residuals(data.problem, data.seen.motions, fit).error)
        normal = data.again(
            weigh=lambda X, fit=fit, spread=spread: huber(fit.prediction_error(X), spread)
        )
        if last is not None and bool(((spread - last).abs() <= STILL * last).all()):
            break
        last = spread
    return Estimate.weighted(
        data, normal, lambda some: fit_base_parameters(some, model, base), model
    )


def instrumental(
    data: Data, model: ModelStructure, base: BaseParameters, prior: EntropicPrior
) -> Estimate:
    """Instrumental variables: columns a lag before and after."""
    lag = math.ceil(LAG / data.settings.cutoff * data.settings.force_rate)
    pair = paired(data.again(lag=lag), data.normal)

    def inform(solution: Solution, left: Residuals) -> ParameterUncertainty:
        whole, told = (
            data.normal.pooled,
            (pair.pooled, model, left.variance, left.autocorrelation_samples),
        )
        # As long as the filter remembers, but a log is several stretches.
        memory = math.ceil(data.settings.half_width * data.settings.force_rate)
        length = min(memory, int(whole.count.max()) // SEVERAL)
        return with_robust_std(
            instrumental_information(*told), data.problem, data.seen.motions, whole, solution,
            left.autocorrelation_samples, Instrumental(pair.pooled, model, lag),
            Cancelling(length, instrumental_information(*told, weak=True)),
        )  # fmt: skip

    def bias(noise: PositionNoise, choice: TermChoice) -> Tensor:
        return noise_bias(
            data.problem, data.normal.pooled, noise, data.seen.motions, model, choice, lag
        )

    return Estimate(
        pair, lambda normal: instrumental_fit(normal, model, base), inform, bias,
        'take method="shooting" (--method shooting), or a lower cutoff',
    )  # fmt: skip


def shooting(
    data: Data, model: ModelStructure, base: BaseParameters, prior: EntropicPrior
) -> Estimate:
    """Multiple shooting through the forward dynamics, from where the physical fit is."""
    start = solve_physical(data.normal.pooled, model, prior, data.terms)
    folds = TimeFolds(float(data.log.t[0]), float(data.log.t[-1]), len(data.normal.sums))
    windows = Windows.of(data.problem.mech, data.log, data.settings, folds, data.window)
    forward = ForwardModel.of(data.problem, model.choice)
    shot = ShootingEstimator(forward, windows, base, prior, folds.count, start)
    weight = model.prior_weight if data.prior is None else data.prior
    with threads(cores()):  # each step moves all windows
        shot.run(weight, data.tell)
    if data.prior is None:
        # What is left out is judged by its own motion, linearised where the fit is by now.
        parts, ones = Folds.of(shot.normal), torch.ones_like(model.scale[:1])
        tried = sorted(PRIOR_WEIGHTS, reverse=True)
        weight = tried[one_standard_error_rule([shot.left_errors(parts, w) for w in tried], ones)]
        with threads(cores()):
            shot.run(weight, data.tell)

    def inform(solution: Solution, left: Residuals) -> ParameterUncertainty:
        return shot.information(weight)

    return Estimate(
        shot.normal, lambda some: shot.spread(some, weight), inform,
        weight=weight, notes=shot.notes(),
    )  # fmt: skip


ESTIMATORS: Mapping[str, Estimator] = {
    "physical": physical,
    "ols": ordinary,
    "wls": weighted,
    "irls": reweighted,
    "iv": instrumental,
    "shooting": shooting,
}
"""By the name that a fit knows them by."""


def usual(error: Tensor) -> Tensor:
    """A standard deviation that outliers do not reach, `[samples, dofs]` to `[dofs]`."""
    return 1.4826 * error.abs().median(0).values


def huber(error: Tensor, spread: Tensor) -> Tensor:
    """Weights of errors: one up to `HUBER` deviations, then less."""
    return (HUBER * spread / error.abs().clamp_min(1e-300)).clamp_max(1.0)
