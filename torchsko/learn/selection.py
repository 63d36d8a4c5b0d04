"""Which terms each joint has, and how strong the prior is: what predicts stretches of time left out best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchsko.learn.entropic import Prior, entropic_least_squares
from torchsko.learn.friction import (
    Asymmetric,
    Coulomb,
    Dahl,
    Delay,
    Loaded,
    Offset,
    Periodic,
    SmoothCoulomb,
    Spring,
    Stribeck,
    Term,
    Turbulent,
    Viscous,
)
from torchsko.learn.normal import Normal

SPEEDS = (0.02, 0.05, 0.1, 0.2)
"""Of smooth dry friction [rad/s]."""

DISTANCES = (0.003, 0.01, 0.03, 0.1)
"""Of dry friction with memory [rad]."""

LIBRARY: tuple[Term, ...] = (
    *(Offset(), Viscous(), Coulomb()),
    *(SmoothCoulomb(speed) for speed in SPEEDS),
    *(Dahl(distance) for distance in DISTANCES),
    *(Turbulent(), Stribeck(0.1), Stribeck(0.3)),
    *(Asymmetric(0.05), Loaded(0.05)),
    *(Spring(), Periodic(1.0, 0.0), Periodic(1.0, 0.25), Delay()),
)
"""Terms that a fit chooses from."""

USUAL = (Offset(), Viscous(), SmoothCoulomb(0.05))
"""Where the choice begins."""

WEIGHTS = tuple(10.0**k for k in range(-4, 4))
"""Of the prior."""

GAIN = 0.005
"""Part of a joint's error that one more term has to save."""

Choice = tuple[tuple[int, ...], ...]
"""For each dof the terms it has, by place in the problem's."""


@dataclass(frozen=True, eq=False)
class Model:
    """What a fit has decided of its form.

    Attributes:
        choice: terms of each dof.
        scale: one over the variance of each dof's error, `[num_dof]`.
        prior_weight: of the divergence from the nominal robot, against the mean weighted square error.
    """

    choice: Choice
    scale: Tensor
    prior_weight: float


@dataclass(frozen=True, eq=False)
class Reduced:
    """Normal equations whose terms are eliminated: those of inertial numbers alone.

    Attributes:
        A: `[*batch, inertial, inertial]`.
        c: `[*batch, inertial]`.
        gain: what the terms' numbers lose to inertial ones, `[*batch, terms, inertial]`.
        start: these numbers where the inertial ones are zero, `[*batch, terms]`.
    """

    A: Tensor
    c: Tensor
    gain: Tensor
    start: Tensor

    def numbers(self, phi: Tensor) -> Tensor:
        """The terms' numbers that are best beside inertial ones, `[*batch, terms]`."""
        return self.start - (self.gain @ phi[..., None])[..., 0]


def eliminated(G: Tensor, inertial: int, terms: Sequence[int]) -> Reduced:
    """Eliminate terms from one dof's normal equations `[*batch, columns, columns]`, means of squares.

    Collinear ones share; a term that never acts has the number zero.
    """
    S = torch.tensor([inertial + k for k in terms], dtype=torch.long, device=G.device)
    rows = G.index_select(-2, S)
    size = rows.index_select(-1, S).diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
    unit = size[..., :, None] * rows.index_select(-1, S) * size[..., None, :]
    unit = unit + TOGETHER * torch.eye(len(S)).to(G)
    GSp = rows[..., :inertial]
    both = torch.cat([GSp, rows[..., -1:]], -1)
    solved = size[..., None] * torch.linalg.solve(unit, size[..., None] * both) if len(S) else both
    gain, start = solved[..., :inertial], solved[..., inertial]
    A = G[..., :inertial, :inertial] - GSp.mT @ gain
    c = G[..., :inertial, -1] - (GSp.mT @ start[..., None])[..., 0]
    return Reduced((A + A.mT) / 2, c, gain, start)


def weighed(scale: Tensor, parts: Sequence[Reduced]) -> tuple[Tensor, Tensor]:
    """Normal equations of inertial numbers, all dofs together."""
    A, c = torch.stack([p.A for p in parts]), torch.stack([p.c for p in parts])
    return (scale[:, None, None] * A).sum(0), (scale[:, None] * c).sum(0)


TOGETHER = 1e-10
"""Square of the sine of the angle between two terms that share: they act alike."""


def means(normal: Normal) -> Tensor:
    """Normal equations of one fold as means, `[num_dof, columns, columns]`."""
    return normal.sums[0] / normal.count[0].clamp_min(1)[:, None, None]


def error_of(G: Tensor, phi: Tensor, numbers: Tensor, terms: Sequence[int]) -> Tensor:
    """Mean square error `[*batch]` of one dof, of its normal equations `[*batch, columns, columns]`."""
    inertial = phi.shape[-1]
    index = [*range(inertial), *(inertial + k for k in terms), G.shape[-1] - 1]
    I = torch.tensor(index, device=G.device)
    v = torch.cat([phi, numbers, -torch.ones_like(phi[..., :1])], -1)[..., None]
    return (v.mT @ G.index_select(-2, I).index_select(-1, I) @ v)[..., 0, 0].clamp_min(0)


@dataclass(frozen=True, eq=False)
class Solution:
    """Numbers that were fitted.

    Attributes:
        phi: inertial, `[inertial]`.
        numbers: of the terms of each dof.
        choice: terms of each dof that were kept: friction that came out negative is left out.
    """

    phi: Tensor
    numbers: tuple[Tensor, ...]
    choice: Choice


def solved(
    normal: Normal,
    model: Model,
    prior: Prior,
    terms: Sequence[Term],
    start: Solution | None = None,
) -> Solution:
    """The physically consistent fit of a model to normal equations of one fold.

    Friction that comes out negative is left out, and the rest fitted again.
    """
    G, choice = means(normal), list(model.choice if start is None else start.choice)
    phi = None if start is None else start.phi
    while True:
        parts = [eliminated(g, normal.inertial, t) for g, t in zip(G, choice, strict=True)]
        A, c = weighed(model.scale, parts)
        phi, _ = entropic_least_squares(A, c, prior, model.prior_weight, phi)
        numbers = tuple(p.numbers(phi) for p in parts)
        dropped = [_without_negative(t, x, terms) for t, x in zip(choice, numbers, strict=True)]
        if dropped == choice:
            return Solution(phi, numbers, tuple(choice))
        choice = dropped


def _without_negative(
    chosen: tuple[int, ...], numbers: Tensor, terms: Sequence[Term]
) -> tuple[int, ...]:
    """A dof's terms without the most negative of those that are friction."""
    low = [(x, k) for x, k in zip(numbers.tolist(), chosen, strict=True)
           if terms[k].dissipates and x < 0]  # fmt: skip
    if not low:
        return chosen
    worst = min(low)[1]
    return tuple(k for k in chosen if k != worst)


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
    def of(cls, normal: Normal) -> Folds:
        """Folds in which each dof has equations, left out once each."""
        full = [k for k in range(len(normal.sums)) if bool((normal.count[k] > 0).all())]
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


def judged(G: Tensor, part: Reduced, terms: Sequence[int]) -> Tensor:
    """Mean square error of one dof as a quadratic form of inertial numbers and 1, terms at their best."""
    inertial = part.gain.shape[-1]
    index = [*range(inertial), *(inertial + k for k in terms), G.shape[-1] - 1]
    I = torch.tensor(index, device=G.device)
    eye = torch.eye(inertial + 1).to(G).expand(*G.shape[:-2], -1, -1)
    numbers = torch.cat([-part.gain, part.start[..., None]], -1)
    V = torch.cat([eye[..., :-1, :], numbers, -eye[..., -1:, :]], -2)
    return V.mT @ G.index_select(-2, I).index_select(-1, I) @ V


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
