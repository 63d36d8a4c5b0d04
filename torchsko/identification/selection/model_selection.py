"""The choices of a fit, by cross-validation: terms, weights of dofs, the prior's weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchsko.identification.friction import Coulomb, Offset, Term, Viscous
from torchsko.identification.friction.candidates import INITIAL_TERMS
from torchsko.identification.regression.elimination import schur_complement
from torchsko.identification.regression.least_squares import fit_base_parameters
from torchsko.identification.regression.normal_equations import NormalEquations, RegressionProblem
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import ModelStructure, Solution
from torchsko.identification.selection.cross_validation import (
    Folds,
    fit_folds,
    mean_square_errors,
    select_prior_weight,
    select_terms,
)
from torchsko.verbs.base_parameters import BaseParameters


class ModelSelection:
    """Cross-validation: a model that gets better, at every moment the best so far.

    Attributes:
        model: so far.
        squares: its errors in what was left out, `[folds, num_dof]`.
        fits: of each fold, to begin at.
        sizes: mean squares of what forces are sums of, `[num_dof]`.
    """

    def __init__(
        self,
        problem: RegressionProblem,
        folds: Folds,
        base: BaseParameters,
        divergence: EntropicPrior,
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
        self.dofs = problem.mech.num_dof
        self.names = problem.mech.dof_names
        self.fits: list[Solution] | None = None
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
        plain = least_squares_structure(problem)
        first = cross_validated_errors(
            folds, folds, lambda some: fit_base_parameters(some, plain, base)
        )
        self.sizes = mean_square_scale(folds, divergence)
        scale = inverse_variance_weights(first.mean(0), self.sizes)
        self.model = ModelStructure(choice, scale, 1.0 if prior is None else prior)
        self.squares = first

    def run(self) -> None:
        """Choose terms, weights of dofs and the prior's weight in turn until nothing changes.

        An interrupt leaves the best model so far.
        """
        self._judge()
        before = None
        for turn in range(MAX_ROUNDS):
            if self.model.choice == before:
                break
            before = self.model.choice
            self._update_scale()
            for dof in range(self.dofs):
                if dof not in self.named:
                    share = (turn + dof / self.dofs) / MAX_ROUNDS
                    self.say(f"selecting friction of {self.names[dof]}", 0.2 + 0.6 * share)
                    self.model, self.fits = select_terms(
                        self.folds, self.model, self.divergence, self.terms, self.allowed[dof],
                        self.fits, dof,
                    )  # fmt: skip
            self._judge()
        self._update_scale()

    def _update_scale(self) -> None:
        """Weigh each dof by the inverse variance of its prediction error."""
        scale = inverse_variance_weights(self.squares.mean(0), self.sizes)
        self.model = replace(self.model, scale=scale)

    def _judge(self) -> None:
        """Choose the prior's weight, and see how good the model is."""
        if self.prior is None:
            self.model, self.squares, self.fits = select_prior_weight(
                self.folds, self.model, self.divergence, self.terms
            )
        else:
            self._see()

    def _see(self) -> None:
        """How good the model is."""
        self.squares, self.fits = fit_folds(self.folds, self.model, self.divergence, self.terms)


MAX_ROUNDS = 3
"""Rounds of choosing terms, weights and prior, at most; the choice seldom changes after the first."""


MIN_RELATIVE_VARIANCE = 1e-12
"""Mean square error, of the mean square of what it is a difference of, that counts as no less: sums of
squares are rounded to 1e-16, and with a larger weight this rounding would outweigh the smallest prior, and
bend the objective."""


def mean_square_scale(folds: Folds, divergence: EntropicPrior) -> Tensor:
    """Mean squares of what each dof's error is a difference of, `[num_dof]`: what rounding is a part of.

    These are the force that was measured, less springs and armature, and those of base parameters, as the
    nominal robot has them: where nothing drives a joint, they cancel.
    """
    squares = folds.test.diagonal(dim1=-2, dim2=-1).mean(0)
    beta = divergence.base_map @ divergence.nominal.flatten()
    return squares[:, -1] + squares[:, : len(beta)] @ beta.square()


def inverse_variance_weights(squares: Tensor, size: Tensor) -> Tensor:
    """One over each dof's mean square error; bounded, where a log has no noise, or a joint no force.

    Dofs may differ in their forces as a lift and a finger do: no bound is of another dof's.

    Args:
        squares: mean square errors, `[num_dof]`.
        size: of what they are differences of, `[num_dof]`.
    """
    least = torch.where(size > 0, MIN_RELATIVE_VARIANCE * size, squares.max())
    return 1 / squares.maximum(least.clamp_min(1e-300))


BASIC_FRICTION = (Viscous(), Coulomb(), Offset())
"""Friction that any joint may have."""


def least_squares_structure(problem: RegressionProblem) -> ModelStructure:
    """Ordinary least squares: viscous and dry friction and an offset for each joint, rotors set aside."""
    dofs = problem.mech.num_dof
    plain = [k for k, term in enumerate(problem.terms) if term in BASIC_FRICTION]
    more = [k for k, term in enumerate(problem.terms) if term.armature]
    choice = tuple((*plain, *more) if j in problem.rotor_dofs else (*plain,) for j in range(dofs))
    return ModelStructure(choice, torch.ones(dofs, dtype=torch.float64), 0.0)


def cross_validated_errors(
    used: Folds, plain: Folds, solve: Callable[[NormalEquations], Solution]
) -> Tensor:
    """Mean square errors of a method in what was left out, `[folds, num_dof]`.

    Args:
        used: equations that the method takes.
        plain: to judge by.
        solve: the method.
    """
    each = zip(used.train_equations, plain.test, strict=True)
    return torch.stack([mean_square_errors(solve(seen), test) for seen, test in each])


def cross_validated_nominal_errors(
    folds: Folds, model: ModelStructure, divergence: EntropicPrior
) -> Tensor:
    """The same of the nominal robot, with friction as least squares has it."""
    phi, out = divergence.nominal.flatten(), []
    beta = divergence.base_map @ phi
    for train, test in zip(folds.train, folds.test, strict=True):
        each = zip(train, model.choice, strict=True)
        parts = [schur_complement(G, len(beta), chosen) for G, chosen in each]
        fit = Solution(phi, beta, tuple(p.coefficients(beta) for p in parts), model.choice)
        out.append(mean_square_errors(fit, test))
    return torch.stack(out)
