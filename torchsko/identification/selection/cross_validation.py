"""Cross-validation over time folds: prediction errors, and the weight of the prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.friction import Term
from torchsko.identification.regression.elimination import mean_equations
from torchsko.identification.regression.normal_equations import NormalEquations, complete_folds
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import (
    ModelStructure,
    Solution,
    solve_physical_batch,
)

PRIOR_WEIGHTS = tuple(10.0**k for k in range(-4, 4))
"""Candidate weights of the prior."""


@dataclass(frozen=True, eq=False)
class Folds:
    """Training and test equations of each cross-validation fold.

    Attributes:
        train_equations: normal equations without each fold.
        train: these divided by their number of samples, `[folds, num_dof, columns, columns]`.
        test: mean equations of each fold alone, `[folds, num_dof, columns, columns]`.
        count: number of equations of each dof in all folds, `[num_dof]`.
    """

    train_equations: tuple[NormalEquations, ...]
    train: Tensor
    test: Tensor
    count: Tensor

    @classmethod
    def of(cls, normal: NormalEquations, like: NormalEquations | None = None) -> Folds:
        """Split normal equations into the folds in which every dof has samples.

        Args:
            normal: equations, by fold.
            like: equations whose counts select the folds, if not `normal`.
        """
        folds = complete_folds((normal if like is None else like).count)
        train_equations = tuple(normal.without_fold(k) for k in folds)
        test = torch.stack([mean_equations(normal.of_folds([k])) for k in folds])
        train = torch.stack([mean_equations(x) for x in train_equations])
        return cls(train_equations, train, test, normal.count[folds].sum(0))


def fit_folds(
    folds: Folds,
    model: ModelStructure,
    prior: EntropicPrior,
    terms: Sequence[Term],
    starts: Sequence[Solution] | None = None,
) -> tuple[Tensor, list[Solution]]:
    """Fit each training set; returns mean square test errors `[folds, num_dof]` and the fits."""
    fits = solve_physical_batch(folds.train, model, prior, terms, starts)
    errors = [mean_square_errors(fit, G) for fit, G in zip(fits, folds.test, strict=True)]
    return torch.stack(errors), fits


def mean_square_errors(fit: Solution, G: Tensor) -> Tensor:
    """Mean square errors `[num_dof]` of a fit in mean equations `[num_dof, columns, columns]`."""
    v = fit.residual_weights(G.shape[-1])[..., None]
    return (v.mT @ G @ v)[..., 0, 0].clamp_min(0)


def select_prior_weight(
    folds: Folds,
    model: ModelStructure,
    prior: EntropicPrior,
    terms: Sequence[Term],
    known: dict[float, list[Solution]],
) -> tuple[ModelStructure, Tensor, list[Solution], dict[float, list[Solution]]]:
    """Choose the weight of the prior by the one-standard-error rule, from strong to weak.

    Args:
        folds: cross-validation folds.
        model: terms and weights of the dofs.
        prior: divergence from the nominal robot.
        terms: terms of the problem.
        known: fits of a similar model by weight, at which Newton's method starts.

    Returns:
        The model with this weight, its mean square test errors `[folds, num_dof]`, its fits, and the fits by
        weight.
    """
    starts, errors, fits, scores = None, [], {}, torch.empty(0)
    for weight in reversed(PRIOR_WEIGHTS):
        if weight in known:
            choices = (
                [model.choice] * len(folds.train) if starts is None else [x.choice for x in starts]
            )
            pairs = zip(known[weight], choices, strict=True)
            starts = [replace(x, choice=choice) for x, choice in pairs]
        each = replace(model, prior_weight=weight)
        squares, starts = fit_folds(folds, each, prior, terms, starts)
        errors.append(squares)
        fits[weight] = starts
        scores = torch.stack([(model.scale * x).mean(1) for x in errors])  # [tried, folds]
        if int(scores.mean(1).argmin()) < len(errors) - 2:
            break
    best = one_standard_error_rule(scores)
    weight = list(fits)[best]
    return replace(model, prior_weight=weight), errors[best], fits[weight], fits


def one_standard_error_rule(scores: Tensor) -> int:
    """Index of the first model whose score is within one standard error of the best score.

    The standard error is that of the difference of scores over folds.

    Args:
        scores: test errors by model, the simplest or most strongly regularized first, `[models, folds]`.

    Reference: L. Breiman et al., *Classification and regression trees*, 1984.
    """
    excess = scores - scores[int(scores.mean(1).argmin())]
    within = excess.mean(1) <= excess.std(1) / scores.shape[1] ** 0.5
    return int(within.nonzero()[0])
