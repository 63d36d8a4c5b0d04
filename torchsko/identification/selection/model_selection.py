"""Model selection by cross-validation: terms of each dof, weights of dofs, and the weight of the prior."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchsko.identification.friction import Coulomb, Offset, Term, Viscous
from torchsko.identification.friction.candidates import DEFAULT_TERMS
from torchsko.identification.regression.elimination import schur_complement
from torchsko.identification.regression.least_squares import fit_base_parameters
from torchsko.identification.regression.normal_equations import RegressionProblem
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import ModelStructure, Solution
from torchsko.identification.selection.cross_validation import (
    Folds,
    fit_folds,
    mean_square_errors,
    one_standard_error_rule,
    select_prior_weight,
)
from torchsko.identification.selection.forward_selection import (
    select_terms,
    selection_variance,
    subset_scores,
)
from torchsko.identification.selection.term_checks import TermChecks
from torchsko.identification.uncertainty.residuals import relative_error

MAX_ROUNDS = 3
"""Largest number of selection rounds; the choice rarely changes after the first."""

MIN_RELATIVE_VARIANCE = 1e-12
"""Smallest error variance of a dof, relative to the mean square of measured and predicted forces. Sums of
squares round at 1e-16. With a larger weight this rounding would outweigh the smallest prior."""

BASIC_FRICTION = (Viscous(), Coulomb(), Offset())
"""Terms of the ordinary least-squares model."""

NOMINAL_WEIGHT = 1e6
"""Weight of the prior with which a fit keeps the nominal inertias."""


MAX_EXCESS = 0.05
"""Excess of the prediction error by cross-validation up to which the selected model is preferred."""


SelectionState = tuple[ModelStructure, Tensor, list[Solution] | None]
"""A model, its mean square test errors `[folds, num_dof]`, and its fits of the folds."""


class ModelSelection:
    """Alternating selection of terms, weights of dofs and the weight of the prior.

    Attributes:
        model: best memoryless model so far.
        memory: best model with memory; None if no friction with memory predicts better.
        squares: mean square test errors of the last model, `[folds, num_dof]`.
        fits: its fits of the folds, which start the next fits.
        known: fits of the folds by weight of the prior, which start the next ones.
        sizes: mean squares that bound the error variances, from `mean_square_scale`, `[num_dof]`.
        spread: standard deviations of the forces, `[num_dof]`.
        variances: variances of the coefficients by the selection of `model`, `[num_dof, terms]`.
    """

    def __init__(
        self,
        problem: RegressionProblem,
        folds: Folds,
        divergence: EntropicPrior,
        named: Mapping[int, tuple[int, ...]],
        library: Sequence[Term],
        prior: float | None,
        progress: Callable[[str, float], None],
        supports: Callable[[Term], bool],
        checks: TermChecks,
    ) -> None:
        """Start with the default terms of each dof, and weights from least squares.

        Args:
            problem: regression problem.
            folds: cross-validation folds.
            divergence: divergence from the nominal robot.
            named: indices of the terms that are given, by dof.
            library: candidate terms.
            prior: weight of the prior; None to select it.
            progress: called with the current task and the share that is done.
            supports: filter of the candidates.
            checks: checks of selected terms.
        """
        self.folds, self.divergence, self.named = folds, divergence, named
        self.checks = checks
        self.prior, self.progress, self.terms = prior, progress, problem.terms
        self.names = problem.mech.dof_names
        self.fits: list[Solution] | None = None
        self.known: dict[float, list[Solution]] = {}
        dofs = range(problem.mech.num_dof)
        self.allowed = [
            [k for k, x in enumerate(self.terms) if x in library and supports(x)] for _ in dofs
        ]
        initial = [tuple(k for k in x if self.terms[k] in DEFAULT_TERMS) for x in self.allowed]
        choice = tuple(memoryless(self.terms, named.get(j, initial[j])) for j in dofs)
        plain = least_squares_structure(problem)
        fits = (fit_base_parameters(x, plain, problem.base) for x in folds.train_equations)
        self.squares = cross_validated_errors(fits, folds)
        self.sizes = mean_square_scale(folds, divergence)
        self.spread = force_spread(folds, problem)
        scale = inverse_variance_weights(self.squares.mean(0), self.sizes)
        self.model = ModelStructure(choice, scale, 1.0 if prior is None else prior)
        self.memory: ModelStructure | None = None
        self.variances = torch.zeros(len(dofs), len(self.terms), dtype=torch.float64)

    def run(self) -> None:
        """Choose terms, weights of dofs and the prior's weight in turn until the terms do not change.

        An interrupt leaves the best model so far.
        """
        self._fit()
        default, before = self._state(), None
        for turn in range(MAX_ROUNDS):
            if self.model.choice == before:
                break
            before = self.model.choice
            self._update_scale()
            self._select([[k for k in x if not self.terms[k].memory] for x in self.allowed], turn)
            self._fit()
        self._update_scale()
        self._check()
        self._prefer_simple(default)
        self.variances = self._selection_variances()
        self._drop_unstable()
        self._add_memory()

    def _selection_variances(self) -> Tensor:
        """Variances of coefficients over models that predict about as well, `[num_dof, terms]`."""
        rows = []
        for dof, allowed in enumerate(self.allowed):
            chosen, none = self.model.choice[dof], self.spread.new_zeros(len(self.terms))
            if self.fits is None or dof in self.named or not chosen:
                rows.append(none)
                continue
            plain = [k for k in allowed if not self.terms[k].memory]
            scores = subset_scores(self.folds, self.model, self.divergence, self.fits, dof)
            rows.append(selection_variance(scores, chosen, plain, self.terms))
        return torch.stack(rows)

    def _drop_unstable(self) -> None:
        """Remove selected terms whose coefficient is within its deviation over similar models."""
        choice, fits = list(self.model.choice), self.fits or []
        for dof, chosen in enumerate(choice):
            if dof not in self.named:
                size = torch.zeros(len(self.terms), dtype=torch.float64)
                for fit in fits:
                    size[list(fit.choice[dof])] += fit.coefficients[dof] / len(fits)
                unstable = size.square() <= self.variances[dof]
                choice[dof] = tuple(
                    k for k in chosen if self.terms[k] in DEFAULT_TERMS or not unstable[k]
                )
        if tuple(choice) != self.model.choice:
            self.model = replace(self.model, choice=tuple(choice))
            self._fit()

    def _prefer_simple(self, default: SelectionState) -> None:
        """Choose the simplest model within one standard error of the best one.

        The models are the nominal robot with friction, default terms and the selected model. Intervals of a
        short log are alike, and the best of many models may be worse than the nominal robot at other motions.

        The checks of `_check` may remove terms of short logs until the rest predicts nothing. Default offsets
        are left out, because they cancel dry friction where a joint moves in one direction.
        """
        found = [self._state()]
        if self._error(found[0]) > (1 + MAX_EXCESS) * self._error(default):
            terms = [x for x in DEFAULT_TERMS if not isinstance(x, Offset)]
            self.model, self.fits = self._with_terms(terms), None
            self._fit()
            found.insert(0, self._state())
        if self.prior is None:
            found.insert(0, self._nominal_robot())
        best = self._simplest([squares for _, squares, _ in found])
        self.model, self.squares, self.fits = found[best]

    def _simplest(self, squares: Sequence[Tensor]) -> int:
        """Index of the first of several models whose error is within one standard error of the best."""
        scores = [relative_error(x.sqrt(), self.spread).nanmean(1) for x in squares]
        return one_standard_error_rule(torch.stack(scores))

    def _nominal_robot(self) -> SelectionState:
        """The nominal robot, with basic friction or with the default terms."""
        found = []
        for terms in (BASIC_FRICTION, DEFAULT_TERMS):
            model = replace(self._with_terms(terms), prior_weight=NOMINAL_WEIGHT)
            starts = [fit_nominal_terms(x, model, self.divergence) for x in self.folds.train]
            fits = fit_folds(self.folds, model, self.divergence, self.terms, starts)
            found.append((model, *fits))
        return min(found, key=self._error)

    def _error(self, state: SelectionState) -> float:
        """Mean relative error of a model by cross-validation."""
        return mean_relative_error(state[1], self.spread)

    def _with_terms(self, terms: Sequence[Term]) -> ModelStructure:
        """The model with these terms at all dofs without given terms, as far as they are candidates."""
        basic = [tuple(k for k in x if self.terms[k] in terms) for x in self.allowed]
        given = (self.named.get(j, x) for j, x in enumerate(basic))
        return replace(self.model, choice=tuple(memoryless(self.terms, x) for x in given))

    def _state(self) -> SelectionState:
        """The present model with its errors and fits."""
        return self.model, self.squares, self.fits

    def _check(self) -> None:
        """Remove terms that the log does not support, and select the weight of the prior without them."""
        while True:
            before, self.model = self.model, self.checks.supported(self.model)
            if self.model.choice == before.choice:
                return
            self._fit()

    def _add_memory(self) -> None:
        """Exchange friction for friction with memory where that predicts better."""
        plain, self.model = self.model, with_named(self.model, self.named)
        before = self.squares
        try:
            self._select(
                [[k for k in x if self.terms[k].memory] for x in self.allowed], MAX_ROUNDS - 1
            )
            if any(self.terms[k].memory for chosen in self.model.choice for k in chosen):
                self._fit()
                self._update_scale()
                self._check()
                if self._has_named_memory() or self._simplest([before, self.squares]):
                    self.memory = self.model
        finally:
            self.model = plain  # also after an interrupt

    def _has_named_memory(self) -> bool:
        """True if the caller chose friction with memory for a dof."""
        return any(self.terms[k].memory for chosen in self.named.values() for k in chosen)

    def _select(self, candidates: Sequence[Sequence[int]], turn: int) -> None:
        """Select the terms of each dof without given terms."""
        solved = False
        for dof, allowed in enumerate(candidates):
            if dof not in self.named and allowed:
                share = (turn + dof / len(candidates)) / MAX_ROUNDS
                self.progress(f"selecting friction of {self.names[dof]}", 0.2 + 0.6 * share)
                before = self.model.choice
                self.model, self.fits = select_terms(
                    self.folds, self.model, self.divergence, self.terms, allowed, self.fits, dof,
                    solved=solved,
                )  # fmt: skip
                solved = self.model.choice == before

    def _update_scale(self) -> None:
        """Weight each dof by the inverse variance of its test error."""
        scale = inverse_variance_weights(self.squares.mean(0), self.sizes)
        self.model = replace(self.model, scale=scale)

    def _fit(self) -> None:
        """Fit the folds, and select the weight of the prior unless it is given."""
        problem = self.folds, self.model, self.divergence, self.terms
        if self.prior is None:
            self.model, self.squares, self.fits, self.known = select_prior_weight(
                *problem, self.known
            )
        else:
            self.squares, self.fits = fit_folds(*problem)


def memoryless(terms: Sequence[Term], chosen: Sequence[int]) -> tuple[int, ...]:
    """Indices of terms, each with memory replaced by its steady state."""
    return tuple(dict.fromkeys(terms.index(terms[k].memoryless) for k in chosen))


def with_named(model: ModelStructure, named: Mapping[int, tuple[int, ...]]) -> ModelStructure:
    """A model with the given terms of dofs, also if they have memory."""
    choice = tuple(named.get(j, x) for j, x in enumerate(model.choice))
    return replace(model, choice=choice)


def force_spread(folds: Folds, problem: RegressionProblem) -> Tensor:
    """Standard deviations of the measured forces, `[num_dof]`."""
    G, offset = folds.test.mean(0), len(problem.base) + problem.terms.index(Offset())
    mean_square = G[:, offset, -1].square() / G[:, offset, offset].clamp_min(1e-300)
    return (G[:, -1, -1] - mean_square).clamp_min(0).sqrt()


def mean_relative_error(squares: Tensor, spread: Tensor) -> float:
    """Mean over dofs of the prediction error over the spread of the force, as in the table of a fit.

    Args:
        squares: mean square test errors, `[folds, num_dof]`.
        spread: standard deviations of the forces, `[num_dof]`.
    """
    return float(relative_error(squares.mean(0).sqrt(), spread).nanmean())


def mean_square_scale(folds: Folds, divergence: EntropicPrior) -> Tensor:
    """Mean squares of the values whose difference is a dof's error, `[num_dof]`: the scale of its rounding.

    These are the measured force without springs and armature, and the forces of nominal base parameters. They
    cancel where no drive acts.
    """
    squares = folds.test.diagonal(dim1=-2, dim2=-1).mean(0)
    beta = divergence.base_map @ divergence.nominal.flatten()
    return squares[:, -1] + squares[:, : len(beta)] @ beta.square()


def inverse_variance_weights(squares: Tensor, size: Tensor) -> Tensor:
    """Weights of dofs, one over the mean square error, bounded for dofs without noise or force.

    Forces of dofs may differ by orders of magnitude, so each dof has its own bound.

    Args:
        squares: mean square errors, `[num_dof]`.
        size: scale of their rounding, from `mean_square_scale`, `[num_dof]`.
    """
    smallest = torch.where(size > 0, MIN_RELATIVE_VARIANCE * size, squares.max())
    return 1 / squares.maximum(smallest.clamp_min(1e-300))


def least_squares_structure(problem: RegressionProblem) -> ModelStructure:
    """Structure of ordinary least squares with basic friction, and armature where that is a term."""
    dofs = problem.mech.num_dof
    basic = [k for k, term in enumerate(problem.terms) if term in BASIC_FRICTION]
    armature = [k for k, term in enumerate(problem.terms) if term.armature]
    choice = tuple(
        (*basic, *armature) if j in problem.rotor_dofs else (*basic,) for j in range(dofs)
    )
    return ModelStructure(choice, torch.ones(dofs, dtype=torch.float64), 0.0)


def cross_validated_errors(fits: Iterable[Solution], folds: Folds) -> Tensor:
    """Mean square test errors of solutions of the training equations of each fold, `[folds, num_dof]`."""
    pairs = zip(fits, folds.test, strict=True)
    return torch.stack([mean_square_errors(fit, G) for fit, G in pairs])


def fit_nominal_terms(G: Tensor, model: ModelStructure, divergence: EntropicPrior) -> Solution:
    """Fit the terms of a model with the inertial parameters of the nominal robot.

    Args:
        G: mean equations, `[num_dof, columns, columns]`.
        model: terms of each dof.
        divergence: prior at the nominal robot.
    """
    phi = divergence.nominal.flatten()
    beta = divergence.base_map @ phi
    parts = (schur_complement(g, len(beta), x) for g, x in zip(G, model.choice, strict=True))
    return Solution(phi, beta, tuple(p.coefficients(beta) for p in parts), model.choice)
