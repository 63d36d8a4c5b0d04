"""From a log to a robot: `torchsko.learn.fit`."""

from __future__ import annotations

import os
from collections.abc import Callable

from torch import nn

from torchsko.learn.base_parameters import base_parameters
from torchsko.learn.checkpoint import Checkpoint
from torchsko.learn.choosing import Choosing, left_errors, nominal_errors, plain_model
from torchsko.learn.entropic import Prior
from torchsko.learn.estimators import ESTIMATORS, Data, informed
from torchsko.learn.fitted import Fit, Found
from torchsko.learn.least_squares import base_fit
from torchsko.learn.log import Log
from torchsko.learn.mending import Faults
from torchsko.learn.normal import Normal, Problem, Regressor, Stretches
from torchsko.learn.options import Learn, check, terms_of
from torchsko.learn.physical import nearest_physical
from torchsko.learn.reading import again, enough, kernel_of, read, seen_again
from torchsko.learn.residuals import residuals
from torchsko.learn.selection import Folds
from torchsko.learn.settings import settings_of
from torchsko.learn.training import trained
from torchsko.mechanism.verb import MechanismLike, as_mechanism
from torchsko.verbs.regressors import inertial_parameters


def fit(
    mech: MechanismLike,
    log: Log,
    *,
    learn: Learn = None,
    method: str = "physical",
    cutoff: float | None = None,
    prior: float | None = None,
    folds: int = 5,
    residual: nn.Module | None = None,
    regressor: Regressor | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    tell: Callable[[str, float], None] | None = None,
) -> Fit:
    """A physically consistent robot, with error bars, from a log.

    Forces are filtered, and what explains them alike. Which friction each joint has, how strong the prior to
    the nominal robot is, and how much each joint's error counts, is chosen by cross-validation over stretches
    of time, until nothing changes. Where `learn` or `prior` say it, it is not chosen.

    Args:
        mech: the nominal robot, no batch.
        log: what was measured.
        learn: terms of every joint, or of each by name; chosen from `torchsko.learn.library.LIBRARY` for
            joints that are not named. An empty list is a joint without friction.
        method: "physical" (`torchsko.learn.entropic`), or on base parameters, without the cone and the prior,
            "ols", "wls", "irls" or "iv" (`torchsko.learn.estimators`).
        cutoff: of the zero-phase filter [Hz]; chosen by the data when left out.
        prior: weight of the divergence from the nominal robot, against the mean weighted square error.
        folds: of cross-validation.
        residual: a force besides, of what terms do not explain: `torchsko.learn.Network`, or a module of
            yours (`torchsko.learn.training.trained` says what it needs). A copy of it is trained on what the
            fit leaves over, and judged in stretches left out.
        regressor: instead of `torque_regressor`; a kernel of it is built for long logs.
        checkpoint: file to keep in what was done so far: a fit that was stopped goes on from there. It is
            gone when the fit is done. After an interrupt (Ctrl-C) the best so far is fitted and given.
        tell: called with what is being done, and the part of it that is done.

    Returns:
        The robot and all that is known of it.

    Raises:
        FitError: a log that is too short, or does not move, or is not the robot's; an unknown method or
            joint; names it.

    Reference: T. Lee, P. Wensing, F. Park, *Geometric robot dynamic identification*, IEEE Trans. Robotics
    36(2), 2020; M. Gautier, Ph. Poignet, *Extended Kalman filtering and weighted least squares dynamic
    identification of robot*, Control Engineering Practice 9(12), 2001 (weights).
    """
    say = tell or (lambda text, part: None)
    mech = as_mechanism(mech)
    check(mech, method, prior, folds)
    nominal, changed = nearest_physical(mech)
    terms, named = terms_of(nominal, learn)
    say("reading the log", 0.0)
    settings = settings_of(log, cutoff)
    problem = Problem.of(nominal, terms, regressor or kernel_of(nominal, log, settings))
    kept = Checkpoint.of(checkpoint, problem, log, settings, named, method, prior, folds)
    state = kept.read()
    if state:
        normal = Normal(state["sums"], state["count"], problem.inertial)
        faults, seen = Faults(**state["faults"]), seen_again(problem, log, settings)
    else:
        normal, faults, seen = read(
            problem, log, settings, folds, lambda part: say("reading the log", 0.2 * part)
        )
        enough(log, nominal, normal, settings)
        kept.write(normal, faults)
    base, divergence = base_parameters(nominal), Prior.at(inertial_parameters(nominal))
    parts = Folds.of(normal)
    chosen = Choosing(problem, parts, base, divergence, named, prior, say)
    notes = [
        f"unphysical nominal inertia of {name}: the nearest physical one is used"
        for name in changed
    ]
    try:
        chosen.run(state, lambda: kept.write(normal, faults, chosen.model, chosen.at))
    except KeyboardInterrupt:
        notes.append("interrupted: friction and prior are the best so far")
    notes += seen.lines()
    model, squares = chosen.model, chosen.squares
    say("fitting", 0.8)
    data = Data(
        problem, normal, seen, settings,
        lambda **how: again(problem, log, settings, folds, seen, **how),
    )  # fmt: skip
    used, solve = ESTIMATORS[method](data, model, base, divergence)
    solution, plain = solve(used.all), plain_model(terms, nominal.num_dof)
    ordinary = base_fit(normal.all, plain, base)
    others = {
        "nominal": nominal_errors(parts, plain, divergence),
        "least squares": left_errors(parts, parts, lambda some: base_fit(some, plain, base)),
        method: squares
        if method == "physical"
        else left_errors(Folds.of(used, normal), parts, solve),
    }
    more, stretches = None, Stretches(float(log.t[0]), float(log.t[-1]), folds)
    if residual is not None:
        more, others["with residual"] = trained(
            residual, problem, seen.motions, solution, stretches, model.scale,
            lambda part: say("training the residual", 0.8 + 0.1 * part),
        )  # fmt: skip
    say("error bars", 0.9)
    left = residuals(problem, seen.motions, solution, more)
    known = informed(method, data, used, model, solution, base, left)
    found = Found(
        method, settings.cutoff, settings.rate, settings.chosen, model.prior_weight, model.scale,
        int(normal.count.sum()), tuple([*notes, *faults.lines()]),
    )  # fmt: skip
    errors = {name: x.mean(0).sqrt() for name, x in others.items()}
    done = Fit.of(nominal, terms, solution, found, base, ordinary, known, left, errors, more)
    kept.done()
    say("done", 1.0)
    return done
