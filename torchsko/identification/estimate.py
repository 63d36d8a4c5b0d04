"""Estimates of one model: solution, prediction errors, residuals and standard errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.estimators.estimator import EstimationData, Estimator
from torchsko.identification.friction import Offset
from torchsko.identification.options import FitOptions
from torchsko.identification.regression.least_squares import ParameterUncertainty
from torchsko.identification.regression.solution import (
    ModelStructure,
    Solution,
    TermChoice,
)
from torchsko.identification.select_model import Selection
from torchsko.identification.selection.model_selection import cross_validated_errors
from torchsko.identification.uncertainty.identifiability import (
    unidentifiable_combinations,
    with_infinite_std,
)
from torchsko.identification.uncertainty.prior_covariance import MassUncertainty
from torchsko.identification.uncertainty.residuals import Residuals, compute_residuals


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimates of one model.

    Attributes:
        estimator: after its fit.
        solution: estimates.
        fold_solutions: estimates from the training equations of each fold of cross-validation.
        squared_errors: mean square prediction errors by cross-validation, `[folds, num_dof]`.
        residuals: of the whole log.
        information: covariance by the data alone, infinite for unidentifiable parameters.
        uncertainty: covariance with the prior, infinite for these as well.
        combinations: shares of parameters in unidentifiable combinations, `[combinations, parameters]`; None
            if residuals are not linear in all parameters.
        choice: terms of each dof to which these refer, with offsets that selection removed.
        masses: uncertainty of masses; None if the estimator does not estimate it.
    """

    estimator: Estimator
    solution: Solution
    fold_solutions: list[Solution]
    squared_errors: Tensor
    residuals: Residuals
    information: ParameterUncertainty
    uncertainty: ParameterUncertainty
    combinations: Tensor | None
    choice: TermChoice
    masses: MassUncertainty | None


def estimate(
    context: FitContext, options: FitOptions, selection: Selection, model: ModelStructure,
    progress: Callable[[str, float], None],
) -> Estimate:  # fmt: skip
    """Fit a model to the whole log, and compute its errors."""
    progress("fitting", 0.8)
    data = EstimationData(
        context.problem, context.folds, context.equations, context.sample, context.settings, context.log,
        model, selection.prior, options.prior, options.window, options.time_limit,
        lambda text, share: progress(f"fitting, {text}", 0.8 + 0.05 * share),
    )  # fmt: skip
    estimator = options.estimator()
    solution = estimator.fit(data)
    fits = estimator.fit_folds(selection.folds)
    squares = cross_validated_errors(fits, selection.folds)
    progress("standard errors", 0.9)
    residuals = compute_residuals(context.problem, context.motions, solution)
    wide = solution
    if estimator.linear and estimator.has_prior and options.selects:
        offset = context.problem.terms.index(Offset())
        wide = solution.with_term(offset, context.given_terms)
    information, shares = estimator.covariance(wide, residuals), None
    found = [information, estimator.with_prior(information, wide, residuals)]
    if estimator.linear:
        pooled = context.equations.pooled
        shares = unidentifiable_combinations(pooled, estimator.model, wide.choice)
        found = [with_infinite_std(x, shares) for x in found]
    data, total = (replace(x, term_std=_select_std(x.term_std, solution)) for x in found)
    if selection.variances is not None and model is selection.model:
        total = with_selection_variance(total, solution, selection.variances)
    masses = estimator.masses(information, wide)
    return Estimate(
        estimator, solution, fits, squares, residuals, data, total, shares, wide.choice, masses
    )


def with_selection_variance(
    uncertainty: ParameterUncertainty, solution: Solution, variances: Tensor
) -> ParameterUncertainty:
    """Add the variances of coefficients by selection, `[num_dof, terms]`, to those of the terms."""
    rows = zip(uncertainty.term_std, solution.choice, variances, strict=True)
    stds = tuple((std.square() + x[list(chosen)]).sqrt() for std, chosen, x in rows)
    return replace(uncertainty, term_std=stds)


def _select_std(stds: tuple[Tensor, ...], solution: Solution) -> tuple[Tensor, ...]:
    """Standard errors of the terms of a solution, which come before added offsets."""
    return tuple(x[: len(chosen)] for x, chosen in zip(stds, solution.choice, strict=True))
