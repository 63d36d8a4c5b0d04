"""From a log to a robot: `torchsko.learn.fit`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchsko.errors import FitError
from torchsko.learn.bare import lossless
from torchsko.learn.checkpoint import Checkpoint
from torchsko.learn.choosing import Choosing, left_errors, nominal_errors, plain_model
from torchsko.learn.currents import Constants, constants_told, torque_constants, with_forces
from torchsko.learn.entropic import Prior
from torchsko.learn.estimators import ESTIMATORS, Data, Estimate
from torchsko.learn.fitted import Fit, Found
from torchsko.learn.followers import followers_told
from torchsko.learn.forces import in_other_units, refuse_driving, refuse_other_forces
from torchsko.learn.friction import Offset, Term
from torchsko.learn.least_squares import base_fit
from torchsko.learn.library import LIBRARY
from torchsko.learn.log import Log
from torchsko.learn.mending import Faults
from torchsko.learn.mistaken import refuse_mistaken
from torchsko.learn.motion import check_columns
from torchsko.learn.names import dof_names, q_names
from torchsko.learn.noise import Noise, biased
from torchsko.learn.normal import Normal, Problem, Regressor, Stretches
from torchsko.learn.options import Asked, Learn, check_robot, moves, terms_of
from torchsko.learn.physical import changes_told, nearest_physical
from torchsko.learn.piling import piled
from torchsko.learn.plausible import refuse_other_units
from torchsko.learn.reading import Seen, again, enough, read, seen_again, with_kernel
from torchsko.learn.residuals import residuals
from torchsko.learn.ripple import waves_in, waves_missed, waves_told
from torchsko.learn.selection import Folds
from torchsko.learn.settings import Settings, rate_of, settings_of
from torchsko.learn.solving import Model, Solution
from torchsko.learn.telling import (
    beyond,
    labels_of,
    left_out,
    not_sure,
    noted,
    refuse_standing,
    standing,
    unchanging,
    untold,
    untold_lines,
)
from torchsko.learn.threads import cores, for_unknowns, threads
from torchsko.learn.training import trained
from torchsko.learn.turns import counted_on
from torchsko.learn.undriven import refuse_unfelt, undriven
from torchsko.learn.unmeasured import (
    unmeasured,
    unmeasured_lines,
    with_all_forces,
    without_unmeasured,
)
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.verb import MechanismLike, as_mechanism
from torchsko.verbs.base_parameters import BaseParameters
from torchsko.verbs.regressors import inertial_parameters


class Known(NamedTuple):
    """What was read of a log: normal equations, what is wrong in it, motions to look at residuals in."""

    normal: Normal
    faults: Faults
    seen: Seen


def fit(
    mech: MechanismLike,
    log: Log,
    *,
    learn: Learn = None,
    library: Sequence[Term] = LIBRARY,
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
            (`torchsko.learn.ripple`), for joints that are not named. An empty
            list is a joint without friction, and a free joint has none unless it is named. A dof that stood
            still has an offset alone: what it moved is noise.
        library: terms to choose from, `Term` of your own among them: one is chosen that predicts stretches of
            time left out better, and whose number the data tell (`torchsko.learn.growing`).
        method: "physical" (`torchsko.learn.entropic`), or on base parameters, without the cone and the prior,
            "ols", "wls", "irls" or "iv" (`torchsko.learn.estimators`); or "shooting", through the forward
            dynamics, for positions sampled too seldom, or too noisy, for accelerations.
        cutoff: of the zero-phase filter [Hz]; chosen by the data when left out.
        prior: weight of the divergence from the nominal robot, against the mean weighted square error.
        folds: of cross-validation.
        window: length of the windows of "shooting" [s]; 0.1 s, but five samples at least, when left out.
        residual: a force besides, of what terms do not explain: `torchsko.learn.Network`, or a module of
            yours (`torchsko.learn.training.trained` says what it needs). A copy of it is trained on what the
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
            f"the log was given as {type(log).__name__}.\n"
            "A log is times, positions and forces, of one robot.\n"
            "Pass ts.learn.Log(t, q, tau), or of a file ts.learn.Log.load(path, mech.joint_names); "
            "of several logs ts.learn.Log.joined(logs)."
        )
    with threads(for_unknowns(10 * mech.num_bodies)):
        return _fitted(mech, log, asked, tell or (lambda text, part: None), done)


def _fitted(
    mech: Mechanism, log: Log, asked: Asked, say: Callable[[str, float], None],
    done: Callable[[Fit], None] | None,
) -> Fit:  # fmt: skip
    nominal, changed = nearest_physical(mech)
    terms, named = terms_of(nominal, asked.learn, asked.library, asked.method)
    say("reading the log", 0.0)
    log = with_all_forces(nominal, log)
    check_columns(nominal, log)
    log, wrapped = counted_on(log, q_names(nominal))
    log, settings, constants = made_ready(nominal, log, asked.cutoff)
    problem = Problem.of(nominal, terms, asked.regressor, named)
    waves = waves_in(problem, log, settings, [j for j in range(nominal.num_dof) if j not in named])
    besides = {j: [term for x in some for term in x.terms] for j, some in waves.items()}
    terms = tuple(dict.fromkeys([*terms, *(term for some in besides.values() for term in some)]))
    problem = replace(problem, terms=terms)
    if asked.regressor is None:
        problem = with_kernel(problem, log, settings)
    kept = Checkpoint.of(
        asked.checkpoint, problem, log, settings, named, asked.method, asked.prior, asked.folds,
        asked.window, asked.library,
    )  # fmt: skip
    state = kept.read()
    known = known_of(state, problem, log, settings, asked.folds, kept, say)
    blank = unmeasured(nominal, log)
    faults = without_unmeasured(nominal, known.faults, blank)
    whole_robot = lossless(nominal)  # with all its rotors
    refuse_unfelt(whole_robot, log, known.seen.motions)
    followed = followers_told(whole_robot, problem, log, settings, known.seen.motions)
    refuse_other_forces(problem, log, known.normal)
    refuse_mistaken(replace(problem, mech=whole_robot), log, known.seen.motions, named)
    refuse_driving(problem, log, known.normal)
    base, divergence = problem.base, Prior.at(inertial_parameters(nominal), problem.base.matrix)
    able = moves if asked.method == "shooting" else None
    parts = Folds.of(known.normal)
    stood = standing(known.normal.all, problem.terms)
    refuse_standing(nominal, log, stood)
    still = [j for j in stood if j not in named]
    given = {j: (problem.terms.index(Offset()),) for j in still} | named
    allowed = {j: (*asked.library, *besides.get(j, ())) for j in range(nominal.num_dof)}
    chosen = Choosing(problem, parts, base, divergence, given, allowed, asked.prior, say, able)
    notes = [
        *changes_told(mech, changed),
        *left_out(nominal),
        *followed,
        *wrapped,
    ]
    if still:
        names = ", ".join(dof_names(nominal)[j] for j in still)
        notes.append(f"stood still, so that no friction is chosen there: {names}")
    if constants is not None:
        notes.append(constants_told(nominal, constants))
    notes += unmeasured_lines(nominal, blank)
    notes += [*settings.lines(), *in_other_units(problem, log, known.normal)]
    whole = True
    try:
        chosen.run(
            state,
            lambda: kept.write(known.normal, known.faults, chosen.model, chosen.at, chosen.before),
        )
    except KeyboardInterrupt:
        whole = False
        notes.append("interrupted: friction and prior are the best so far")
    notes += known.seen.lines() + beyond(nominal, known.seen.motions)
    say("fitting", 0.8)
    data = Data(
        problem, known.normal, known.seen, settings, log,
        lambda **how: again(problem, log, settings, asked.folds, known.seen, **how),
        asked.prior, asked.window, lambda part: say("fitting", 0.8 + 0.05 * part),
    )  # fmt: skip
    estimate = ESTIMATORS[asked.method](data, chosen.model, base, divergence)
    solution = estimate.solve(estimate.normal.all)
    notes += vanished(problem, chosen.model, solution, named)
    spoilt = waves_missed(problem, known.seen.motions, solution.choice, sorted(named))
    notes += [waves_told(dof_names(nominal)[j], some) for j, some in spoilt.items()]
    errors = errors_of(asked.method, data, chosen, estimate, divergence, base)
    more, stretches = None, Stretches(float(log.t[0]), float(log.t[-1]), asked.folds)
    if asked.residual is not None:
        with threads(cores()):
            more, errors["with residual"] = trained(
                asked.residual, problem, known.seen.motions, solution, stretches, chosen.model.scale,
                lambda part: say("training the residual", 0.85 + 0.05 * part),
            )  # fmt: skip
    say("error bars", 0.9)
    left = residuals(problem, known.seen.motions, solution, more)
    notes += piled(nominal, log, left, faults)
    notes += unchanging(nominal, left) + undriven(whole_robot, known.seen.motions)
    notes += noted(nominal, terms, solution.choice)
    weight = chosen.model.prior_weight if estimate.weight is None else estimate.weight
    told = estimate.inform(solution, left)
    if asked.method != "shooting":
        labels = labels_of(nominal, base, solution.choice, terms)
        shares = untold(known.normal.all, chosen.model, solution.choice)
        notes += untold_lines(shares, labels, len(base))
        told = not_sure(told, shares)
        if estimate.bias is not None:
            noise = Noise.of(nominal, log, settings)
            bias = estimate.bias(noise, solution.choice)
            notes += biased(nominal, noise, known.seen.motions, bias, told, labels, estimate.advice)
    found = Found(
        asked.method, settings.cutoff, settings.rate, settings.chosen, weight, chosen.model.scale,
        int(known.normal.count.sum()), (*notes, *faults.lines(), *estimate.notes),
        *((None, None) if constants is None else (constants.value, constants.deviation)),
    )  # fmt: skip
    fitted = Fit.of(
        problem.mech, terms, solution, found, base,
        base_fit(known.normal.all, plain_model(problem), base),
        told, left, {k: x.mean(0).sqrt() for k, x in errors.items()}, more,
    )  # fmt: skip
    say("done", 1.0)
    if done is not None:
        done(fitted)
    if whole:
        kept.done()
    return fitted


def vanished(
    problem: Problem, model: Model, solution: Solution, named: Mapping[int, tuple[int, ...]]
) -> list[str]:
    """Says which terms that were asked for are zero: of numbers that are not negative."""
    names = dof_names(problem.mech)
    gone: dict[str, list[str]] = {}
    for j in named:
        for k in model.choice[j]:
            if k not in solution.choice[j]:
                term = problem.terms[k]
                gone.setdefault(term.why, []).append(f"{term.label} of {names[j]}")
    return [f"zero, for {why}: {', '.join(some)}" for why, some in gone.items()]


def made_ready(
    mech: Mechanism, log: Log, cutoff: float | None
) -> tuple[Log, Settings, Constants | None]:
    """A log of forces, how it is filtered, and the torque constants of a log of currents."""
    refuse_other_units(mech, log, rate_of(log))
    settings = settings_of(log, cutoff)
    if not log.current:
        return log, settings, None
    constants = torque_constants(mech, log, settings)
    log = with_forces(log, constants.value)
    return log, settings_of(log, cutoff), constants


def known_of(
    state: Mapping[str, Any], problem: Problem, log: Log, settings: Settings, folds: int,
    kept: Checkpoint, say: Callable[[str, float], None],
) -> Known:  # fmt: skip
    """What a log says: of a run that was stopped, or read now."""
    if state:
        normal = Normal(state["sums"], state["count"], len(problem.base))
        return Known(normal, Faults(**state["faults"]), seen_again(problem, log, settings))
    known = Known(
        *read(problem, log, settings, folds, lambda part: say("reading the log", 0.2 * part))
    )
    enough(log, problem.mech, known.normal, settings)
    kept.write(known.normal, known.faults)
    return known


def errors_of(
    method: str, data: Data, chosen: Choosing, estimate: Estimate, divergence: Prior,
    base: BaseParameters,
) -> dict[str, Tensor]:  # fmt: skip
    """Mean square errors in what was left out, `[folds, num_dof]`, of a method and what it is beside."""
    parts, plain = chosen.folds, plain_model(data.problem)
    return {
        "nominal": nominal_errors(parts, plain, divergence),
        "least squares": left_errors(parts, parts, lambda some: base_fit(some, plain, base)),
        method: chosen.squares
        if method == "physical"
        else left_errors(Folds.of(estimate.normal, data.normal), parts, estimate.solve),
    }
