"""Which terms each joint has, and how strong the prior is: what predicts stretches of time left out best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.learn.entropic import Prior
from torchsko.learn.friction import Coulomb, SmoothCoulomb, Term
from torchsko.learn.normal import Normal
from torchsko.learn.reduced import TOGETHER, Gains, all_gains, explained, judged, means, summed
from torchsko.learn.solving import Model, Solution, all_solved
from torchsko.learn.threads import solve_each

WEIGHTS = tuple(10.0**k for k in range(-4, 4))
"""Of the prior."""

GAIN = 0.005
"""Part of a joint's error that one more term has to save."""

EDGE = GAIN / 2
"""Part that a law of dry friction which turns smoothly has to save over a sharp one: its way is short."""


@dataclass(frozen=True, eq=False)
class Folds:
    """Normal equations to fit by and to judge by, for each stretch of time left out.

    Attributes:
        seen: without each fold.
        train: means of squares of `seen`, `[folds, num_dof, columns, columns]`.
        test: those of each fold alone.
    """

    seen: tuple[Normal, ...]
    train: Tensor
    test: Tensor

    @classmethod
    def of(cls, normal: Normal, like: Normal | None = None) -> Folds:
        """Folds in which each dof has equations (of other normal equations, if given), left out once."""
        count = (normal if like is None else like).count
        full = [k for k in range(len(count)) if bool((count[k] > 0).all())]
        seen = tuple(normal.without(k) for k in full)
        test = torch.stack([means(normal.only([k])) for k in full])
        return cls(seen, torch.stack([means(some) for some in seen]), test)


def errors(
    folds: Folds,
    model: Model,
    prior: Prior,
    terms: Sequence[Term],
    starts: Sequence[Solution] | None = None,
) -> tuple[Tensor, list[Solution]]:
    """Mean square errors of each dof in each stretch left out, `[folds, num_dof]`, and the fits."""
    fits = all_solved(folds.train, model, prior, terms, starts)
    return torch.stack([judged_by(fit, G) for fit, G in zip(fits, folds.test, strict=True)]), fits


def judged_by(fit: Solution, G: Tensor) -> Tensor:
    """Mean square errors `[num_dof]` of a fit to equations `[num_dof, columns, columns]`."""
    v = fit.weights(G.shape[-1])[..., None]
    return (v.mT @ G @ v)[..., 0, 0].clamp_min(0)


def chosen_weight(
    folds: Folds, model: Model, prior: Prior, terms: Sequence[Term]
) -> tuple[Model, Tensor, list[Solution]]:
    """The model with the prior's weight that predicts best, its errors `[folds, num_dof]`, and its fits.

    Of weights that predict alike to one standard error the largest: what folds cannot tell is the nominal
    robot's.

    Reference: L. Breiman et al., *Classification and regression trees*, 1984 (the one standard error rule).
    """
    starts, tried, scores, best = None, [], torch.empty(0), 0
    for weight in reversed(WEIGHTS):  # from the nominal robot to the data
        squares, starts = errors(folds, replace(model, prior_weight=weight), prior, terms, starts)
        tried.append((weight, squares, starts))
        scores = torch.stack([(model.scale * x).mean(1) for _, x, _ in tried])  # [tried, folds]
        best = int(scores.mean(1).argmin())
        if best < len(tried) - 2:
            break
    weight, squares, fits = tried[least_sure([x for _, x, _ in tried], model.scale)]
    return replace(model, prior_weight=weight), squares, fits


def least_sure(squares: Sequence[Tensor], scale: Tensor) -> int:
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


def with_terms_chosen(
    folds: Folds,
    model: Model,
    prior: Prior,
    terms: Sequence[Term],
    allowed: Sequence[int],
    starts: Sequence[Solution] | None,
    dof: int,
) -> tuple[Model, list[Solution]]:
    """The model with the terms of one dof that predict stretches left out best, while the others' stay.

    They are grown one by one, dry friction exchanged, and thinned. Fits are those of the divergence's
    quadratic part at the fit so far, which are solved at once.

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
    fits = all_solved(folds.train, model, prior, terms, starts)
    told, choice = prior.told, list(model.choice)
    half, phi0 = model.prior_weight / 2, torch.stack([fit.phi for fit in fits])
    slope, curvature = prior.derivatives(phi0)
    # This dof's are candidates yet: without terms.
    others = tuple(() if j == dof else chosen for j, chosen in enumerate(choice))
    each = all_gains(folds.train, len(told), dict.fromkeys(range(len(fits)), others))
    parts = [Gains.stacked(some) for some in zip(*each.values(), strict=True)]
    A, c = explained(summed(folds.train, model.scale), model.scale, parts)
    near = half * curvature
    A, c = told.mT @ A @ told + near, c @ told + (near @ phi0[..., None])[..., 0] - half * slope
    w, test = model.scale[dof], folds.test[:, dof]
    Q = judged(summed(folds.test, model.scale) - w * test, folds.test, model.scale, parts, others)
    scores = Candidates.of(folds.train[:, dof], test, A, c, told, Q, w)
    choice[dof] = _grown(scores, choice[dof], allowed, terms)
    return replace(model, choice=tuple(choice)), fits


@dataclass(frozen=True, eq=False)
class Candidates:
    """Scores of sets of one dof's terms: inertial numbers eliminated, they are small systems.

    With numbers x of the terms, base parameters are best at u - V x; so x solves M x = r, rows and columns of
    the set, and the error in what was left out is a quadratic form of x and 1.

    Attributes:
        M: `[folds, terms, terms]`.
        r: `[folds, terms]`.
        E: `[folds, terms + 1, terms + 1]`.
    """

    M: Tensor
    r: Tensor
    E: Tensor

    @classmethod
    def of(
        cls, train: Tensor, test: Tensor, A: Tensor, c: Tensor, told: Tensor, Q: Tensor, w: Tensor
    ) -> Candidates:
        """Of one dof's normal equations, `[folds, columns, columns]`.

        Args:
            train: to fit by.
            test: to judge by.
            A: of inertial numbers, all dofs' and the prior's, with no terms of this dof,
                `[folds, inertial, inertial]`.
            c: likewise, `[folds, inertial]`.
            told: takes inertial numbers to base parameters, `[base, inertial]`.
            Q: the other dofs' error in what was left out, of base parameters and 1.
            w: weight of the dof.
        """
        n, count = len(told), train.shape[-1] - len(told) - 1
        Gtp, Gtt = train[:, n:-1, :n], train[:, n:-1, n:-1]
        right = torch.cat([w * told.mT @ Gtp.mT, c[..., None]], -1)
        V, u = (told @ solve_each(A, right)).split([count, 1], -1)
        # Two terms that act alike share: a ridge below all that matters.
        ridge = TOGETHER * Gtt.diagonal(dim1=-2, dim2=-1).diag_embed()
        M, r = Gtt + ridge - Gtp @ V, train[:, n:-1, -1] - (Gtp @ u)[..., 0]
        one = torch.eye(count + 1).to(c).expand(len(c), -1, -1)
        F = torch.cat([-V, u], -1)
        rest = torch.cat([F, one[:, -1:]], 1)
        own = torch.cat([F, one[:, :-1], -one[:, -1:]], 1)
        return cls(M, r, rest.mT @ Q @ rest + w * own.mT @ test @ own)

    def __call__(self, sets: Sequence[tuple[int, ...]]) -> list[float]:
        """The error of all dofs in what was left out, with each of these sets."""
        mask = self.r.new_zeros(len(sets), 1, self.r.shape[-1])
        for row, some in zip(mask, sets, strict=True):
            row[0, list(some)] = 1.0
        # A term that never acts, or as others do to rounding, has the number zero.
        own = self.M.diagonal(dim1=-2, dim2=-1)
        mask = mask * (own > 0)
        size = own.clamp_min(1e-300).rsqrt() * mask
        M = size[..., :, None] * self.M * size[..., None, :] + (1 - mask).diag_embed()
        x = size * torch.linalg.solve(M, size * self.r)
        z = torch.cat([x, torch.ones_like(x[..., :1])], -1)[..., None]
        return (z.mT @ self.E @ z)[..., 0, 0].mean(1).tolist()


def _grown(
    scores: Candidates,
    start: tuple[int, ...],
    allowed: Sequence[int],
    terms: Sequence[Term],
) -> tuple[int, ...]:
    """The terms of one dof that score best, each worth its place."""
    now = tuple(sorted(set(start) & set(allowed)))
    (best,) = scores([now])
    while True:
        dry = [k for k in now if terms[k].level[1]]
        moves = [tuple(sorted((*now, k))) for k in allowed if k not in now]
        moves += [tuple(sorted((*(x for x in now if x != d), k)))
                  for d in dry for k in allowed if k not in now and terms[k].level[1]]  # fmt: skip
        moves += [tuple(x for x in now if x != k) for k in now]
        moves = list(dict.fromkeys(moves))
        # One more has to pay, one less may cost a little.
        scored = [
            (value + GAIN * best * (len(move) - len(now)), value, move)
            for value, move in zip(scores(moves), moves, strict=True)
        ]
        cost, value, move = min(scored)
        if cost >= best * (1 - 1e-9) or len(move) > 8:
            return _sharp(scores, now, allowed, terms)
        now, best = move, value


def _sharp(
    scores: Candidates, now: tuple[int, ...], allowed: Sequence[int], terms: Sequence[Term]
) -> tuple[int, ...]:
    """The same with dry friction that is sharp, where the way that it turns over does not show.

    A filter leaves next to nothing of a short way, and noise says which law is better by it; unfiltered
    forces at each turn are off by all of it.
    """
    smooth = [k for k in allowed if isinstance(terms[k], SmoothCoulomb)]
    dry = [k for k in now if k in smooth[:1]]  # the shortest way, so that it may be shorter
    edges = [k for k in allowed if isinstance(terms[k], Coulomb) and k not in now]
    moves = [tuple(sorted((*(x for x in now if x != d), k))) for d in dry for k in edges]
    best, *values = scores([now, *moves])
    value, move = min(zip(values, moves, strict=True), default=(best, now))
    return move if value <= best * (1 + EDGE) else now
