"""Physically consistent fit of inertial parameters and friction coefficients, for a given model structure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchsko.identification.friction import Term
from torchsko.identification.regression.elimination import (
    TermChoice,
    eliminate_terms_of_problems,
    mean_equations,
    schur_complement_over_dofs,
    weighted_sum,
)
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.regression.physical_least_squares import (
    EntropicPrior,
    entropic_least_squares,
)


@dataclass(frozen=True, eq=False)
class ModelStructure:
    """Choices that define a fit.

    Attributes:
        choice: indices of the terms of each dof.
        scale: weights of the dofs, one over the error variance of each, `[num_dof]`.
        prior_weight: weight of the divergence from the nominal robot, relative to the mean weighted square
            error.
    """

    choice: TermChoice
    scale: Tensor
    prior_weight: float


@dataclass(frozen=True, eq=False)
class Solution:
    """Fitted parameters.

    Attributes:
        phi: inertial parameters, `[inertial]`.
        beta: base parameters, `[base]`.
        coefficients: coefficients of the terms of each dof.
        choice: indices of the terms of each dof, without friction terms whose coefficient was negative.
    """

    phi: Tensor
    beta: Tensor
    coefficients: tuple[Tensor, ...]
    choice: TermChoice

    def with_term(self, term: int, given: Collection[int]) -> Solution:
        """Add a term with coefficient 0 to the dofs that are not given and do not have it.

        Standard errors of masses and terms then include the uncertainty of offsets that selection removed.
        """
        choice, coefficients = list(self.choice), list(self.coefficients)
        for j, chosen in enumerate(self.choice):
            if j not in given and term not in chosen:
                choice[j] = (*chosen, term)
                coefficients[j] = torch.cat([coefficients[j], coefficients[j].new_zeros(1)])
        return replace(self, choice=tuple(choice), coefficients=tuple(coefficients))

    def prediction_error(self, X: Tensor) -> Tensor:
        """Predicted minus measured force `[samples, num_dof]` of columns `[samples, num_dof, columns]`."""
        return torch.einsum("sjc,jc->sj", X, self.residual_weights(X.shape[-1]))

    def residual_weights(self, columns: int) -> Tensor:
        """Weights that map columns to predicted minus measured force, `[num_dof, columns]`."""
        base, rows = len(self.beta), []
        for chosen, x in zip(self.choice, self.coefficients, strict=True):
            index = torch.tensor(chosen, dtype=torch.long, device=x.device)
            terms = x.new_zeros(columns - base - 1).index_put((index,), x)
            rows.append(torch.cat([self.beta, terms, -x.new_ones(1)]))
        return torch.stack(rows)


def solve_physical(
    normal: NormalEquations,
    model: ModelStructure,
    prior: EntropicPrior,
    terms: Sequence[Term],
    start: Solution | None = None,
) -> Solution:
    """Fit a model to the normal equations of one fold; see `solve_physical_batch`."""
    starts = None if start is None else [start]
    return solve_physical_batch(mean_equations(normal)[None], model, prior, terms, starts)[0]


def solve_physical_batch(
    G: Tensor,
    model: ModelStructure,
    prior: EntropicPrior,
    terms: Sequence[Term],
    starts: Sequence[Solution] | None = None,
) -> list[Solution]:
    """Fit a model to several normal equations at once.

    Nonnegative terms with a negative coefficient are removed one by one, and the rest is refitted.

    Args:
        G: mean equations, `[problems, num_dof, columns, columns]`.
        model: structure of the fit.
        prior: divergence from the nominal robot.
        terms: terms of the problem, to which the choice refers.
        starts: initial solution and terms of each problem. Default: the nominal robot and the model's terms.
    """
    choices = [model.choice] * len(G) if starts is None else [start.choice for start in starts]
    phi = {} if starts is None else {k: start.phi for k, start in enumerate(starts)}
    solutions: dict[int, Solution] = {}
    totals = weighted_sum(G, model.scale)
    while len(solutions) < len(G):
        unsolved = [k for k in range(len(G)) if k not in solutions]
        parts = eliminate_terms_of_problems(
            G, len(prior.base_map), {k: choices[k] for k in unsolved}
        )
        equations = (
            schur_complement_over_dofs(totals[k], model.scale, part) for k, part in parts.items()
        )
        A, c = map(torch.stack, zip(*equations, strict=True))
        start = torch.stack([phi[k] for k in unsolved]) if phi else None
        minima, _ = entropic_least_squares(A, c, prior, model.prior_weight, start)
        for x, (k, part) in zip(minima, parts.items(), strict=True):
            beta = prior.base_map @ x
            coefficients = tuple(dof.coefficients(beta) for dof in part)
            remaining = tuple(map(partial(_drop_most_negative, terms), choices[k], coefficients))
            if remaining == choices[k]:
                solutions[k] = Solution(x, beta, coefficients, remaining)
            choices[k], phi[k] = remaining, x
    return [solutions[k] for k in range(len(G))]


def _drop_most_negative(
    terms: Sequence[Term], chosen: tuple[int, ...], coefficients: Tensor
) -> tuple[int, ...]:
    """Remove the most negative of a dof's nonnegative terms, if any."""
    negative = [(x, k) for x, k in zip(coefficients.tolist(), chosen, strict=True)
                if terms[k].nonnegative and x < 0]  # fmt: skip
    if not negative:
        return chosen
    worst = min(negative)[1]
    return tuple(k for k in chosen if k != worst)
