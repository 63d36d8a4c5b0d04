"""The choices of a fit, by cross-validation: terms, weights of dofs, the prior's weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchsko.identification.dof_names import dof_names
from torchsko.identification.friction import Coulomb, Offset, Term, Viscous
from torchsko.identification.friction.candidates import INITIAL_TERMS
from torchsko.identification.regression.elimination import eliminated
from torchsko.identification.regression.least_squares import base_fit
from torchsko.identification.regression.normal_equations import Normal, Problem
from torchsko.identification.regression.physical_least_squares import Prior
from torchsko.identification.regression.solution import Choice, Model, Solution
from torchsko.identification.selection.cross_validation import (
    Folds,
    chosen_weight,
    errors,
    judged_by,
    with_terms_chosen,
)
from torchsko.verbs.base_parameters import BaseParameters


class Choosing:
    """Cross-validation: a model that gets better, at every moment the best so far.

    Attributes:
        model: so far.
        squares: its errors in what was left out, `[folds, num_dof]`.
        fits: of each fold, to begin at.
        at: how many choices were made: rounds, and dofs of a round.
        before: the terms of each dof when the last round began; None before the first.
        sizes: mean squares of what forces are sums of, `[num_dof]`.
    """

    def __init__(
        self,
        problem: Problem,
        folds: Folds,
        base: BaseParameters,
        divergence: Prior,
        named: Mapping[int, tuple[int, ...]],
        library: Mapping[int, Sequence[Term]],
        prior: float | None,
        say: Callable[[str, float], None],
        able: Callable[[Term], bool] | None = None,
    ) -> None:
        """Begin with what is usual.

        Args:
            problem: what explains forces.
            folds: of cross-validation.
            base: combinations of inertial numbers that forces depend on.
            divergence: the nominal robot.
            named: places of terms that were asked for, of each dof.
            library: terms of each dof to choose from.
            prior: its weight; chosen if None.
            say: called with what is being done.
            able: which terms may be chosen; all if None.
        """
        self.folds, self.divergence, self.named = folds, divergence, named
        self.prior, self.say, self.terms = prior, say, problem.terms
        self.dofs, self.at = problem.mech.num_dof, 0
        self.names = dof_names(problem.mech)
        self.fits: list[Solution] | None = None
        self.before: Choice | None = None
        self.allowed = [
            tuple(
                k
                for k, term in enumerate(self.terms)
                if term in library[j] and (able is None or able(term))
            )
            for j in range(self.dofs)
        ]
        usual = [tuple(k for k in some if self.terms[k] in INITIAL_TERMS) for some in self.allowed]
        choice = tuple(named.get(j, usual[j]) for j in range(self.dofs))
        plain = plain_model(problem)
        first = left_errors(folds, folds, lambda some: base_fit(some, plain, base))
        self.sizes = sizes(folds, divergence)
        scale = weights(first.mean(0), self.sizes)
        self.model = Model(choice, scale, 1.0 if prior is None else prior)
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
            # Of an older file nobody knows what its round began with: one round more is run.
            self.at, self.before = state["at"], state.get("before")
            if self.at % self.dofs:
                self._see()
        if self.at % self.dofs == 0:
            self._judge()
        while self.at < TURNS * self.dofs and (
            self.at % self.dofs or self.model.choice != self.before
        ):
            if self.at % self.dofs == 0:
                self.before = self.model.choice
                self.model = replace(self.model, scale=weights(self.squares.mean(0), self.sizes))
            turn = self.at // self.dofs
            if len(self.named) < self.dofs:
                while self.at < (turn + 1) * self.dofs:
                    dof = self.at % self.dofs
                    self.say(
                        f"choosing friction of {self.names[dof]}",
                        0.2 + 0.6 * self.at / TURNS / self.dofs,
                    )
                    if dof not in self.named:
                        self.model, self.fits = with_terms_chosen(
                            self.folds, self.model, self.divergence, self.terms,
                            self.allowed[dof], self.fits, dof,
                        )  # fmt: skip
                    self.at += 1
                    keep()
            self._judge()
        self.model = replace(self.model, scale=weights(self.squares.mean(0), self.sizes))

    def _judge(self) -> None:
        """Choose the prior's weight, and see how good the model is."""
        if self.prior is None:
            self.model, self.squares, self.fits = chosen_weight(
                self.folds, self.model, self.divergence, self.terms
            )
        else:
            self._see()

    def _see(self) -> None:
        """How good the model is."""
        self.squares, self.fits = errors(self.folds, self.model, self.divergence, self.terms)


TURNS = 3
"""Rounds of choosing terms, weights and prior, at most; the choice seldom changes after the first."""


ROUNDING = 1e-12
"""Mean square error, of the mean square of what it is a difference of, that counts as no less: sums of
squares are rounded to 1e-16, and with a larger weight this rounding would outweigh the smallest prior, and
bend the objective."""


def sizes(folds: Folds, divergence: Prior) -> Tensor:
    """Mean squares of what each dof's error is a difference of, `[num_dof]`: what rounding is a part of.

    These are the force that was measured, less springs and armature, and those of base parameters, as the
    nominal robot has them: where nothing drives a joint, they cancel.
    """
    squares = folds.test.diagonal(dim1=-2, dim2=-1).mean(0)
    beta = divergence.told @ divergence.nominal.flatten()
    return squares[:, -1] + squares[:, : len(beta)] @ beta.square()


def weights(squares: Tensor, size: Tensor) -> Tensor:
    """One over each dof's mean square error; bounded, where a log has no noise, or a joint no force.

    Dofs may differ in their forces as a lift and a finger do: no bound is of another dof's.

    Args:
        squares: mean square errors, `[num_dof]`.
        size: of what they are differences of, `[num_dof]`.
    """
    least = torch.where(size > 0, ROUNDING * size, squares.max())
    return 1 / squares.maximum(least.clamp_min(1e-300))


PLAIN = (Viscous(), Coulomb(), Offset())
"""Friction that any joint may have."""


def plain_model(problem: Problem) -> Model:
    """Ordinary least squares: viscous and dry friction and an offset for each joint, rotors set aside."""
    dofs = problem.mech.num_dof
    plain = [k for k, term in enumerate(problem.terms) if term in PLAIN]
    more = [k for k, term in enumerate(problem.terms) if term.armature]
    choice = tuple((*plain, *more) if j in problem.rotors else (*plain,) for j in range(dofs))
    return Model(choice, torch.ones(dofs, dtype=torch.float64), 0.0)


def left_errors(used: Folds, plain: Folds, solve: Callable[[Normal], Solution]) -> Tensor:
    """Mean square errors of a method in what was left out, `[folds, num_dof]`.

    Args:
        used: equations that the method takes.
        plain: to judge by.
        solve: the method.
    """
    each = zip(used.seen, plain.test, strict=True)
    return torch.stack([judged_by(solve(seen), test) for seen, test in each])


def nominal_errors(folds: Folds, model: Model, divergence: Prior) -> Tensor:
    """The same of the nominal robot, with friction as least squares has it."""
    phi, out = divergence.nominal.flatten(), []
    beta = divergence.told @ phi
    for train, test in zip(folds.train, folds.test, strict=True):
        each = zip(train, model.choice, strict=True)
        parts = [eliminated(G, len(beta), chosen) for G, chosen in each]
        fit = Solution(phi, beta, tuple(p.numbers(beta) for p in parts), model.choice)
        out.append(judged_by(fit, test))
    return torch.stack(out)
