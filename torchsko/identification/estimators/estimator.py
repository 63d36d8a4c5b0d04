"""Interface of the estimators, and the data that they take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.diagnostics.findings import Finding
from torchsko.identification.friction import Term
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.accumulate import ResidualSample, accumulate_weighted
from torchsko.identification.regression.least_squares import ParameterUncertainty
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
)
from torchsko.identification.selection.cross_validation import (
    Folds,
)
from torchsko.identification.selection.model_selection import BASIC_FRICTION
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.uncertainty.least_squares_uncertainty import robust_uncertainty
from torchsko.identification.uncertainty.measurement_bias import PositionNoise, noise_bias
from torchsko.identification.uncertainty.prior_covariance import MassUncertainty
from torchsko.identification.uncertainty.residuals import Residuals
from torchsko.mechanism.mechanism import Mechanism


@dataclass(frozen=True, eq=False)
class EstimationData:
    """Input of an estimator.

    Attributes:
        problem: the regression problem.
        folds: cross-validation folds.
        equations: its normal equations, by fold.
        sample: filtered motions for residuals.
        settings: of the filter.
        log: forces, as measured.
        model: terms and weights of each dof.
        prior: divergence from the nominal robot.
        prior_weight: weight of the prior that the caller chose; None if the estimator chooses.
        window: length of the windows of shooting [s]; None for the default.
        time_limit: time for the iterations of shooting [s]; None for the default.
        progress: called with a description and the completed share.
    """

    problem: RegressionProblem
    folds: TimeFolds
    equations: NormalEquations
    sample: ResidualSample
    settings: FilterSettings
    log: Log
    model: ModelStructure
    prior: EntropicPrior
    prior_weight: float | None
    window: float | None
    time_limit: float | None
    progress: Callable[[str, float], None]

    def accumulate(
        self, *, lag: int = 0, weigh: Callable[[Tensor], Tensor] | None = None
    ) -> NormalEquations:
        """Normal equations with a lag between the factors, or with weights of the samples."""
        return accumulate_weighted(
            self.problem, self.log, self.settings, self.folds, self.sample, lag=lag, weigh=weigh
        )


class Estimator(ABC):
    """An estimator. `fit` sets `data`, `model` and `equations`, which the other methods use.

    Attributes:
        physical: whether inertial parameters are physically consistent.
        selects_terms: whether terms are selected by default.
        has_prior: whether it has a prior at the nominal robot.
        has_windows: whether it divides the log into windows, and iterates until a time limit.
        default_terms: terms of a joint if none are given and none are selected.
        bias_advice: advice if noise of positions biases the estimates.
        data: input.
        model: terms and weights.
        equations: normal equations that it solves, by fold.
    """

    physical: ClassVar[bool] = False
    selects_terms: ClassVar[bool] = False
    has_prior: ClassVar[bool] = False
    has_windows: ClassVar[bool] = False
    default_terms: ClassVar[tuple[Term, ...]] = BASIC_FRICTION
    bias_advice: ClassVar[str] = 'Use method="iv" (--method iv) or "shooting".'
    data: EstimationData
    model: ModelStructure
    equations: NormalEquations

    @classmethod
    def check_robot(cls, mech: Mechanism) -> None:
        """Check that the estimator supports all joints of a robot.

        Raises:
            FitError: names the joint.
        """
        return

    @classmethod
    def supports(cls, term: Term) -> bool:
        """True if the estimator can estimate the coefficient of a term."""
        return not term.sensor_scale

    @classmethod
    def unsupported(cls, term: Term, joint: str) -> FitError:
        """The error of a term that is not supported."""
        return FitError(
            f"the force is not linear in {term.label} of joint {joint!r}.",
            "A scale error of positions changes all columns of the regressor.",
            'Pass method="shooting".',
        )

    def fit(self, data: EstimationData) -> Solution:
        """Estimate the parameters from all folds."""
        self.data, self.model, self.equations = data, data.model, data.equations
        self._prepare()
        return self.solve(self.equations.pooled)

    def _prepare(self) -> None:
        """Change the model or the equations before they are solved."""
        return

    @abstractmethod
    def solve(self, equations: NormalEquations) -> Solution:
        """Solve normal equations of one fold."""

    def covariance(self, solution: Solution, left: Residuals) -> ParameterUncertainty:
        """Covariance of the estimates, robust to autocorrelated residuals."""
        data, pooled = self.data, self.equations.pooled
        return robust_uncertainty(
            data.problem, pooled, data.sample.motions, self.model, solution, left
        )

    def with_prior(
        self, information: ParameterUncertainty, solution: Solution, left: Residuals
    ) -> ParameterUncertainty:
        """Covariance of the estimates with the prior, if there is one, from that by the data alone."""
        return information

    def masses(
        self, information: ParameterUncertainty, solution: Solution
    ) -> MassUncertainty | None:
        """Uncertainty of masses, from the covariance by the data alone; None if it is not estimated."""
        return None

    def fit_folds(self, folds: Folds) -> list[Solution]:
        """Solutions of the training equations of each fold."""
        used = Folds.of(self.equations, self.data.equations)
        return [self.solve(x) for x in used.train_equations]

    def position_bias(self, noise: PositionNoise, choice: TermChoice) -> Tensor | None:
        """Bias of base parameters and terms by noise of positions; None if there is none."""
        return self._bias(noise, choice, lag=0)

    def _bias(self, noise: PositionNoise, choice: TermChoice, lag: int) -> Tensor:
        data = self.data
        return noise_bias(
            data.problem, data.equations.pooled, noise, data.sample.motions, self.model, choice, lag
        )

    @property
    def prior_weight(self) -> float:
        """Weight of the prior that was used."""
        return self.model.prior_weight

    @property
    def linear(self) -> bool:
        """True if residuals are linear in all parameters, so that collinear ones can be found."""
        return True

    def findings(self) -> list[Finding]:
        """Remarks on the estimation."""
        return []
