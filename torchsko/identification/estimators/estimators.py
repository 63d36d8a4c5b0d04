"""Estimators of inertial and friction parameters, with one interface, and their registry by name.

=========  ===========================================================================================
name       estimator
=========  ===========================================================================================
physical   least squares over physically consistent inertias, with a prior at the nominal robot
ols        ordinary least squares on base parameters
wls        least squares weighted by each dof's error variance
irls       iteratively reweighted least squares with Huber weights, robust to outliers
iv         instrumental variables: delayed regressors, for noisy positions
shooting   maximum likelihood of positions by multiple shooting through forward dynamics
=========  ===========================================================================================

Reference: M. Gautier, Ph. Poignet, *Extended Kalman filtering and weighted least squares dynamic
identification of robot*, Control Engineering Practice 9(12), 2001 (wls); P. Huber, *Robust estimation of a
location parameter*, Annals of Mathematical Statistics 35(1), 1964; A. Janot, P. Vandanjon, M. Gautier, *A
generic instrumental variable approach for industrial robot identification*, IEEE Trans. Control Systems
Technology 22(1), 2014; T. Soderstrom, P. Stoica, *Instrumental variable methods for system identification*,
1983 (delayed signals as instruments). `torchsko.identification.estimators.shooting` has those of shooting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.diagnostics.findings import Finding
from torchsko.identification.estimators.estimator import Estimator
from torchsko.identification.estimators.shooting import ForwardModel, ShootingEstimator, Windows
from torchsko.identification.estimators.shooting.shooting_estimator import TIME_LIMIT
from torchsko.identification.friction import Term
from torchsko.identification.friction.candidates import DEFAULT_TERMS
from torchsko.identification.regression.instrumental import (
    Instrumental,
    instrumental_fit,
    instrumental_information,
    paired,
)
from torchsko.identification.regression.least_squares import (
    ParameterUncertainty,
    fit_base_parameters,
)
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.regression.solution import (
    Solution,
    TermChoice,
    solve_physical,
    solve_physical_batch,
)
from torchsko.identification.selection.cross_validation import (
    Folds,
)
from torchsko.identification.signals.preprocess import quaternion_joints
from torchsko.identification.uncertainty.measurement_bias import PositionNoise
from torchsko.identification.uncertainty.prior_covariance import (
    MassUncertainty,
    covariance_with_prior,
    mass_uncertainty,
)
from torchsko.identification.uncertainty.residuals import Residuals, compute_residuals
from torchsko.identification.uncertainty.robust_covariance import (
    Canceling,
    with_robust_std,
)
from torchsko.identification.workers import cores, threads
from torchsko.mechanism.mechanism import Mechanism

HUBER = 1.345
"""Threshold of Huber weights [standard deviations]: 95 % efficiency for normal errors."""

MAX_REWEIGHTINGS = 20
"""Number of reweightings of `ReweightedLeastSquares`."""

SPREAD_TOLERANCE = 1e-3
"""Relative change of the error spread at which reweighting has converged."""

LAG_PERIODS = 1.5
"""Delay of the instruments [periods of the cut-off frequency], after which filtered noise is uncorrelated."""

ROUGH_TIME_SHARE = 0.4
"""Largest share of the time limit of shooting for the run that precedes the choice of the prior weight."""

MIN_BLOCKS = 12
"""Smallest number of time blocks over which influence functions are summed."""


class PhysicalLeastSquares(Estimator):
    """Least squares over physically consistent inertias, with an entropic prior."""

    physical = True
    selects_terms = True
    has_prior = True

    def solve(self, equations: NormalEquations) -> Solution:
        """Solve normal equations of one fold."""
        return solve_physical(equations, self.model, self.data.prior, self.data.problem.terms)

    def with_prior(
        self, information: ParameterUncertainty, solution: Solution, left: Residuals
    ) -> ParameterUncertainty:
        """Covariance of the estimates with the prior, from that by the data alone."""
        equations, prior = self.equations.pooled, self.data.prior
        return covariance_with_prior(information, equations, self.model, prior, solution, left)

    def masses(
        self, information: ParameterUncertainty, solution: Solution
    ) -> MassUncertainty | None:
        """Uncertainty of masses, from the covariance by the data alone."""
        equations, prior = self.equations.pooled, self.data.prior
        return mass_uncertainty(information, equations, self.model, prior, solution)

    def fit_folds(self, folds: Folds) -> list[Solution]:
        """Solutions of the training equations of each fold."""
        return solve_physical_batch(
            folds.train, self.model, self.data.prior, self.data.problem.terms
        )


class WeightedLeastSquares(Estimator):
    """Least squares on base parameters, weighted by each dof's error variance."""

    def solve(self, equations: NormalEquations) -> Solution:
        """Solve normal equations of one fold."""
        return fit_base_parameters(equations, self.model, self.data.problem.base)


class OrdinaryLeastSquares(WeightedLeastSquares):
    """Least squares on base parameters with unit weights."""

    def _prepare(self) -> None:
        self.model = replace(self.model, scale=torch.ones_like(self.model.scale))


class ReweightedLeastSquares(WeightedLeastSquares):
    """Iteratively reweighted least squares with Huber weights."""

    def _prepare(self) -> None:
        data, previous = self.data, None
        for _ in range(MAX_REWEIGHTINGS):
            fit = self.solve(self.equations.pooled)
            spread = median_spread(compute_residuals(data.problem, data.sample.motions, fit).error)
            self.equations = data.accumulate(
                weigh=lambda X, fit=fit, spread=spread: huber_weights(
                    fit.prediction_error(X), spread
                )
            )
            if previous is not None and bool(
                ((spread - previous).abs() <= SPREAD_TOLERANCE * previous).all()
            ):
                break
            previous = spread


class InstrumentalVariables(Estimator):
    """Instrumental variables: the regressor before and after a delay."""

    bias_advice = 'Use method="shooting" (--method shooting) or a lower cutoff.'
    lag: int

    def _prepare(self) -> None:
        settings = self.data.settings
        self.lag = math.ceil(LAG_PERIODS / settings.cutoff * settings.force_rate)
        self.equations = paired(self.data.accumulate(lag=self.lag), self.data.equations)

    def solve(self, equations: NormalEquations) -> Solution:
        """Solve normal equations of one fold."""
        return instrumental_fit(equations, self.model, self.data.problem.base)

    def covariance(self, solution: Solution, left: Residuals) -> ParameterUncertainty:
        """Covariance of the estimates, robust to autocorrelated residuals."""
        data, pair, pooled = self.data, self.equations.pooled, self.data.equations.pooled
        inputs = pair, self.model, left.variance, left.autocorrelation_samples
        # Blocks as long as the filter, but several in a log.
        memory = math.ceil(data.settings.half_width * data.settings.force_rate)
        length = min(memory, int(pooled.count.max()) // MIN_BLOCKS)
        return with_robust_std(
            instrumental_information(*inputs), data.problem, data.sample.motions, pooled, solution,
            left.autocorrelation_samples, Instrumental(pair, self.model, self.lag),
            Canceling(length, instrumental_information(*inputs, weak=True)),
        )  # fmt: skip

    def position_bias(self, noise: PositionNoise, choice: TermChoice) -> Tensor | None:
        """Bias of base parameters and terms by noise of positions."""
        return self._bias(noise, choice, self.lag)


class MultipleShooting(Estimator):
    """Maximum likelihood of positions by multiple shooting, started at the physical fit."""

    physical = True
    selects_terms = True
    has_prior = True
    has_windows = True
    default_terms = DEFAULT_TERMS[:3]
    _shooting: ShootingEstimator
    _weight: float

    @classmethod
    def check_robot(cls, mech: Mechanism) -> None:
        """Check that the coordinates of all joints are a vector.

        Raises:
            FitError: names a joint with a quaternion.
        """
        if joints := quaternion_joints(mech):
            raise FitError(
                f"the coordinates of joint {joints[0]!r} are a quaternion.",
                "Shooting supports joints whose coordinates are a vector.",
                'Pass method="physical" and a log with velocities.',
            )

    @classmethod
    def supports(cls, term: Term) -> bool:
        """True if forward dynamics can evaluate a term."""
        return term.continuous or term.armature != 0 or term.sensor_scale != 0

    @classmethod
    def unsupported(cls, term: Term, joint: str) -> FitError:
        """The error of a term that is not supported."""
        return FitError(
            f'method="shooting" does not support {term.label} of joint {joint!r}.',
            "Forward dynamics needs forces that are continuous functions of position and velocity.",
            "Pass SmoothCoulomb(0.05) for dry friction, or use another method.",
        )

    def _prepare(self) -> None:
        data, model = self.data, self.model
        start = solve_physical(data.equations.pooled, model, data.prior, data.problem.terms)
        # Chains of windows end at folds, so folds of a short period would leave few long chains.
        folds = replace(data.folds, period=None)
        windows = Windows.of(data.problem.mech, data.log, data.settings, folds, data.window)
        forward = ForwardModel.of(data.problem, model.choice)
        shooting = ShootingEstimator(
            forward, windows, data.problem.base, data.prior, data.folds.count, start
        )
        weight = model.prior_weight if data.prior_weight is None else data.prior_weight
        now, done = time.monotonic(), 0.0
        if data.prior_weight is None:
            with threads(cores()):  # each step moves all windows
                shooting.run(
                    weight,
                    partial(self._show, 0.0, ROUGH_TIME_SHARE),
                    deadline=now + ROUGH_TIME_SHARE * self._time_limit,
                    rough=True,
                )
            weight, done = shooting.choose_prior_weight(weight), ROUGH_TIME_SHARE
        with threads(cores()):
            shooting.run(weight, partial(self._show, done, 1.0), deadline=now + self._time_limit)
        self._shooting, self._weight, self.equations = shooting, weight, shooting.normal

    @property
    def _time_limit(self) -> float:
        """Time for the iterations [s]."""
        return TIME_LIMIT if self.data.time_limit is None else self.data.time_limit

    def _show(self, start: float, stop: float, step: float, share: float) -> None:
        """Show the size of the last step, and progress between the given shares of the whole."""
        self.data.progress(f"last step: {step:.2g} standard errors", start + (stop - start) * share)

    def solve(self, equations: NormalEquations) -> Solution:
        """Solve normal equations of one fold."""
        return self._shooting.solve_by_dof(equations, self._weight)

    def covariance(self, solution: Solution, left: Residuals) -> ParameterUncertainty:
        """Covariance of the estimates, by clusters of windows."""
        return self._shooting.uncertainty(self._weight)

    def position_bias(self, noise: PositionNoise, choice: TermChoice) -> Tensor | None:
        """None: positions are outputs, so their noise does not bias."""
        return None

    @property
    def prior_weight(self) -> float:
        """Weight of the prior that was used."""
        return self._weight

    @property
    def linear(self) -> bool:
        """True if residuals are linear in all parameters."""
        return False

    def findings(self) -> list[Finding]:
        """Windows, noise, and the last step if the iterations did not converge."""
        return self._shooting.findings(self._time_limit)


ESTIMATORS: Mapping[str, type[Estimator]] = {
    "physical": PhysicalLeastSquares,
    "ols": OrdinaryLeastSquares,
    "wls": WeightedLeastSquares,
    "irls": ReweightedLeastSquares,
    "iv": InstrumentalVariables,
    "shooting": MultipleShooting,
}
"""Estimators by name."""


def median_spread(error: Tensor) -> Tensor:
    """Standard deviation by the median, robust to outliers, `[samples, dofs]` to `[dofs]`."""
    return 1.4826 * error.abs().median(0).values


def huber_weights(error: Tensor, spread: Tensor) -> Tensor:
    """Weights of errors: 1 up to `HUBER` standard deviations, then decreasing."""
    return (HUBER * spread / error.abs().clamp_min(1e-300)).clamp_max(1.0)
