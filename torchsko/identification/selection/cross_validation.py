"""Which terms each joint has, and how strong the prior is: what predicts stretches of time left out best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.friction import Term
from torchsko.identification.regression.elimination import (
    EliminatedTerms,
    eliminate_terms_of_problems,
    mean_equations,
    residual_quadratic_form,
    schur_complement_over_dofs,
    weighted_sum,
)
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import (
    ModelStructure,
    Solution,
    solve_physical_batch,
)
from torchsko.identification.selection.stepwise import (
    SubsetScores,
    TermInformation,
    stepwise_search,
)
from torchsko.utils.shapes import matvec

PRIOR_WEIGHTS = tuple(10.0**k for k in range(-4, 4))
"""Of the prior."""


@dataclass(frozen=True, eq=False)
class Folds:
    """Normal equations to fit by and to judge by, for each stretch of time left out.

    Attributes:
        seen: without each fold.
        train: means of squares of `seen`, `[folds, num_dof, columns, columns]`.
        test: those of each fold alone.
        count: equations of each dof in all of them, `[num_dof]`.
    """

    train_equations: tuple[NormalEquations, ...]
    train: Tensor
    test: Tensor
    count: Tensor

    @classmethod
    def of(cls, normal: NormalEquations, like: NormalEquations | None = None) -> Folds:
        """Folds in which each dof has equations (of other normal equations, if given), left out once.

        Dofs that have none at all do not count.
        """
        count = (normal if like is None else like).count
        full = complete_folds(count)
        seen = tuple(normal.without_fold(k) for k in full)
        test = torch.stack([mean_equations(normal.of_folds([k])) for k in full])
        train = torch.stack([mean_equations(some) for some in seen])
        return cls(seen, train, test, normal.count[full].sum(0))


def complete_folds(count: Tensor) -> list[int]:
    """Folds in which each dof has equations that has any, of counts `[folds, num_dof]`."""
    felt = count.sum(0) > 0
    return [k for k in range(len(count)) if bool((count[k] > 0)[felt].all())]


def fit_folds(
    folds: Folds,
    model: ModelStructure,
    prior: EntropicPrior,
    terms: Sequence[Term],
    starts: Sequence[Solution] | None = None,
) -> tuple[Tensor, list[Solution]]:
    """Mean square errors of each dof in each stretch left out, `[folds, num_dof]`, and the fits."""
    fits = solve_physical_batch(folds.train, model, prior, terms, starts)
    return torch.stack(
        [mean_square_errors(fit, G) for fit, G in zip(fits, folds.test, strict=True)]
    ), fits


def mean_square_errors(fit: Solution, G: Tensor) -> Tensor:
    """Mean square errors `[num_dof]` of a fit to equations `[num_dof, columns, columns]`."""
    v = fit.residual_weights(G.shape[-1])[..., None]
    return (v.mT @ G @ v)[..., 0, 0].clamp_min(0)


def select_prior_weight(
    folds: Folds, model: ModelStructure, prior: EntropicPrior, terms: Sequence[Term]
) -> tuple[ModelStructure, Tensor, list[Solution]]:
    """The model with the prior's weight that predicts best, its errors `[folds, num_dof]`, and its fits.

    Of weights that predict alike to one standard error the largest: what folds cannot tell is the nominal
    robot's.

    Reference: L. Breiman et al., *Classification and regression trees*, 1984 (the one standard error rule).
    """
    starts, tried, scores, best = None, [], torch.empty(0), 0
    for weight in reversed(PRIOR_WEIGHTS):  # from the nominal robot to the data
        squares, starts = fit_folds(
            folds, replace(model, prior_weight=weight), prior, terms, starts
        )
        tried.append((weight, squares, starts))
        scores = torch.stack([(model.scale * x).mean(1) for _, x, _ in tried])  # [tried, folds]
        best = int(scores.mean(1).argmin())
        if best < len(tried) - 2:
            break
    weight, squares, fits = tried[one_standard_error_rule([x for _, x, _ in tried], model.scale)]
    return replace(model, prior_weight=weight), squares, fits


def one_standard_error_rule(squares: Sequence[Tensor], scale: Tensor) -> int:
    """Which is the strongest prior that the best is not surely better than.

    Args:
        squares: errors with each, the strongest first, `[folds, num_dof]`.
        scale: how much each dof's error counts.
    """
    scores = torch.stack([(scale * x).mean(1) for x in squares])
    more = scores - scores[int(scores.mean(1).argmin())]
    # One standard error of what they differ by.
    unsure = more.mean(1) <= more.std(1) / scores.shape[1] ** 0.5
    return int(unsure.nonzero()[0])


def select_terms(
    folds: Folds,
    model: ModelStructure,
    prior: EntropicPrior,
    terms: Sequence[Term],
    allowed: Sequence[int],
    starts: Sequence[Solution] | None,
    dof: int,
) -> tuple[ModelStructure, list[Solution]]:
    """The model with the terms of one dof that predict stretches left out best, while the others' stay.

    `torchsko.identification.selection.stepwise` says how. Fits are those of the divergence's quadratic
    part at the fit so far,
    which are solved at once.

    Args:
        folds: of cross-validation.
        model: so far.
        prior: the nominal robot.
        terms: of the problem.
        allowed: places of those to choose from.
        starts: fits of the folds to begin at; the nominal robot if None.
        dof: whose terms are chosen.

    Returns:
        The model, and the fits that the choice began at.
    """
    if starts is not None:
        starts = [replace(fit, choice=model.choice) for fit in starts]
    fits = solve_physical_batch(folds.train, model, prior, terms, starts)
    told, choice = prior.base_map, list(model.choice)
    half, phi0 = model.prior_weight / 2, torch.stack([fit.phi for fit in fits])
    slope, curvature = prior.derivatives(phi0)
    # This dof's are candidates yet: without terms.
    others = tuple(() if j == dof else chosen for j, chosen in enumerate(choice))
    each = eliminate_terms_of_problems(
        folds.train, len(told), dict.fromkeys(range(len(fits)), others)
    )
    parts = [EliminatedTerms.stacked(some) for some in zip(*each.values(), strict=True)]
    A, c = schur_complement_over_dofs(weighted_sum(folds.train, model.scale), model.scale, parts)
    near, data = half * curvature, A.mean(0)
    A, c = told.mT @ A @ told + near, c @ told + matvec(near, phi0) - half * slope
    w, test = model.scale[dof], folds.test[:, dof]
    Q = residual_quadratic_form(
        weighted_sum(folds.test, model.scale) - w * test, folds.test, model.scale, parts, others
    )
    scores = SubsetScores.of(folds.train[:, dof], test, A, c, told, Q, w)
    sure = TermInformation.of(folds.train[:, dof].mean(0), data, w, folds.count[dof], scores, terms)
    choice[dof] = stepwise_search(scores, choice[dof], allowed, terms, sure.doubtful)
    return replace(model, choice=tuple(choice)), fits
