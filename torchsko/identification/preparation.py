"""Preparation of a fit: checks of the raw log, filter, torque constants, regression problem, accumulation."""

from __future__ import annotations

from collections.abc import Callable

from torchsko.errors import FitError
from torchsko.identification.diagnostics.check_lists import RAW_LOG_CHECKS
from torchsko.identification.diagnostics.context import FitContext, RawLog
from torchsko.identification.diagnostics.findings import Finding, collect
from torchsko.identification.diagnostics.unit_checks import (
    check_declared_units,
    check_finite_columns,
)
from torchsko.identification.drive_gains import (
    Constants,
    torque_constants,
    with_forces,
)
from torchsko.identification.friction import Delay
from torchsko.identification.joint_terms import terms_of
from torchsko.identification.logs.log import Log
from torchsko.identification.options import FitOptions
from torchsko.identification.regression.accumulate import compile_regressor, read_log, time_folds
from torchsko.identification.regression.data_checks import (
    add_base_forces,
    check_sufficient_data,
    unmeasured_dofs,
    without_unmeasured,
)
from torchsko.identification.regression.drives import Drives
from torchsko.identification.regression.nearest_physical import nearest_physical
from torchsko.identification.regression.normal_equations import RegressionProblem
from torchsko.identification.signals.filter_settings import (
    FilterSettings,
    design_filters,
    sampling_rate,
)
from torchsko.identification.signals.preprocess import check_columns
from torchsko.identification.signals.unwrap import unwrap_angles
from torchsko.mechanism.mechanism import Mechanism

Progress = Callable[[str, float], None]


def progress_of_stages(progress: Progress | None, options: FitOptions) -> Progress:
    """Progress in which the iterations of shooting take 0.2 to 0.85 instead of 0.8 to 0.85."""
    if progress is None:
        return lambda text, share: None
    if not options.estimator.has_windows:
        return progress
    return lambda text, share: progress(
        text, min(share / 4, 0.2) + 13 * min(max(share - 0.8, 0.0), 0.05) + max(share - 0.85, 0.0)
    )


def prepare(
    mech: Mechanism, log: Log, options: FitOptions, progress: Progress
) -> tuple[FitContext, list[Finding]]:
    """Check the raw log, build the regression problem and accumulate its normal equations.

    Returns:
        The prepared problem, and findings about the raw log.

    Raises:
        FitError: a log that does not fit the robot, or has too few data.
    """
    nominal, replaced = nearest_physical(mech)
    terms, given = terms_of(
        nominal, options.joint_terms, options.candidate_terms, options.estimator
    )
    terms = tuple(dict.fromkeys([*terms, Delay()]))  # for the check of delays
    progress("reading the log", 0.0)
    log = add_base_forces(nominal, log)
    check_columns(nominal, log)
    log, unwrapped = unwrap_angles(log, nominal.coordinate_names)
    findings = check_raw_log(nominal, log, options)
    log, settings, constants = filter_and_scale(nominal, log, options.cutoff)
    unmeasured = unmeasured_dofs(nominal, log)
    given |= dict.fromkeys(unmeasured, ())
    drives = Drives.of_log(log, nominal.mass)
    check_method(options, drives)
    problem = RegressionProblem.of(nominal, terms, options.regressor, given, drives)
    if options.regressor is None:
        problem = compile_regressor(problem, log, settings)
    folds = time_folds(log, options.folds, settings.half_width)
    equations, faults, sample = read_log(
        problem, log, settings, folds, lambda part: progress("reading the log", 0.2 * part)
    )
    check_sufficient_data(log, problem.mech, equations, settings)
    context = FitContext(
        original=mech, nominal=nominal, replaced_bodies=replaced, log=log, unwrapped=unwrapped,
        settings=settings, constants=constants, problem=problem, given_terms=given,
        unmeasured=unmeasured, folds=folds, equations=equations,
        faults=without_unmeasured(nominal, faults, unmeasured), sample=sample,
    )  # fmt: skip
    return context, findings


def check_raw_log(mech: Mechanism, log: Log, options: FitOptions) -> list[Finding]:
    """Check units, signs and columns of a log as it was measured."""
    check_declared_units(mech, log)
    raw = RawLog.of(mech, log, sampling_rate(log))
    check_finite_columns(raw)
    return collect(RAW_LOG_CHECKS, raw, options.on_findings, log.name)


def filter_and_scale(
    mech: Mechanism, log: Log, cutoff: float | None
) -> tuple[Log, FilterSettings, Constants | None]:
    """Design the filter, and convert currents to forces by estimated torque constants."""
    settings = design_filters(log, cutoff)
    if not log.current:
        return log, settings, None
    constants = torque_constants(mech, log, settings)
    log = with_forces(log, constants.value)
    return log, design_filters(log, cutoff), constants


def check_method(options: FitOptions, drives: Drives | None) -> None:
    """Check that a method supports friction of coupled drives.

    Raises:
        FitError: names the method.
    """
    if drives is not None and options.estimator.has_windows:
        raise FitError(
            f"method={options.method!r} was given for a log of coupled drives.",
            "Its forward dynamics has friction at joints, and that of drives acts on several joints.",
            'Pass method="physical" (--method physical), which supports it.',
        )
