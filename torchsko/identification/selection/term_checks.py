"""Checks of selected terms: identifiability, size, significance, and terms that cancel."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.friction import Offset, Term, Viscous
from torchsko.identification.friction.candidates import CANDIDATE_TERMS, DEFAULT_TERMS
from torchsko.identification.regression.elimination import mean_equations
from torchsko.identification.regression.normal_equations import NormalEquations, RegressionProblem
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import (
    ModelStructure,
    Solution,
    TermChoice,
    solve_physical,
)
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.identification.uncertainty.identifiability import (
    unidentifiable_combinations,
    with_infinite_std,
)
from torchsko.identification.uncertainty.least_squares_uncertainty import robust_uncertainty
from torchsko.identification.uncertainty.residuals import compute_residuals

FRICTION = (Viscous(), *(term for term in CANDIDATE_TERMS if term.friction))
"""Friction that all joints have."""

MAX_CANCELLED_SHARE = 0.5
"""Largest share of the force of one term that another term may cancel."""


@dataclass(frozen=True, eq=False)
class TermChecks:
    """Checks of the terms of a model on the whole log.

    Attributes:
        problem: regression problem.
        equations: normal equations of the whole log as one fold.
        motions: motions for residuals.
        prior: divergence from the nominal robot.
        named: dofs whose terms are given, which are not checked.
        largest: largest magnitudes of the filtered basis functions, and last of the measured force,
            `[num_dof, terms + 1]`.
    """

    problem: RegressionProblem
    equations: NormalEquations
    motions: Sequence[FilteredMotion]
    prior: EntropicPrior
    named: Collection[int]
    largest: Tensor

    @classmethod
    def of(
        cls, problem: RegressionProblem, equations: NormalEquations,
        motions: Sequence[FilteredMotion], prior: EntropicPrior, named: Collection[int],
    ) -> TermChecks:  # fmt: skip
        """Prepare the checks of a log."""
        columns = slice(len(problem.base), None)
        rows = [
            X[..., columns].abs().amax(0) for _, X, _ in problem.filtered_rows(motions) if len(X)
        ]
        return cls(problem, equations, motions, prior, named, torch.stack(rows).amax(0))

    def _unidentifiable_rotors(self, model: ModelStructure, choice: TermChoice) -> list[int | None]:
        """Index of the rotor inertia of each dof that the log cannot separate from other parameters."""
        shares = unidentifiable_combinations(self.equations, model, choice)
        unknown = (shares > 0).any(0)[len(self.problem.base) :].split([len(x) for x in choice])
        rotors: list[int | None] = []
        for chosen, some in zip(choice, unknown, strict=True):
            pairs = zip(chosen, some.tolist(), strict=True)
            rotors.append(next((k for k, x in pairs if x and self.problem.terms[k].armature), None))
        return rotors

    def _without_offsets(self, choice: TermChoice) -> TermChoice:
        """Terms of each dof without its offset."""
        is_offset = [isinstance(x, Offset) for x in self.problem.terms]
        return tuple(tuple(k for k in x if not is_offset[k]) for x in choice)

    def _stays(self, model: ModelStructure, choice: TermChoice) -> list[list[bool]]:
        """True for terms that may depend on the prior of the inertias alone.

        These are friction, because short logs determine none without the prior; rotors, because bodies would
        need mass for their inertia; and the offset of a dof whose rotor is identifiable without offsets.
        """
        tied = self._unidentifiable_rotors(model, choice)
        alone = self._unidentifiable_rotors(model, self._without_offsets(choice))
        stays = []
        for chosen, rotor, rotor_alone in zip(choice, tied, alone, strict=True):
            pair = rotor is not None and rotor_alone is None
            terms = [self.problem.terms[k] for k in chosen]
            stays.append(
                [
                    x in FRICTION or bool(x.armature) or (pair and isinstance(x, Offset))
                    for x in terms
                ]
            )
        return stays

    def supported(self, model: ModelStructure) -> ModelStructure:
        """Remove one term of each dof that the whole log does not support.

        A term is removed if its standard error exceeds its coefficient, if its force exceeds both the effort
        limit of the joint and the largest force of the log, or if it cancels most of the force of another
        term. Terms that may depend on the prior of the inertias alone stay.
        """
        problem, equations = self.problem, self.equations
        solution = solve_physical(equations, model, self.prior, problem.terms)
        pairs = enumerate(zip(model.choice, solution.choice, strict=True))
        choice = tuple(a if j in self.named else b for j, (a, b) in pairs)
        residuals = compute_residuals(problem, self.motions, solution)
        # Standard errors of the fit include offsets that selection removed.
        wide = solution.with_term(problem.terms.index(Offset()), self.named)
        std = robust_uncertainty(problem, equations, self.motions, model, wide, residuals)
        shares = unidentifiable_combinations(equations, model, solution.choice)
        std = replace(
            std,
            term_std=tuple(x[: len(y)] for x, y in zip(std.term_std, solution.choice, strict=True)),
        )
        std, drop = with_infinite_std(std, shares), []
        for j, stays in enumerate(self._stays(model, solution.choice)):
            unknown = torch.tensor(stays, dtype=torch.bool) & std.term_std[j].isinf()
            errors = torch.where(unknown, 0.0, std.term_std[j])
            terms = _DofTerms.of(problem, equations, solution, errors, self.largest, j)
            drop.append(terms.worst())
        return self._without(replace(model, choice=choice), drop)

    def _without(self, model: ModelStructure, drop: Sequence[int | None]) -> ModelStructure:
        """Remove one term of each dof without given terms."""
        choice = list(model.choice)
        for j, (chosen, out) in enumerate(zip(model.choice, drop, strict=True)):
            if j not in self.named:
                choice[j] = tuple(k for k in chosen if k != out)
        return replace(model, choice=tuple(choice))


@dataclass(frozen=True, eq=False)
class _DofTerms:
    """Fitted terms of one dof.

    Attributes:
        terms: the terms.
        chosen: their indices in the problem.
        z_score: magnitudes of the coefficients over their standard errors.
        largest: largest force of each term [N m or N].
        products: mean products of the forces of two terms, `[terms, terms]`; covariances for linear terms.
        force_limit: the effort limit of the joint, infinite if there is none, or the largest measured force
            if that is larger [N m or N].
    """

    terms: list[Term]
    chosen: tuple[int, ...]
    z_score: Tensor
    largest: Tensor
    products: Tensor
    force_limit: float

    @classmethod
    def of(
        cls, problem: RegressionProblem, equations: NormalEquations, solution: Solution,
        std: Tensor, largest: Tensor, dof: int,
    ) -> _DofTerms:  # fmt: skip
        """Collect the terms of a dof of a solution."""
        chosen, value, base = solution.choice[dof], solution.coefficients[dof], len(problem.base)
        index = torch.tensor(chosen, dtype=torch.long)
        G, terms = mean_equations(equations)[dof], [problem.terms[k] for k in chosen]
        effort, measured = float(problem.mech.effort_limit[dof]), float(largest[dof, -1])
        mean = G[base + problem.terms.index(Offset()), base + index]
        # An offset shifts the origin of a linear term; the two do not cancel.
        linear = torch.tensor(
            [x.linear and not isinstance(x, Offset) for x in terms], dtype=torch.bool
        )
        centered = linear[:, None] | linear
        covariance = G[base + index[:, None], base + index]
        covariance = covariance - torch.where(centered, mean[:, None] * mean, 0.0)
        return cls(
            terms, chosen, value.abs() / torch.stack([*std, value.new_ones(())])[:-1].clamp_min(1e-300),
            (value * largest[dof, index]).abs(), value[:, None] * covariance * value,
            max(effort, measured) if effort > 0 else torch.inf,
        )  # fmt: skip

    def worst(self) -> int | None:
        """Index of the least important of the unsupported terms; None if all are supported."""
        bad = (self.z_score <= 1) | (self.largest > self.force_limit)
        for a, b in self._canceling_pairs():
            bad[min(a, b, key=self._rank)] = True
        unsupported = bad.nonzero()[:, 0].tolist()
        return self.chosen[min(unsupported, key=self._rank)] if unsupported else None

    def _rank(self, k: int) -> tuple[int, float]:
        """Importance of a term: friction before other default terms and further terms; then its z-score."""
        term = self.terms[k]
        importance = (term in DEFAULT_TERMS) + (term in FRICTION)
        return importance, float(self.z_score[k])

    def _canceling_pairs(self) -> list[tuple[int, int]]:
        """Pairs of terms of which one cancels most of the other."""
        size = self.products.diagonal()
        total = size[:, None] + size + 2 * self.products
        larger = torch.maximum(size[:, None], size)
        cancels = total < (1 - MAX_CANCELLED_SHARE) ** 2 * larger
        pairs = (cancels & (larger > 0)).triu(1).nonzero().tolist()
        return [(a, b) for a, b in pairs]
