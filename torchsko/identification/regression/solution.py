"""The physically consistent fit of a model whose terms are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """What a fit has decided of its form.

    Attributes:
        choice: terms of each dof.
        scale: one over the variance of each dof's error, `[num_dof]`.
        prior_weight: of the divergence from the nominal robot, against the mean weighted square error.
    """

    choice: TermChoice
    scale: Tensor
    prior_weight: float


@dataclass(frozen=True, eq=False)
class Solution:
    """Numbers that were fitted.

    Attributes:
        phi: inertial, `[inertial]`.
        beta: base parameters of these, `[base]`.
        numbers: of the terms of each dof.
        choice: terms of each dof that were kept: friction that came out negative is left out.
    """

    phi: Tensor
    beta: Tensor
    numbers: tuple[Tensor, ...]
    choice: TermChoice

    def prediction_error(self, X: Tensor) -> Tensor:
        """Predicted less measured force of columns `[samples, num_dof, columns]`: `[samples, num_dof]`."""
        return torch.einsum("sjc,jc->sj", X, self.residual_weights(X.shape[-1]))

    def residual_weights(self, columns: int) -> Tensor:
        """What takes so many columns of each dof to predicted less measured force, `[num_dof, columns]`."""
        base, rows = len(self.beta), []
        for chosen, x in zip(self.choice, self.numbers, strict=True):
            S = torch.tensor(chosen, dtype=torch.long, device=x.device)
            terms = x.new_zeros(columns - base - 1).index_put((S,), x)
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
    """The physically consistent fits of a model to several normal equations, side by side.

    Friction that comes out negative is left out, and the rest fitted again.

    Args:
        G: means of squares, `[problems, num_dof, columns, columns]`.
        model: what is fitted.
        prior: the nominal robot.
        terms: that the model chose from.
        starts: of each problem where to begin, and its terms; the nominal robot and the model's if left out.
    """
    choices = [model.choice] * len(G) if starts is None else [start.choice for start in starts]
    phi = {} if starts is None else {k: start.phi for k, start in enumerate(starts)}
    found: dict[int, Solution] = {}
    totals = weighted_sum(G, model.scale)
    while len(found) < len(G):
        at = [k for k in range(len(G)) if k not in found]
        parts = eliminate_terms_of_problems(G, len(prior.base_map), {k: choices[k] for k in at})
        each = (
            schur_complement_over_dofs(totals[k], model.scale, some) for k, some in parts.items()
        )
        A, c = map(torch.stack, zip(*each, strict=True))
        start = torch.stack([phi[k] for k in at]) if phi else None
        best, _ = entropic_least_squares(A, c, prior, model.prior_weight, start)
        for x, (k, some) in zip(best, parts.items(), strict=True):
            beta = prior.base_map @ x
            numbers = tuple(part.numbers(beta) for part in some)
            left = tuple(map(partial(_drop_most_negative, terms), choices[k], numbers))
            if left == choices[k]:
                found[k] = Solution(x, beta, numbers, left)
            choices[k], phi[k] = left, x
    return [found[k] for k in range(len(G))]


def _drop_most_negative(
    terms: Sequence[Term], chosen: tuple[int, ...], numbers: Tensor
) -> tuple[int, ...]:
    """A dof's terms without the most negative of those that are friction."""
    low = [(x, k) for x, k in zip(numbers.tolist(), chosen, strict=True)
           if terms[k].nonnegative and x < 0]  # fmt: skip
    if not low:
        return chosen
    worst = min(low)[1]
    return tuple(k for k in chosen if k != worst)
