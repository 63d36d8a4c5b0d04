"""Growing the terms of one dof: candidates, scored by what they predict, each told by the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.friction import Term
from torchsko.identification.regression.elimination import COLLINEARITY_RIDGE
from torchsko.identification.regression.least_squares import (
    collinear_combinations,
    scaled_pseudo_inverse,
)
from torchsko.identification.workers import solve_each

MIN_RELATIVE_GAIN = 0.005
"""Part of a joint's error that one more term has to save."""

MIN_PRESLIDING_GAIN = MIN_RELATIVE_GAIN / 2
"""Part that a law of dry friction which turns smoothly has to save over a sharp one: its way is short."""

MIN_Z_SCORE = 2.0
"""Standard deviations, by the data alone, that a number is away from zero, were filtered forces apart: two to
three are alike, so that these are little more than one of what is reported."""

MAX_TERMS = 8
"""Terms of a dof."""


@dataclass(frozen=True, eq=False)
class SubsetScores:
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
    ) -> SubsetScores:
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
        ridge = COLLINEARITY_RIDGE * Gtt.diagonal(dim1=-2, dim2=-1).diag_embed()
        M, r = Gtt + ridge - Gtp @ V, train[:, n:-1, -1] - (Gtp @ u)[..., 0]
        one = torch.eye(count + 1).to(c).expand(len(c), -1, -1)
        F = torch.cat([-V, u], -1)
        rest = torch.cat([F, one[:, -1:]], 1)
        own = torch.cat([F, one[:, :-1], -one[:, -1:]], 1)
        return cls(M, r, rest.mT @ Q @ rest + w * own.mT @ test @ own)

    def __call__(self, sets: Sequence[tuple[int, ...]]) -> list[float]:
        """The error of all dofs in what was left out, with each of these sets."""
        z = torch.nn.functional.pad(self.coefficients(sets), (0, 1), value=1.0)[..., None]
        return (z.mT @ self.E @ z)[..., 0, 0].mean(1).tolist()

    def coefficients(self, sets: Sequence[tuple[int, ...]]) -> Tensor:
        """Numbers of the terms of each set, in each fold; of others zero, `[sets, folds, terms]`."""
        mask = self.r.new_zeros(len(sets), 1, self.r.shape[-1])
        for row, some in zip(mask, sets, strict=True):
            row[0, list(some)] = 1.0
        # A term that never acts, or as others do to rounding, has the number zero.
        own = self.M.diagonal(dim1=-2, dim2=-1)
        mask = mask * (own > 0)
        size = own.clamp_min(1e-300).rsqrt() * mask
        M = size[..., :, None] * self.M * size[..., None, :] + (1 - mask).diag_embed()
        return size * torch.linalg.solve(M, size * self.r)


@dataclass(frozen=True, eq=False)
class TermInformation:
    """What the data alone tell of one dof's terms, the nominal robot not known.

    Stretches of time left out are near those that are seen, and where a log is short, or a joint does not
    turn round, an offset and a slow wave that cancel each other predict them well, and nothing else. Damping
    and dry friction (`Term.common`) every joint has, and neither is negative, so that they do not cancel.

    Attributes:
        information: of the numbers of all terms, inertial numbers eliminated, `[terms, terms]`.
        whole: normal equations of base parameters and all terms, `[base + terms, base + terms]`.
        numbers: of a set, zero else, `[terms]`.
        terms: of the problem.
    """

    information: Tensor
    whole: Tensor
    coefficients: Callable[[tuple[int, ...]], Tensor]
    terms: Sequence[Term]

    @classmethod
    def of(
        cls, own: Tensor, A: Tensor, w: Tensor, count: Tensor, scores: SubsetScores,
        terms: Sequence[Term],
    ) -> TermInformation:  # fmt: skip
        """Of one dof's normal equations.

        Args:
            own: of this dof, means of squares, `[columns, columns]`.
            A: of base parameters, all dofs', with no terms of this dof and no prior, `[base, base]`.
            w: weight of the dof, one over the variance of its errors.
            count: of its equations.
            scores: what finds numbers.
            terms: of the problem.
        """
        n = len(A)
        cross = own[n:-1, :n]
        left = own[n:-1, n:-1] - w * cross @ scaled_pseudo_inverse(A)[0] @ cross.mT
        whole = torch.cat([torch.cat([A, w * cross.mT], 1), w * own[n:-1, :-1]])
        return cls(
            count * w * left, whole, lambda some: scores.coefficients([some])[0].mean(0), terms
        )

    def doubtful(self, some: tuple[int, ...]) -> int | None:
        """The term of a set that the data tell least of, where that is too little."""
        others = [k for k in some if not self.terms[k].common]
        if not others:
            return None
        at = torch.tensor(some, device=self.information.device)
        M = self.information[at[:, None], at]
        size = M.diagonal().clamp_min(1e-300).rsqrt()
        value, vector = torch.linalg.eigh(size[:, None] * M * size)
        # Of terms that act as others do rounding is left, which may be negative.
        deviation = size * (vector.square() @ (1 / value.clamp_min(COLLINEARITY_RIDGE))).sqrt()
        base = len(self.whole) - len(self.information)
        columns = torch.cat([torch.arange(base, device=at.device), base + at])
        alike = collinear_combinations(self.whole[columns[:, None], columns])[:, base:]
        deviation = torch.where((alike > 0).any(0), torch.inf, deviation)
        sure = dict(
            zip(some, (self.coefficients(some)[at].abs() / deviation).tolist(), strict=True)
        )
        # What is kept goes where the log does not tell it apart at all, after what it is not told apart from.
        others = [k for k in others if not self.terms[k].always_included or not sure[k]]
        out = min(others, key=lambda k: (sure[k], self.terms[k].always_included), default=None)
        return out if out is not None and sure[out] < MIN_Z_SCORE else None


def stepwise_search(
    scores: Callable[[Sequence[tuple[int, ...]]], list[float]],
    start: tuple[int, ...],
    allowed: Sequence[int],
    terms: Sequence[Term],
    doubtful: Callable[[tuple[int, ...]], int | None] = lambda some: None,
) -> tuple[int, ...]:
    """The terms of one dof that score best, each worth its place, and none doubtful.

    Args:
        scores: errors of sets.
        start: set to begin at.
        allowed: places of terms to choose from.
        terms: of the problem.
        doubtful: which term of a set, if one, the data do not tell.
    """
    now = tuple(sorted(set(start) & set(allowed)))
    while (out := doubtful(now)) is not None:
        now = tuple(k for k in now if k != out)
    (best,) = scores([now])
    while True:
        dry = [k for k in now if terms[k].friction]
        moves = [tuple(sorted((*now, k))) for k in allowed if k not in now]
        moves += [tuple(sorted((*(x for x in now if x != d), k)))
                  for d in dry for k in allowed if k not in now and terms[k].friction]  # fmt: skip
        moves += [tuple(x for x in now if x != k) for k in now if not terms[k].always_included]
        moves = list(dict.fromkeys(moves))
        # One more has to pay, one less may cost a little.
        scored = [
            (value + MIN_RELATIVE_GAIN * best * (len(move) - len(now)), value, move)
            for value, move in zip(scores(moves), moves, strict=True)
        ]
        better = sorted(x for x in scored if x[0] < best * (1 - 1e-9) and len(x[2]) <= MAX_TERMS)
        told = ((value, move) for _, value, move in better if doubtful(move) is None)
        value, move = next(told, (best, now))
        if move == now:
            return _prefer_shorter_presliding(scores, now, allowed, terms)
        now, best = move, value


def _prefer_shorter_presliding(
    scores: Callable[[Sequence[tuple[int, ...]]], list[float]],
    now: tuple[int, ...],
    allowed: Sequence[int],
    terms: Sequence[Term],
) -> tuple[int, ...]:
    """The same with dry friction that is sharp, where the way that it turns over does not show.

    A filter leaves next to nothing of a short way, and noise says which law is better by it; unfiltered
    forces at each turn are off by all of it.
    """
    limits = {k: terms[k].sharp_limit for k in allowed if terms[k].sharp_limit is not None}
    # The shortest way of each, so that it may be shorter.
    shortest = {limit: k for k, limit in reversed(limits.items())}
    moves = [tuple(sorted((*(x for x in now if x != d), k)))
             for k in allowed if k not in now and (d := shortest.get(terms[k])) in now]  # fmt: skip
    best, *values = scores([now, *moves])
    value, move = min(zip(values, moves, strict=True), default=(best, now))
    return move if value <= best * (1 + MIN_PRESLIDING_GAIN) else now
