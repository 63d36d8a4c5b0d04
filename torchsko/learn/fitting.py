"""From a log to a robot: `torchsko.learn.fit`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import CompilerError, FitError, FusedError, unknown_name
from torchsko.fused.api import fuse
from torchsko.fused.build import find_toolchain
from torchsko.learn.base_parameters import BaseParameters, base_parameters
from torchsko.learn.checkpoint import Checkpoint
from torchsko.learn.entropic import Prior
from torchsko.learn.fitted import Fit, Found
from torchsko.learn.friction import Coulomb, Offset, Term, Viscous
from torchsko.learn.least_squares import base_fit, information
from torchsko.learn.log import Log
from torchsko.learn.motion import Faults, Motion, Settings, motions, settings_of
from torchsko.learn.names import dof_names
from torchsko.learn.normal import Normal, Problem, Regressor, lossless, normal_equations
from torchsko.learn.physical import nearest_physical
from torchsko.learn.residuals import residuals
from torchsko.learn.selection import (
    LIBRARY,
    USUAL,
    Folds,
    Model,
    Solution,
    chosen_weight,
    eliminated,
    error_of,
    errors,
    means,
    solved,
    with_terms_chosen,
)
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.verb import MechanismLike, as_mechanism
from torchsko.verbs.regressors import inertial_parameters, torque_regressor

METHODS = ("physical", "ols", "wls")
"""Estimators: physically consistent, and least squares on base parameters, ordinary and weighted."""

KEPT = 400_000
"""States that are kept in memory between passes; of a longer log they are read again."""

Learn = Mapping[str, Sequence[Term]] | Sequence[Term] | None


def fit(
    mech: MechanismLike,
    log: Log,
    *,
    learn: Learn = None,
    method: str = "physical",
    cutoff: float | None = None,
    prior: float | None = None,
    folds: int = 5,
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
        learn: terms of every joint, or of each by name; chosen from `torchsko.learn.selection.LIBRARY` for
            joints that are not named. An empty list is a joint without friction.
        method: "physical" (`torchsko.learn.entropic`); "ols" or "wls", least squares on base parameters
            without the cone and the prior, each sample alike, or weighed by its joint's error.
        cutoff: of the zero-phase filter [Hz]; chosen by the data when left out.
        prior: weight of the divergence from the nominal robot, against the mean weighted square error.
        folds: of cross-validation.
        regressor: instead of `torque_regressor`; a kernel of it is built for long logs.
        checkpoint: file to keep in what was done so far: a fit that was stopped goes on from there. It is
            gone when the fit is done. After an interrupt (Ctrl-C) the best so far is fitted and given.
        tell: called with what is being done, and the part of it that is done.

    Returns:
        The robot and all that is known of it.

    Raises:
        FitError: a log that is too short, or does not move, or is not the robot's; an unknown method or
            joint; names it.
        MissingExtraError: when SciPy is not installed.

    Reference: T. Lee, P. Wensing, F. Park, *Geometric robot dynamic identification*, IEEE Trans. Robotics
    36(2), 2020; M. Gautier, Ph. Poignet, *Extended Kalman filtering and weighted least squares dynamic
    identification of robot*, Control Engineering Practice 9(12), 2001 (weights).
    """
    say = tell or (lambda text, part: None)
    mech = as_mechanism(mech)
    _check(mech, method, prior, folds)
    nominal, changed = nearest_physical(mech)
    terms, named = _terms(nominal, learn)
    say("reading the log", 0.0)
    settings, faults = settings_of(log, cutoff), Faults()
    problem = Problem.of(nominal, terms, regressor or _kernel(nominal, log, settings))
    read = Reader(nominal, log, settings, faults)
    kept = Checkpoint.of(checkpoint, problem, log, settings, named, method, prior, folds)
    state = kept.read()
    if state:
        normal = Normal(state["sums"], state["count"], problem.inertial)
        faults.__dict__.update(state["faults"])
        read.counted = True
    else:
        span = float(log.t[0]), float(log.t[-1])
        rows = _told(problem.rows(read()), span, lambda part: say("reading the log", 0.2 * part))
        normal = normal_equations(problem, rows, span, folds)
        enough(log, nominal, normal, settings)
        kept.write(normal, faults)
    base, divergence = base_parameters(nominal), Prior.at(inertial_parameters(nominal))
    parts = Folds.of(normal)
    chosen = _Choosing(problem, parts, base, divergence, named, prior, say)
    notes = [
        f"unphysical nominal inertia of {name}: the nearest physical one is used"
        for name in changed
    ]
    try:
        chosen.run(state, lambda: kept.write(normal, faults, chosen.model, chosen.at))
    except KeyboardInterrupt:
        notes.append("interrupted: friction and prior are the best so far")
    model, squares = chosen.model, chosen.squares
    say("fitting", 0.8)
    if method == "physical":
        solution = solved(normal.all, model, divergence, terms)
    else:
        even = model if method == "wls" else replace(model, scale=torch.ones_like(model.scale))
        solution = base_fit(normal.all, even, base)
    plain = _plain(terms, nominal.num_dof)
    ordinary = base_fit(normal.all, plain, base)
    others = {
        "nominal": nominal_errors(parts, plain, divergence),
        "least squares": base_errors(parts, plain, base),
        method: squares if method == "physical" else base_errors(parts, model, base),
    }
    say("error bars", 0.9)
    left = residuals(problem.rows(read()), solution, problem.inertial)
    told = information(normal.all, model, solution.choice, base, left.variance, left.inflation)
    found = Found(
        method, settings.cutoff, settings.rate, settings.chosen, model.prior_weight, model.scale,
        int(normal.count.sum()), tuple([*notes, *faults.lines()]),
    )  # fmt: skip
    errors = {name: x.mean(0).sqrt() for name, x in others.items()}
    done = Fit.of(nominal, terms, solution, found, base, ordinary, told, left, errors)
    kept.done()
    say("done", 1.0)
    return done


PAYS = 150_000
"""States from which on a kernel of the regressor is built: that takes seconds, and saves more."""


def _kernel(mech: Mechanism, log: Log, settings: Settings) -> Regressor | None:
    """A kernel of the regressor, where it pays and can be built."""
    if len(log) / settings.states.every < PAYS or mech.device.type != "cpu":
        return None
    try:
        find_toolchain()
        call = fuse(torque_regressor, lossless(mech))
        call.function(("q", "qd", "qdd")).trace()
        return call
    except (FusedError, CompilerError):
        return None


def _told(
    rows: Iterable[tuple[Tensor, Tensor, Tensor]],
    span: tuple[float, float],
    tell: Callable[[float], None],
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The same rows; says how far they are."""
    for row in rows:
        yield row
        if len(row[0]):
            tell((float(row[0][-1]) - span[0]) / max(span[1] - span[0], 1e-9))


class _Choosing:
    """Cross-validation: a model that gets better, at every moment the best so far.

    Attributes:
        model: so far.
        squares: its errors in what was left out, `[folds, num_dof]`.
        at: how many choices were made: rounds, and dofs of a round.
    """

    def __init__(
        self,
        problem: Problem,
        folds: Folds,
        base: BaseParameters,
        divergence: Prior,
        named: Mapping[int, tuple[int, ...]],
        prior: float | None,
        say: Callable[[str, float], None],
    ) -> None:
        self.folds, self.divergence, self.named = folds, divergence, named
        self.prior, self.say, self.terms = prior, say, problem.terms
        self.dofs, self.at = problem.mech.num_dof, 0
        usual = tuple(k for k, term in enumerate(self.terms) if term in USUAL)
        self.library = tuple(k for k, term in enumerate(self.terms) if term in LIBRARY)
        choice = tuple(named.get(j, usual) for j in range(self.dofs))
        first = base_errors(folds, _plain(self.terms, self.dofs), base)
        self.model = Model(choice, weights(first.mean(0)), 1.0 if prior is None else prior)
        self.squares = first

    def run(self, state: Mapping[str, Any], keep: Callable[[], None]) -> None:
        """Choose terms, weights of dofs and the prior's weight in turn until nothing changes.

        Args:
            state: where an earlier run was stopped, or empty.
            keep: called after every choice.
        """
        if state.get("model"):
            model = state["model"]
            choice = tuple(tuple(some) for some in model["choice"])
            self.model = Model(choice, model["scale"], model["prior_weight"])
            self.at = state["at"]
            if self.at % self.dofs:
                self.squares = errors(self.folds, self.model, self.divergence, self.terms)[0]
        if self.at % self.dofs == 0:
            self._judge()
        while self.at < TURNS * self.dofs:
            before = self.model.choice
            if self.at % self.dofs == 0:
                self.model = replace(self.model, scale=weights(self.squares.mean(0)))
            turn = self.at // self.dofs
            if len(self.named) < self.dofs:
                while self.at < (turn + 1) * self.dofs:
                    dof = self.at % self.dofs
                    self.say(
                        f"choosing friction of dof {dof + 1}",
                        0.2 + 0.6 * self.at / TURNS / self.dofs,
                    )
                    if dof not in self.named:
                        self.model = with_terms_chosen(
                            self.folds, self.model, self.divergence, self.terms, self.library, dof
                        )
                    self.at += 1
                    keep()
            self._judge()
            if self.model.choice == before:
                break
        self.model = replace(self.model, scale=weights(self.squares.mean(0)))

    def _judge(self) -> None:
        """Choose the prior's weight, and see how good the model is."""
        if self.prior is None:
            self.model, self.squares = chosen_weight(
                self.folds, self.model, self.divergence, self.terms
            )
        else:
            self.squares = errors(self.folds, self.model, self.divergence, self.terms)[0]


TURNS = 3
"""Rounds of choosing terms, weights and prior, at most; the choice seldom changes after the first."""


def weights(squares: Tensor) -> Tensor:
    """One over each dof's mean square error; bounded, where a joint has none."""
    return 1 / squares.clamp_min(1e-8 * squares.max().clamp_min(1e-300))


def _plain(terms: Sequence[Term], dofs: int) -> Model:
    """Ordinary least squares: viscous and dry friction and an offset for each joint."""
    choice = tuple(k for k, term in enumerate(terms) if term in (Viscous(), Coulomb(), Offset()))
    return Model((choice,) * dofs, torch.ones(dofs, dtype=torch.float64), 0.0)


def base_errors(folds: Folds, model: Model, base: BaseParameters) -> Tensor:
    """Mean square errors of least squares in what was left out, `[folds, num_dof]`."""
    fits = [base_fit(seen, model, base) for seen in folds.seen]
    return torch.stack([judged_by(fit, left) for fit, left in zip(fits, folds.left, strict=True)])


def nominal_errors(folds: Folds, model: Model, divergence: Prior) -> Tensor:
    """The same of the nominal robot, with friction as least squares has it."""
    phi, out = divergence.nominal.flatten(), []
    for seen, left in zip(folds.seen, folds.left, strict=True):
        parts = [
            eliminated(g, seen.inertial, t) for g, t in zip(means(seen), model.choice, strict=True)
        ]
        fit = Solution(phi, tuple(p.numbers(phi) for p in parts), model.choice)
        out.append(judged_by(fit, left))
    return torch.stack(out)


def judged_by(fit: Solution, left: Normal) -> Tensor:
    """Mean square errors of a fit in other data, `[num_dof]`."""
    each = zip(means(left), fit.numbers, fit.choice, strict=True)
    return torch.stack([error_of(g, fit.phi, x, t) for g, x, t in each])


@dataclass
class Reader:
    """Motions of a log, kept from the first pass where they are few."""

    mech: Mechanism
    log: Log
    settings: Settings
    faults: Faults
    kept: list[Motion] | None = None
    counted: bool = False

    def __call__(self) -> Iterable[Motion]:
        """All motions, in order of time."""
        if self.kept is not None:
            yield from self.kept
            return
        kept, few, count = [], True, 0
        faults = Faults() if self.counted else self.faults
        for motion in motions(self.mech, self.log, self.settings, faults):
            count += len(motion)
            few = few and count <= KEPT
            kept = [*kept, motion] if few else []
            yield motion
        self.counted = True
        self.kept = kept if few else None


def enough(log: Log, mech: Mechanism, normal: Normal, settings: Settings) -> None:
    """Refuse a log that says too little.

    Raises:
        FitError: fewer independent forces than parameters, a joint without any, or too few folds.
    """
    total = normal.count.sum(0)
    quiet = [j for j, n in zip(dof_names(mech), total.tolist(), strict=True) if n == 0]
    if quiet:
        raise FitError(
            f"{log.name}: no sample of joint {quiet[0]!r} is left.\n"
            f"The filter of {settings.cutoff:.3g} Hz needs {2 * settings.states.reach / settings.rate:.3g} s "
            "without a gap on each side, and forces below their limit.\n"
            "Log more, or pass a higher cutoff."
        )
    if int((normal.count > 0).all(1).sum()) < 2:
        raise FitError(
            f"{log.name}: all samples of a joint lie in one stretch of {len(normal.count)}.\n"
            "Cross-validation leaves out one stretch and needs another.\n"
            "Log more, or pass another number of folds."
        )


def _terms(mech: Mechanism, learn: Learn) -> tuple[tuple[Term, ...], dict[int, tuple[int, ...]]]:
    """All terms there are, and for each dof whose terms are given their places."""
    if learn is None:
        given: dict[str, Sequence[Term]] = {}
    elif isinstance(learn, Mapping):
        given = dict(learn)
    else:
        given = {name: learn for name in mech.joint_names}
    for name, some in given.items():
        if name not in mech.joint_names:
            raise FitError(unknown_name("joint", name, mech.joint_names))
        for term in some:
            if not isinstance(term, Term):
                raise FitError(
                    f"{term!r} of joint {name!r} is no term.\n"
                    "Forces of joints are terms of torchsko.learn.friction, with parentheses.\n"
                    'Type learn={"' + name + '": [Viscous(), SmoothCoulomb(0.05), Offset()]}, say.'
                )
    every = tuple(dict.fromkeys([*LIBRARY, *(term for some in given.values() for term in some)]))
    places = {
        j: tuple(sorted(every.index(term) for term in some))
        for name, some in given.items()
        for j in range(mech.num_dof)[mech.dof_slice(name)]
    }
    return every, places


def _check(mech: Mechanism, method: str, prior: float | None, folds: int) -> None:
    """Refuse options out of range, by name."""
    if method not in METHODS:
        raise FitError(unknown_name("method", method, METHODS))
    if mech.batch_shape:
        raise FitError(
            f"{mech.name!r} is {mech.batch_shape.numel()} robots.\n"
            "A log is one robot's.\nPass one, without batch dimensions."
        )
    if prior is not None and not (isinstance(prior, Real) and 0 < prior < math.inf):
        raise FitError(
            f"prior is {prior!r}.\nIt is a positive number: a small one leaves all to the data.\n"
            "Pass prior=1e-6, say, or leave it out: cross-validation chooses it."
        )
    if not (isinstance(folds, Integral) and folds >= 2):
        raise FitError(
            f"folds is {folds!r}.\nEach stretch of time is left out once, so there are two at least.\n"
            "Pass folds=5, the default."
        )
