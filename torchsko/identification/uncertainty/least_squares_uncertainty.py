"""Standard errors of least-squares estimates, robust to autocorrelated residuals."""

from __future__ import annotations

from collections.abc import Sequence

from torchsko.identification.regression.least_squares import (
    ParameterUncertainty,
    parameter_uncertainty,
)
from torchsko.identification.regression.normal_equations import NormalEquations, RegressionProblem
from torchsko.identification.regression.solution import ModelStructure, Solution
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.identification.uncertainty.residuals import Residuals
from torchsko.identification.uncertainty.robust_covariance import (
    LeastSquaresInfluence,
    with_robust_std,
)


def robust_uncertainty(
    problem: RegressionProblem, equations: NormalEquations, motions: Sequence[FilteredMotion],
    model: ModelStructure, solution: Solution, residuals: Residuals,
) -> ParameterUncertainty:  # fmt: skip
    """Covariance of weighted least squares, robust to autocorrelated residuals.

    Args:
        problem: regression problem.
        equations: normal equations of the whole log as one fold.
        motions: motions for residuals.
        model: weights of the fit.
        solution: the estimates.
        residuals: their residuals.
    """
    autocorrelation = residuals.autocorrelation_samples
    plain = parameter_uncertainty(
        equations, model, solution.choice, residuals.variance, autocorrelation
    )
    influence = LeastSquaresInfluence(equations, model, solution)
    return with_robust_std(plain, problem, motions, equations, solution, autocorrelation, influence)
