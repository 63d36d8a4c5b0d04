"""Results of the stages of a fit, collected for the checks after it and for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext, FittedContext
from torchsko.identification.diagnostics.findings import Finding, by_importance
from torchsko.identification.estimate import Estimate
from torchsko.identification.options import FitOptions
from torchsko.identification.reference_estimates import reference_models
from torchsko.identification.regression.solution import TermChoice
from torchsko.identification.results.fit_result import FitInfo
from torchsko.identification.results.reference_models import MemoryModel
from torchsko.identification.results.result import Fit
from torchsko.identification.select_model import Selection
from torchsko.identification.uncertainty.identifiability import parameter_names
from torchsko.identification.uncertainty.measurement_bias import PositionNoise


def fitted_context(
    context: FitContext,
    options: FitOptions,
    selection: Selection,
    found: Estimate,
    least_squares_errors: Tensor,
) -> FittedContext:
    """The data that checks after a fit examine; simulates noise of positions if the options ask for it."""
    bias = None
    if options.measurement_bias:
        noise = PositionNoise.of(context.nominal, context.log, context.settings)
        bias = found.estimator.position_bias(noise, found.solution.choice)

    def labels(choice: TermChoice) -> list[str]:
        return parameter_names(context.nominal, context.problem.base, choice, context.problem.terms)

    return FittedContext(
        **{f.name: getattr(context, f.name) for f in fields(context)},
        model=selection.model, solution=found.solution, residuals=found.residuals,
        squared_errors=found.squared_errors, least_squares_errors=least_squares_errors,
        information=found.information, combinations=found.combinations,
        labels=labels(found.solution.choice), combination_labels=labels(found.choice),
        selects=options.selects, position_bias=bias,
        bias_advice=found.estimator.bias_advice, physical=found.estimator.physical, masses=found.masses,
    )  # fmt: skip


def collect_results(
    context: FitContext,
    options: FitOptions,
    selection: Selection,
    found: Estimate,
    with_memory: Estimate | None,
    errors: Mapping[str, Tensor],
    findings: Sequence[Finding],
) -> Fit:
    """The result of a fit.

    Args:
        context: the prepared log.
        options: of the fit.
        selection: the selected models.
        found: estimates of the memoryless model.
        with_memory: estimates of the model with memory; None if there is none.
        errors: mean square prediction errors by name, each `[folds, num_dof]`.
        findings: of all stages.
    """
    settings, constants, estimator = context.settings, context.constants, found.estimator
    info = FitInfo(
        options.method, estimator.physical, settings.cutoff, settings.rate, settings.automatic,
        estimator.prior_weight if estimator.has_prior else None, selection.model.scale,
        int(context.equations.count.sum()), selects_terms=options.selects,
        constants=None if constants is None else constants.value,
        constant_deviations=None if constants is None else constants.deviation,
        drives=None if context.log.drives is None else torch.as_tensor(context.log.drives),
    )  # fmt: skip
    memory = None
    if with_memory is not None:
        memory = MemoryModel.estimated(
            context.problem, with_memory.solution, with_memory.uncertainty.term_std
        )
    return Fit.of(
        context.problem, found.solution, info, reference_models(context, selection.prior),
        found.uncertainty, found.residuals, {k: x.mean(0).sqrt() for k, x in errors.items()},
        tuple(by_importance(findings)), memory, found.masses,
    )  # fmt: skip
