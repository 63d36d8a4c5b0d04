"""`torchsko.identification.identify`: the stages of a fit, from a log to a robot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchsko.identification.collect_results import collect_results, fitted_context
from torchsko.identification.diagnostics.check_lists import CHECKS_AFTER_FIT, CHECKS_BEFORE_FIT
from torchsko.identification.diagnostics.findings import Action, apply_actions, collect
from torchsko.identification.estimate import estimate
from torchsko.identification.friction import Term
from torchsko.identification.friction.candidates import CANDIDATE_TERMS
from torchsko.identification.joint_terms import JointTerms
from torchsko.identification.logs.log import Log
from torchsko.identification.options import FitOptions, check_log, check_robot
from torchsko.identification.preparation import Progress, prepare, progress_of_stages
from torchsko.identification.reference_estimates import reference_errors
from torchsko.identification.regression.normal_equations import Regressor
from torchsko.identification.results.result import Fit
from torchsko.identification.select_model import select_model
from torchsko.identification.workers import for_unknowns, threads
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism


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
    regressor: Regressor | None = None,
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
            Terms with memory, such as `Dahl`, are in `Fit.memory`; their steady state is in `Fit.terms`.
        candidate_terms: terms that selection chooses from; your own `Term` may be among them. It starts with
            those of `torchsko.identification.friction.candidates.DEFAULT_TERMS` among them.
        method: "physical", "ols", "wls", "irls", "iv" or "shooting"; see
            `torchsko.identification.estimators.estimators`. Least-squares methods ("ols", "wls", "irls",
            "iv") have no prior, and select no terms unless `select` is True.
        select: whether to select terms by forward search with cross-validation, for joints without given
            terms. Otherwise their terms are viscous friction, dry friction and an offset. Default: True for
            "physical" and "shooting".
        cutoff: cut-off frequency of the filter [Hz]; by default 10 times the bandwidth of the motion.
        prior: weight of the divergence from the nominal robot; by default chosen by cross-validation.
        folds: number of time intervals of cross-validation.
        window: length of the windows of "shooting" [s]; by default 0.1 s, and at least five samples.
        time_limit: time after which the iterations of "shooting" stop with the best parameters so far, and a
            finding [s]; by default 45 s. The log is read and terms are selected before.
        regressor: replaces `torque_regressor`. By default a kernel is compiled for long logs.
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
        joint_terms, candidate_terms, method, select, cutoff, prior, folds, window, time_limit, regressor,
        measurement_bias, on_findings or {},
    )  # fmt: skip
    options.check()
    check_robot(mech)
    check_log(log)
    with threads(for_unknowns(10 * mech.num_bodies)):
        return _fit(mech, log, options, progress_of_stages(progress, options))


def _fit(mech: Mechanism, log: Log, options: FitOptions, progress: Progress) -> Fit:
    """Run the stages of a fit in order."""
    actions, name = options.on_findings, log.name
    context, findings = prepare(mech, log, options, progress)
    findings += collect(CHECKS_BEFORE_FIT, context, actions, name)

    selection = select_model(context, options, progress)
    findings += apply_actions(selection.findings, actions, name)

    found = estimate(context, options, selection, selection.model, progress)
    findings += apply_actions(found.estimator.findings(), actions, name)
    errors = reference_errors(context, selection.folds, selection.prior)
    errors[options.method] = found.squared_errors

    with_memory = None
    if selection.memory is not None:
        with_memory = estimate(context, options, selection, selection.memory, progress)
        errors["with memory"] = with_memory.squared_errors

    fitted = fitted_context(context, options, selection, found, errors["least squares"])
    findings += collect(CHECKS_AFTER_FIT, fitted, actions, name)
    progress("done", 1.0)
    return collect_results(context, options, selection, found, with_memory, errors, findings)
