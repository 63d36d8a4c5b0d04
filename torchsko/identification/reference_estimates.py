"""Estimates to compare a fit with: the nominal robot and ordinary least squares, with basic friction."""

from __future__ import annotations

from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.regression.elimination import mean_equations
from torchsko.identification.regression.least_squares import fit_base_parameters
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.results.reference_models import ReferenceModel
from torchsko.identification.selection.cross_validation import Folds
from torchsko.identification.selection.model_selection import (
    cross_validated_errors,
    fit_nominal_terms,
    least_squares_structure,
)


def reference_errors(context: FitContext, folds: Folds, prior: EntropicPrior) -> dict[str, Tensor]:
    """Mean square prediction errors of the nominal robot and of least squares, each `[folds, num_dof]`."""
    plain, base = least_squares_structure(context.problem), context.problem.base
    fits = {
        "nominal": [fit_nominal_terms(x, plain, prior) for x in folds.train],
        "least squares": [fit_base_parameters(x, plain, base) for x in folds.train_equations],
    }
    return {name: cross_validated_errors(x, folds) for name, x in fits.items()}


def reference_models(context: FitContext, prior: EntropicPrior) -> dict[str, ReferenceModel]:
    """The nominal robot and ordinary least squares, with terms fitted to the whole log."""
    problem, pooled = context.problem, context.equations.pooled
    plain = least_squares_structure(problem)
    solutions = {
        "nominal": fit_nominal_terms(mean_equations(pooled), plain, prior),
        "least squares": fit_base_parameters(pooled, plain, problem.base),
    }
    return {name: ReferenceModel.of(problem, x) for name, x in solutions.items()}
