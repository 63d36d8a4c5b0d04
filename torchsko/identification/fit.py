"""`torchsko.identification.identify`: the stages of a fit, from a log to a robot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor, nn

from torchsko.errors import FitError
from torchsko.identification.diagnostics.check_lists import CHECKS_AFTER_FIT, CHECKS_BEFORE_FIT
from torchsko.identification.diagnostics.context import FitContext, FittedContext
from torchsko.identification.diagnostics.findings import (
    Action,
    Finding,
    apply_actions,
    by_importance,
    collect,
    finding,
)
from torchsko.identification.diagnostics.log_quality import static_dofs
from torchsko.identification.estimators.estimator import EstimationData, Estimator
from torchsko.identification.estimators.residual_model import ResidualTraining, Shrunk
from torchsko.identification.friction import Offset, Term
from torchsko.identification.friction.candidates import CANDIDATE_TERMS
from torchsko.identification.joint_terms import JointTerms
from torchsko.identification.logs.log import Log
from torchsko.identification.options import FitOptions, check_robot
from torchsko.identification.preparation import Progress, prepare
from torchsko.identification.regression.elimination import mean_equations
from torchsko.identification.regression.least_squares import (
    ParameterUncertainty,
    fit_base_parameters,
)
from torchsko.identification.regression.normal_equations import Regressor, TimeFolds
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import ModelStructure, Solution
from torchsko.identification.results.reference_models import ReferenceModel
from torchsko.identification.results.result import Fit, FitInfo
from torchsko.identification.selection.cross_validation import (
    Folds,
    complete_folds,
    mean_square_errors,
)
from torchsko.identification.selection.model_selection import (
    ModelSelection,
    cross_validated_errors,
    fit_nominal_terms,
    inverse_variance_weights,
    least_squares_structure,
    mean_square_scale,
)
from torchsko.identification.uncertainty.identifiability import (
    parameter_names,
    unidentifiable_combinations,
    with_infinite_std,
)
from torchsko.identification.uncertainty.measurement_bias import PositionNoise
from torchsko.identification.uncertainty.residuals import Residuals, compute_residuals
from torchsko.identification.workers import cores, for_unknowns, threads
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.regressors import inertial_parameters


def identify(
    mech: MechanismLike,
    log: Log,
    *,
    joint_terms: JointTerms = None,
    candidate_terms: Sequence[Term] = CANDIDATE_TERMS,
    method: str = "physical",
    select: bool | None = None,
    cutoff: float | None = None,
    prior: float | None = None,
    folds: int = 5,
    window: float | None = None,
    time_limit: float | None = None,
    residual: nn.Module | None = None,
    regressor: Regressor | None = None,
    ripple: bool = False,
    measurement_bias: bool = False,
    on_findings: Mapping[str, Action] | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Fit:
    """Identify the inertial and friction parameters of a robot from a log of its motion.

    Positions, velocities and forces pass the same zero-phase filter. An estimator then fits inertial
    parameters and joint terms such as friction. The default, "physical", keeps every inertia physically
    consistent, and chooses the friction terms, the weight of each joint's error and the weight of the nominal
    robot by cross-validation. Ctrl-C during this choice continues with the best one so far.

    Args:
        mech: the nominal robot, without batch dimensions.
        log: the measurements. If they are motor currents (`Log.current`), torque constants are estimated
            first, from the masses of the nominal robot; see `FitInfo.constants`.
        joint_terms: terms of all joints, or lists of terms by joint name (see
            `torchsko.identification.friction`). An empty list is a joint without friction. Free joints have
            no terms unless they are named. Terms of all other joints are selected or are the default terms.
        candidate_terms: terms that selection chooses from; your own `Term` may be among them.
        method: "physical", "ols", "wls", "irls", "iv" or "shooting"; see
            `torchsko.identification.estimators.estimators`. Least-squares methods ("ols", "wls", "irls",
            "iv") have no prior, and select no terms unless `select` is True.
        select: whether to select terms by stepwise search with cross-validation, for joints without given
            terms. Otherwise their terms are viscous friction, dry friction and an offset. Default: True for
            "physical" and "shooting".
        cutoff: cut-off frequency of the filter [Hz]; by default 10 times the bandwidth of the motion.
        prior: weight of the divergence from the nominal robot; by default chosen by cross-validation.
        folds: number of time intervals of cross-validation.
        window: length of the windows of "shooting" [s]; by default 0.1 s, and at least five samples.
        time_limit: time after which the iterations of "shooting" stop with the best parameters so far, and a
            finding [s]; by default 45 s. The log is read and terms are selected before.
        residual: a module that learns the remaining force from the state, such as
            `torchsko.identification.Network`; see
            `torchsko.identification.estimators.residual_model.ResidualTraining`. The fit trains a copy.
        regressor: replaces `torque_regressor`. By default a kernel is compiled for long logs.
        ripple: whether to look for torque ripple, which is periodic in the position of a joint, and to offer
            it to selection.
        measurement_bias: whether to simulate the bias of the estimates by noise of positions.
        on_findings: "ignore", "warn" or "raise" by code of finding; see
            `torchsko.identification.diagnostics.findings.CODES`. By default findings of severity "error"
            raise, and all others are in `Fit.findings`.
        progress: called with a description and the completed share.

    Returns:
        The robot, standard errors, prediction errors and findings.

    Raises:
        FitError: an invalid option, or a log that contradicts the robot or is too short.

    Reference: T. Lee, P. Wensing, F. Park, *Geometric robot dynamic identification*, IEEE Trans. Robotics
    36(2), 2020; M. Gautier, Ph. Poignet, *Extended Kalman filtering and weighted least squares dynamic
    identification of robot*, Control Engineering Practice 9(12), 2001 (inverse_variance_weights).
    """
    mech = as_mechanism(mech)
    options = FitOptions(
        joint_terms, candidate_terms, method, select, cutoff, prior, folds, window, time_limit, residual,
        regressor, ripple, measurement_bias, on_findings or {},
    )  # fmt: skip
    options.check()
    check_robot(mech)
    if not isinstance(log, Log):
        raise FitError(
            f"log is a {type(log).__name__}.",
            "It must be a ts.identification.Log.",
            "Pass ts.identification.Log(t, q, tau), ts.identification.Log.load(path, mech.joint_names), or "
            "ts.identification.Log.concatenate(logs) for several logs.",
        )
    with threads(for_unknowns(10 * mech.num_bodies)):
        return _fit(mech, log, options, _with_long_fit(progress, options))


def _with_long_fit(progress: Callable[[str, float], None] | None, options: FitOptions) -> Progress:
    """Give the iterations of shooting most of the progress, 0.2 to 0.85, instead of 0.8 to 0.85."""
    if progress is None:
        return lambda text, share: None
    if not options.estimator.has_windows:
        return progress
    return lambda text, share: progress(
        text, min(share / 4, 0.2) + 13 * min(max(share - 0.8, 0.0), 0.05) + max(share - 0.85, 0.0)
    )


def _fit(mech: Mechanism, log: Log, options: FitOptions, progress: Progress) -> Fit:
    """Run the stages of a fit in order."""
    actions, name = options.on_findings, log.name
    context, findings = prepare(mech, log, options, progress)
    findings += collect(CHECKS_BEFORE_FIT, context, actions, name)
    selection = select_model(context, options, progress)
    findings += apply_actions(selection.findings, actions, name)
    data = EstimationData(
        context.problem, context.equations, context.sample, context.settings, context.log,
        selection.model, selection.prior, options.prior, options.window, options.time_limit,
        lambda text, share: progress(f"fitting, {text}", 0.8 + 0.05 * share),
    )  # fmt: skip
    progress("fitting", 0.8)
    estimator = options.estimator()
    solution = estimator.fit(data)
    findings += apply_actions(estimator.findings(), actions, name)
    fits = estimator.fit_folds(selection.folds)
    squares = validate(context, selection, {options.method: fits})
    learned, squares = learn_residual(
        context, options, solution, selection.model.scale, fits, squares, progress
    )
    progress("standard errors", 0.9)
    left = compute_residuals(context.problem, context.motions, solution, learned)
    information, combinations = uncertainty(context, estimator, solution, left)
    bias = None
    if options.measurement_bias:
        noise = PositionNoise.of(context.nominal, context.log, context.settings)
        bias = estimator.position_bias(noise, solution.choice)
    fitted = FittedContext(
        **{f.name: getattr(context, f.name) for f in fields(context)},
        model=selection.model, solution=solution, residuals=left,
        squared_errors=squares[options.method if learned is None else "with residual"],
        least_squares_errors=squares["least squares"],
        information=information, combinations=combinations,
        labels=parameter_names(context.nominal, context.problem.base, solution.choice, context.problem.terms),
        ripple=options.ripple, position_bias=bias, bias_advice=estimator.bias_advice,
    )  # fmt: skip
    findings += collect(CHECKS_AFTER_FIT, fitted, actions, name)
    settings, constants = context.settings, context.constants
    info = FitInfo(
        options.method, estimator.physical, settings.cutoff, settings.rate, settings.automatic,
        estimator.prior_weight if estimator.has_prior else None, selection.model.scale,
        int(context.equations.count.sum()),
        *((None, None) if constants is None else (constants.value, constants.deviation)),
    )  # fmt: skip
    references = reference_models(context, selection.prior)
    rmse = {k: x.mean(0).sqrt() for k, x in squares.items()}
    progress("done", 1.0)
    return Fit.of(
        context.problem, solution, info, references, information, left, rmse,
        tuple(by_importance(findings)), learned,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Selection:
    """A selected model.

    Attributes:
        model: terms and weights of each dof.
        folds: of cross-validation.
        prior: divergence from the nominal robot.
        findings: a remark if the user interrupted the selection.
    """

    model: ModelStructure
    folds: Folds
    prior: EntropicPrior
    findings: tuple[Finding, ...] = ()


def select_model(context: FitContext, options: FitOptions, progress: Progress) -> Selection:
    """Choose the terms and weights of each dof, and the weight of the prior, unless they are given."""
    problem, estimator = context.problem, options.estimator
    folds = Folds.of(context.equations)
    prior = EntropicPrior.at(inertial_parameters(context.nominal), problem.base.matrix)
    static = static_dofs(context.equations.pooled, problem.terms)
    given = dict.fromkeys(static, (problem.terms.index(Offset()),)) | dict(context.given_terms)
    if not options.selects:
        default = tuple(sorted(problem.terms.index(x) for x in estimator.default_terms))
        given = dict.fromkeys(range(problem.mech.num_dof), default) | given
    if not (options.selects or estimator.has_prior):
        return Selection(least_squares_model(context, given, folds, prior), folds, prior)
    search = ModelSelection(
        problem, folds, problem.base, prior, given, context.candidates, options.prior, progress,
        estimator.supports,
    )  # fmt: skip
    try:
        search.run()
    except KeyboardInterrupt:
        message = "The selection of terms was interrupted. The fit uses the best terms so far."
        return Selection(search.model, folds, prior, (finding("interrupted", message),))
    return Selection(search.model, folds, prior)


def least_squares_model(
    context: FitContext, given: Mapping[int, tuple[int, ...]], folds: Folds, prior: EntropicPrior
) -> ModelStructure:
    """Given terms, weighted by the inverse residual variances of least squares with these terms."""
    choice = tuple(given[j] for j in range(context.problem.mech.num_dof))
    model = ModelStructure(choice, least_squares_structure(context.problem).scale, 0.0)
    pooled = context.equations.pooled
    fit = fit_base_parameters(pooled, model, context.problem.base)
    variance = mean_square_errors(fit, mean_equations(pooled))
    scale = inverse_variance_weights(variance, mean_square_scale(folds, prior))
    return ModelStructure(choice, scale, 0.0)


def validate(
    context: FitContext, selection: Selection, fits: Mapping[str, Sequence[Solution]]
) -> dict[str, Tensor]:
    """Mean square prediction errors of the nominal robot, of least squares and of other fits.

    Args:
        context: the prepared problem.
        selection: folds and prior.
        fits: solutions of the training equations of each fold, by name.

    Returns:
        By name, `[folds, num_dof]`.
    """
    folds, plain = selection.folds, least_squares_structure(context.problem)
    references = {
        "nominal": [fit_nominal_terms(x, plain, selection.prior) for x in folds.train],
        "least squares": [
            fit_base_parameters(x, plain, context.problem.base) for x in folds.train_equations
        ],
    }
    return {name: cross_validated_errors(x, folds) for name, x in (references | dict(fits)).items()}


def reference_models(context: FitContext, prior: EntropicPrior) -> dict[str, ReferenceModel]:
    """The nominal robot and ordinary least squares, with terms fitted to the whole log."""
    problem, pooled = context.problem, context.equations.pooled
    plain = least_squares_structure(problem)
    solutions = {
        "nominal": fit_nominal_terms(mean_equations(pooled), plain, prior),
        "least squares": fit_base_parameters(pooled, plain, problem.base),
    }
    return {name: ReferenceModel.of(problem, x) for name, x in solutions.items()}


def learn_residual(
    context: FitContext, options: FitOptions, solution: Solution, scale: Tensor,
    fits: Sequence[Solution], squares: dict[str, Tensor], progress: Progress,
) -> tuple[Shrunk | None, dict[str, Tensor]]:  # fmt: skip
    """Train the residual module, if there is one, and add its prediction errors by cross-validation."""
    if options.residual is None:
        return None, squares
    t, rounds = context.log.t, len(fits) + 1
    training = ResidualTraining(
        options.residual, context.problem, context.motions,
        TimeFolds(float(t[0]), float(t[-1]), options.folds), scale,
    )  # fmt: skip

    def show(part: int, share: float) -> None:
        progress("training the residual", 0.85 + 0.05 * (part + share) / rounds)

    tested = enumerate(zip(complete_folds(context.equations.count), fits, strict=True), 1)
    with threads(cores()):
        learned = training.fit(solution, partial(show, 0))
        factors = [training.error_factor(fit, fold, partial(show, k)) for k, (fold, fit) in tested]
    errors = squares[options.method] * torch.stack(factors)
    return learned, squares | {"with residual": errors}


def uncertainty(
    context: FitContext, estimator: Estimator, solution: Solution, left: Residuals
) -> tuple[ParameterUncertainty, Tensor | None]:
    """Covariance of the estimates, infinite for unidentifiable ones, and the unidentifiable combinations."""
    information = estimator.covariance(solution, left)
    if not estimator.linear:
        return information, None
    combinations = unidentifiable_combinations(
        context.equations.pooled, estimator.data.model, solution.choice
    )
    return with_infinite_std(information, combinations), combinations
