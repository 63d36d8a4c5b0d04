"""From a log to a robot: `torchsko.identification.identify`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from torchsko.errors import FitError
from torchsko.identification.checkpoint import Checkpoint
from torchsko.identification.diagnostics.fit_notes import (
    beyond,
    biased,
    fault_lines,
    noted,
    resting,
    sample_lines,
    unchanging,
    unexplained,
    untold_lines,
    waves_told,
)
from torchsko.identification.diagnostics.undriven_joints import undriven
from torchsko.identification.estimators.estimators import ESTIMATORS, Data, Estimate
from torchsko.identification.estimators.residual_model import Shrunk, trained
from torchsko.identification.friction import Term
from torchsko.identification.friction.candidates import CANDIDATE_TERMS
from torchsko.identification.joint_terms import Learn, moves
from torchsko.identification.logs.log import Log
from torchsko.identification.options import Asked, check_robot
from torchsko.identification.preparation import Known, Say, Task, checked, known_of
from torchsko.identification.regression.accumulate import accumulate_weighted
from torchsko.identification.regression.least_squares import (
    ParameterUncertainty,
    fit_base_parameters,
)
from torchsko.identification.regression.normal_equations import (
    RegressionProblem,
    Regressor,
    TimeFolds,
)
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.rigid_model import without_losses
from torchsko.identification.regression.solution import ModelStructure, Solution
from torchsko.identification.results.result import Fit, Found
from torchsko.identification.selection.cross_validation import Folds
from torchsko.identification.selection.model_selection import (
    ModelSelection,
    cross_validated_errors,
    cross_validated_nominal_errors,
    least_squares_structure,
)
from torchsko.identification.selection.torque_ripple import find_unmodelled_ripple
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
from torchsko.verbs.base_parameters import BaseParameters
from torchsko.verbs.regressors import inertial_parameters


def identify(
    mech: MechanismLike,
    log: Log,
    *,
    learn: Learn = None,
    library: Sequence[Term] = CANDIDATE_TERMS,
    method: str = "physical",
    cutoff: float | None = None,
    prior: float | None = None,
    folds: int = 5,
    window: float | None = None,
    residual: nn.Module | None = None,
    regressor: Regressor | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    tell: Callable[[str, float], None] | None = None,
    done: Callable[[Fit], None] | None = None,
) -> Fit:
    """A physically consistent robot, with error bars, from a log.

    Forces are filtered, and what explains them alike. Which friction each joint has, how strong the prior to
    the nominal robot is, and how much each joint's error counts, is chosen by cross-validation over stretches
    of time, until nothing changes. Where `learn` or `prior` say it, it is not chosen.

    Args:
        mech: the nominal robot, no batch.
        log: what was measured. Of motor currents (`Log.current`) the torque constants are found first, by the
            weights of the nominal robot; they are `fit.found.constants`, beside their deviations.
        learn: terms of every joint, or of each by name; chosen from `library`, and the waves of gears' teeth
            (`torchsko.identification.selection.torque_ripple`), for joints that are not named. An empty
            list is a joint without friction, and a free joint has none unless it is named. A dof that stood
            still has an offset alone: what it moved is noise.
        library: terms to choose from, `Term` of your own among them: one is chosen that predicts stretches of
            time left out better, and whose number the data tell
            (`torchsko.identification.selection.stepwise`).
        method: "physical" (`torchsko.identification.regression.physical_least_squares`), or on base
            parameters, without the cone and the prior,
            "ols", "wls", "irls" or "iv" (`torchsko.identification.estimators.estimators`); or "
            ""shooting", through the forward
            dynamics, for positions sampled too seldom, or too noisy, for accelerations.
        cutoff: of the zero-phase filter [Hz]; chosen by the data when left out.
        prior: weight of the divergence from the nominal robot, against the mean weighted square error.
        folds: of cross-validation.
        window: length of the windows of "shooting" [s]; 0.1 s, but five samples at least, when left out.
        residual: a force besides, of what terms do not explain: `torchsko.identification.Network`, or a
            module of
            yours (`torchsko.identification.estimators.residual_model.trained` says what it needs). A
            copy of it is trained on what the
            fit leaves over, and judged in stretches left out.
        regressor: instead of `torque_regressor`; a kernel of it is built for long logs.
        checkpoint: file to keep in what was done so far: a fit that was stopped goes on from there. It is
            gone when the fit is done. After an interrupt (Ctrl-C) while it chooses, the best so far is fitted
            and given, and the file stays: the same call goes on.
        tell: called with what is being done, and the part of it that is done.
        done: called with the fit while the checkpoint is still there: what it saves, no interrupt loses.

    Returns:
        The robot and all that is known of it.

    Raises:
        FitError: a log that is too short, or does not move, or is not the robot's, or in other units; an
            unknown method or joint; names it.

    Reference: T. Lee, P. Wensing, F. Park, *Geometric robot dynamic identification*, IEEE Trans. Robotics
    36(2), 2020; M. Gautier, Ph. Poignet, *Extended Kalman filtering and weighted least squares dynamic
    identification of robot*, Control Engineering Practice 9(12), 2001 (weights).
    """
    mech = as_mechanism(mech)
    asked = Asked(
        learn, library, method, cutoff, prior, folds, window, residual, regressor, checkpoint
    )
    asked.check()
    check_robot(mech)
    if not isinstance(log, Log):
        raise FitError(
            f"the log was given as {type(log).__name__}.",
            "A log is times, positions and forces, of one robot.",
            "Pass ts.identification.Log(t, q, tau), or of a file "
            "ts.identification.Log.load(path, mech.joint_names); "
            "of several logs ts.identification.Log.concatenate(logs).",
        )
    with threads(for_unknowns(10 * mech.num_bodies)):
        return _fitted(mech, log, asked, tell or (lambda text, part: None), done)


def _fitted(
    mech: Mechanism, log: Log, asked: Asked, say: Say, done: Callable[[Fit], None] | None
) -> Fit:
    task = Task.of(mech, log, asked, say)
    kept = task.checkpoint(asked)
    state = kept.read()
    known = known_of(task, state, asked.folds, kept, say)
    followed = checked(task, known)
    base = task.problem.base
    divergence = EntropicPrior.at(inertial_parameters(task.nominal), base.matrix)
    chosen = ModelSelection(
        task.problem, Folds.of(known.normal), base, divergence, task.given(known), task.allowed,
        asked.prior, say, moves if asked.method == "shooting" else None,
    )  # fmt: skip
    notes = [*task.lines(known), *followed]
    whole = chosen_wholly(chosen, state, known, kept)
    if not whole:
        notes.append("interrupted: friction and prior are the best so far")
    notes += sample_lines(known.seen) + beyond(task.nominal, known.seen.motions)
    say("fitting", 0.8)
    data = data_of(task, known, asked, say)
    estimate = ESTIMATORS[asked.method](data, chosen.model, base, divergence)
    solution = estimate.solve(estimate.normal.pooled)
    notes += told_of_terms(task, known, chosen.model, solution)
    errors = errors_of(asked.method, data, chosen, estimate, divergence, base)
    more = None
    if asked.residual is not None:
        more, errors["with residual"] = residual_force(
            asked.residual, data, solution, chosen.model.scale, asked.folds, say
        )
    say("error bars", 0.9)
    left = compute_residuals(task.problem, known.seen.motions, solution, more)
    notes += unexplained(task.nominal, left, [*errors.values()][-1])
    notes += told_of_forces(task, known, solution, left)
    told, unsure = informed(
        task.nominal, asked.method, data, estimate, chosen.model, solution, left
    )
    weight = chosen.model.prior_weight if estimate.weight is None else estimate.weight
    settings, constants = task.settings, task.constants
    found = Found(
        asked.method, settings.cutoff, settings.rate, settings.automatic, weight, chosen.model.scale,
        int(known.normal.count.sum()),
        (*notes, *unsure, *fault_lines(task.faults(known)), *estimate.notes),
        *((None, None) if constants is None else (constants.value, constants.deviation)),
    )  # fmt: skip
    fitted = Fit.of(
        task.problem.mech, task.problem.terms, solution, found, base,
        fit_base_parameters(known.normal.pooled, least_squares_structure(task.problem), base),
        told, left, {k: x.mean(0).sqrt() for k, x in errors.items()}, more,
    )  # fmt: skip
    say("done", 1.0)
    if done is not None:
        done(fitted)
    if whole:
        kept.done()
    return fitted


def chosen_wholly(
    chosen: ModelSelection, state: Mapping[str, Any], known: Known, kept: Checkpoint
) -> bool:
    """Choose what is not given, and keep every choice; whether nobody interrupted it."""
    try:
        chosen.run(
            state,
            lambda: kept.write(known.normal, known.faults, chosen.model, chosen.at, chosen.before),
        )
    except KeyboardInterrupt:
        return False
    return True


def data_of(task: Task, known: Known, asked: Asked, say: Say) -> Data:
    """What an estimator is given."""
    problem, log, settings = task.problem, task.log, task.settings
    return Data(
        problem, known.normal, known.seen, settings, log,
        lambda **how: accumulate_weighted(problem, log, settings, asked.folds, known.seen, **how),
        asked.prior, asked.window, lambda part: say("fitting", 0.8 + 0.05 * part),
    )  # fmt: skip


def residual_force(
    residual: nn.Module, data: Data, solution: Solution, scale: Tensor, folds: int, say: Say
) -> tuple[Shrunk, Tensor]:
    """The force that is learned of what terms do not explain, and the errors with it that were left out."""
    stretches = TimeFolds(float(data.log.t[0]), float(data.log.t[-1]), folds)
    with threads(cores()):
        return trained(
            residual, data.problem, data.seen.motions, solution, stretches, scale,
            lambda part: say("training the residual", 0.85 + 0.05 * part),
        )  # fmt: skip


def informed(
    mech: Mechanism, method: str, data: Data, estimate: Estimate, model: ModelStructure, solution: Solution,
    left: Residuals,
) -> tuple[ParameterUncertainty, list[str]]:  # fmt: skip
    """What the data tell of a solution, and lines about what they do not tell."""
    told = estimate.inform(solution, left)
    if method == "shooting":
        return told, []
    base = data.problem.base
    labels = parameter_names(mech, base, solution.choice, data.terms)
    shares = unidentifiable_combinations(data.normal.pooled, model, solution.choice)
    lines, told = (
        untold_lines(shares, labels, len(base)),
        with_infinite_std(told, shares),
    )
    if estimate.bias is not None:
        noise = PositionNoise.of(mech, data.log, data.settings)
        bias = estimate.bias(noise, solution.choice)
        lines += biased(mech, noise, data.seen.motions, bias, told, labels, estimate.advice)
    return told, lines


def told_of_terms(task: Task, known: Known, model: ModelStructure, solution: Solution) -> list[str]:
    """Lines about terms that were asked for: those that are zero, and waves of teeth that they miss."""
    lines = vanished(task.problem, model, solution, task.named)
    missed = find_unmodelled_ripple(
        task.problem, known.seen.motions, solution.choice, sorted(task.named)
    )
    names = task.nominal.dof_names
    return lines + [waves_told(names[j], some) for j, some in missed.items()]


def told_of_forces(task: Task, known: Known, solution: Solution, left: Residuals) -> list[str]:
    """Lines about forces: those at an end, those that do not change, those that nothing explains."""
    return [
        *unchanging(task.nominal, left),
        *undriven(without_losses(task.nominal), known.seen.motions),
        *resting(task.nominal, known.seen.motions, task.problem.terms, solution.choice),
        *noted(task.nominal, task.problem.terms, solution.choice),
    ]


def vanished(
    problem: RegressionProblem,
    model: ModelStructure,
    solution: Solution,
    named: Mapping[int, tuple[int, ...]],
) -> list[str]:
    """Says which terms that were asked for are zero: of numbers that are not negative."""
    names = problem.mech.dof_names
    gone: dict[str, list[str]] = {}
    for j in named:
        for k in model.choice[j]:
            if k not in solution.choice[j]:
                term = problem.terms[k]
                gone.setdefault(term.zero_reason, []).append(f"{term.label} of {names[j]}")
    return [f"zero, for {why}: {', '.join(some)}" for why, some in gone.items()]


def errors_of(
    method: str, data: Data, chosen: ModelSelection, estimate: Estimate, divergence: EntropicPrior,
    base: BaseParameters,
) -> dict[str, Tensor]:  # fmt: skip
    """Mean square errors in what was left out, `[folds, num_dof]`, of a method and what it is beside."""
    parts, plain = chosen.folds, least_squares_structure(data.problem)
    return {
        "nominal": cross_validated_nominal_errors(parts, plain, divergence),
        "least squares": cross_validated_errors(
            parts, parts, lambda some: fit_base_parameters(some, plain, base)
        ),
        method: chosen.squares
        if method == "physical"
        else cross_validated_errors(Folds.of(estimate.normal, data.normal), parts, estimate.solve),
    }
