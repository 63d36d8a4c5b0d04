"""Which terms each joint has, and how strong the prior is: what predicts stretches of time left out best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchsko.learn.entropic import Prior
from torchsko.learn.friction import Term
from torchsko.learn.normal import Normal
from torchsko.learn.reduced import eliminated, error_of, judged, means
from torchsko.learn.solving import Model, Solution, solved

WEIGHTS = tuple(10.0**k for k in range(-4, 4))
"""Of the prior."""

GAIN = 0.005
"""Part of a joint's error that one more term has to save."""


@dataclass(frozen=True, eq=False)
class Folds:
    """Normal equations to fit by and to judge by, for each stretch of time left out.

    Attributes:
        seen: without each fold.
        left: each fold alone.
    """

    seen: tuple[Normal, ...]
    left: tuple[Normal, ...]

    @classmethod
    def of(cls, normal: Normal, like: Normal | None = None) -> Folds:
        """Folds in which each dof has equations (of other normal equations, if given), left out once."""
        count = (normal if like is None else like).count
        full = [k for k in range(len(count)) if bool((count[k] > 0).all())]
        return cls(tuple(normal.without(k) for k in full), tuple(normal.only([k]) for k in full))


def errors(
    folds: Folds,
    model: Model,
    prior: Prior,
    terms: Sequence[Term],
    starts: list[Solution] | None = None,
) -> tuple[Tensor, list[Solution]]:
    """Mean square errors of each dof in each stretch left out, `[folds, num_dof]`, and the fits."""
    out, fits = [], []
    for k, (seen, left) in enumerate(zip(folds.seen, folds.left, strict=True)):
        fit = solved(seen, model, prior, terms, None if starts is None else starts[k])
        G = means(left)
        out.append(
            torch.stack([error_of(g, fit.phi, x, t)
                         for g, x, t in zip(G, fit.numbers, fit.choice, strict=True)])
        )  # fmt: skip
        fits.append(fit)
    return torch.stack(out), fits


def chosen_weight(
    folds: Folds, model: Model, prior: Prior, terms: Sequence[Term]
) -> tuple[Model, Tensor]:
    """The model with the prior's weight that predicts best, and its errors `[folds, num_dof]`.

    Of weights that predict alike to one standard error the largest: what folds cannot tell is the nominal
    robot's.

    Reference: L. Breiman et al., *Classification and regression trees*, 1984 (the one standard error rule).
    """
    starts, tried, scores, best = None, [], torch.empty(0), 0
    for weight in reversed(WEIGHTS):  # from the nominal robot to the data
        squares, starts = errors(folds, replace(model, prior_weight=weight), prior, terms, starts)
        tried.append((weight, squares))
        scores = torch.stack([(model.scale * x).mean(1) for _, x in tried])  # [tried, folds]
        best = int(scores.mean(1).argmin())
        if best < len(tried) - 2:
            break
    # The strongest that the best is not surely better than: one standard error of what they differ by.
    more = scores - scores[best]
    unsure = more.mean(1) <= more.std(1) / len(folds.seen) ** 0.5
    weight, squares = tried[int(unsure.nonzero()[0])]
    return replace(model, prior_weight=weight), squares


def with_terms_chosen(
    folds: Folds,
    model: Model,
    prior: Prior,
    terms: Sequence[Term],
    allowed: Sequence[int],
    dof: int,
) -> Model:
    """The model with the terms of one dof that predict stretches left out best, while the others' stay.

    They are grown one by one, dry friction exchanged, and thinned. Fits are those of the divergence's
    quadratic part at the fit so far, which are solved at once.
    """
    _, fits = errors(folds, model, prior, terms)
    inertial, choice = folds.seen[0].inertial, list(model.choice)
    train, test = (torch.stack([means(n) for n in some], 1) for some in (folds.seen, folds.left))
    half = model.prior_weight / 2
    A = torch.stack([half * prior.curvature(fit.phi) for fit in fits])
    phi0 = torch.stack([fit.phi for fit in fits])
    c = (A @ phi0[..., None])[..., 0] - torch.stack([half * prior.slope(x) for x in phi0])
    Q = A.new_zeros(len(A), inertial + 1, inertial + 1)
    for j, chosen in enumerate(choice):
        if j != dof:
            part, w = eliminated(train[j], inertial, chosen), model.scale[j]
            A, c, Q = A + w * part.A, c + w * part.c, Q + w * judged(test[j], part, chosen)
    score = partial(_score, train[dof], test[dof], A, c, Q, model.scale[dof])
    choice[dof] = _grown(score, choice[dof], allowed, terms)
    return replace(model, choice=tuple(choice))


def _score(
    train: Tensor,
    test: Tensor,
    A: Tensor,
    c: Tensor,
    Q: Tensor,
    w: Tensor,
    candidate: tuple[int, ...],
) -> float:
    """The error of all dofs in what was left out, with these terms of one; all folds at once."""
    mine = eliminated(train, c.shape[-1], candidate)
    phi = torch.linalg.solve(A + w * mine.A, c + w * mine.c)
    v = torch.cat([phi, torch.ones_like(phi[..., :1])], -1)[..., None]
    own = error_of(test, phi, mine.numbers(phi), candidate)
    return float(((v.mT @ Q @ v)[..., 0, 0] + w * own).mean())


def _grown(
    score: Callable[[tuple[int, ...]], float],
    start: tuple[int, ...],
    allowed: Sequence[int],
    terms: Sequence[Term],
) -> tuple[int, ...]:
    """The terms of one dof that score best, each worth its place."""
    now = tuple(sorted(set(start) & set(allowed)))
    best = score(now)
    while True:
        dry = [k for k in now if terms[k].level[1]]
        moves = [tuple(sorted((*now, k))) for k in allowed if k not in now]
        moves += [tuple(sorted((*(x for x in now if x != d), k)))
                  for d in dry for k in allowed if k not in now and terms[k].level[1]]  # fmt: skip
        moves += [tuple(x for x in now if x != k) for k in now]
        scored = []
        for move in dict.fromkeys(moves):
            value = score(move)
            extra = len(move) - len(now)
            # One more has to pay, one less may cost a little.
            scored.append((value + GAIN * best * extra, value, move))
        cost, value, move = min(scored)
        if cost >= best * (1 - 1e-9) or len(move) > 8:
            return now
        now, best = move, value
