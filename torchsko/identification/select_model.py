"""Selection of the models of a fit: terms and weights of each dof, without and with memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.diagnostics.log_quality import static_dofs
from torchsko.identification.friction import Offset
from torchsko.identification.options import FitOptions
from torchsko.identification.regression.elimination import mean_equations
from torchsko.identification.regression.least_squares import fit_base_parameters
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import ModelStructure
from torchsko.identification.selection.cross_validation import Folds, mean_square_errors
from torchsko.identification.selection.model_selection import (
    ModelSelection,
    inverse_variance_weights,
    least_squares_structure,
    mean_square_scale,
    memoryless,
    with_named,
)
from torchsko.identification.selection.term_checks import TermChecks
from torchsko.verbs.regressors import inertial_parameters


@dataclass(frozen=True, eq=False)
class Selection:
    """Selected models.

    Attributes:
        model: terms and weights of each dof, without memory.
        memory: terms and weights with memory; None if these do not predict better.
        folds: of cross-validation.
        prior: divergence from the nominal robot.
        variances: variances of the coefficients of `model` by its selection, `[num_dof, terms]`; None for a
            model that was not selected.
        findings: a remark if the user interrupted the selection.
    """

    model: ModelStructure
    memory: ModelStructure | None
    folds: Folds
    prior: EntropicPrior
    variances: Tensor | None = None
    findings: tuple[Finding, ...] = ()


def select_model(
    context: FitContext, options: FitOptions, progress: Callable[[str, float], None]
) -> Selection:
    """Choose the terms and weights of each dof, and the weight of the prior, unless they are given."""
    problem, estimator = context.problem, options.estimator
    folds = Folds.of(context.equations)
    prior = EntropicPrior.at(inertial_parameters(context.nominal), problem.base.matrix)
    static = static_dofs(context.equations.pooled, problem.terms)
    given = dict.fromkeys(static, (problem.terms.index(Offset()),)) | dict(context.given_terms)
    if not options.selects:
        default = tuple(sorted(problem.terms.index(x) for x in estimator.default_terms))
        given = dict.fromkeys(range(problem.mech.num_dof), default) | given
    findings: tuple[Finding, ...] = ()
    variances = None
    if not (options.selects or estimator.has_prior):
        model, memory = least_squares_models(context, given, folds, prior)
    else:
        checks = TermChecks.of(problem, context.equations.pooled, context.motions, prior, given)
        search = ModelSelection(
            problem, folds, prior, given, options.candidate_terms, options.prior, progress,
            estimator.supports, checks,
        )  # fmt: skip
        try:
            search.run()
        except KeyboardInterrupt:
            message = "The selection of terms was interrupted. The fit uses the best terms so far."
            findings = (finding("interrupted", message),)
        model, memory, variances = search.model, search.memory, search.variances
    if memory is not None and not has_memory(context, memory):
        memory = None
    return Selection(model, memory, folds, prior, variances, findings)


def has_memory(context: FitContext, model: ModelStructure) -> bool:
    """True if a dof of a model has friction with memory."""
    return any(context.problem.terms[k].memory for chosen in model.choice for k in chosen)


def least_squares_models(
    context: FitContext, given: Mapping[int, tuple[int, ...]], folds: Folds, prior: EntropicPrior
) -> tuple[ModelStructure, ModelStructure]:
    """Given terms, without and with memory, weighted by the inverse residual variances of least squares."""
    terms, pooled = context.problem.terms, context.equations.pooled
    choice = tuple(memoryless(terms, given[j]) for j in range(context.problem.mech.num_dof))
    model = ModelStructure(choice, least_squares_structure(context.problem).scale, 0.0)
    fit = fit_base_parameters(pooled, model, context.problem.base)
    variance = mean_square_errors(fit, mean_equations(pooled))
    scale = inverse_variance_weights(variance, mean_square_scale(folds, prior))
    model = replace(model, scale=scale)
    return model, with_named(model, given)
