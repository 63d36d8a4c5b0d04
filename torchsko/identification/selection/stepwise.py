"""Stepwise selection of the friction terms of one dof, scored by cross-validation."""

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
"""Smallest relative decrease of the prediction error for which stepwise search adds a term."""

MIN_PRESLIDING_GAIN = MIN_RELATIVE_GAIN / 2
"""Smallest relative gain of a friction law with presliding over its sharp limit."""

MIN_Z_SCORE = 2.0
"""Smallest z-score at which stepwise selection keeps a term. Filtered samples are treated as independent, so
this is about one reported standard error."""

MAX_TERMS = 8
"""Largest number of terms of a dof."""


@dataclass(frozen=True, eq=False)
class SubsetScores:
    """Cross-validation scores of sets of terms of one dof.

    With the inertial parameters eliminated, the coefficients x of a set solve the rows and columns of M x = r
    that belong to the set. The test error is a quadratic form of x and 1.

    Attributes:
        M: `[folds, terms, terms]`.
        r: `[folds, terms]`.
        E: quadratic form of the test error of all dofs, `[folds, terms + 1, terms + 1]`.
    """

    M: Tensor
    r: Tensor
    E: Tensor

    @classmethod
    def of(
        cls,
        train: Tensor,
        test: Tensor,
        A: Tensor,
        c: Tensor,
        base_map: Tensor,
        Q: Tensor,
        w: Tensor,
    ) -> SubsetScores:
        """Eliminate the inertial parameters from one dof's mean equations, `[folds, columns, columns]`.

        Args:
            train: training equations of the dof.
            test: test equations of the dof.
            A: equations of inertial parameters from all dofs and the prior, without terms of this dof,
                `[folds, inertial, inertial]`.
            c: right side of these equations, `[folds, inertial]`.
            base_map: map from inertial to base parameters, `[base, inertial]`.
            Q: quadratic form of the other dofs' test error in base parameters and 1.
            w: weight of the dof.
        """
        n, count = len(base_map), train.shape[-1] - len(base_map) - 1
        cross, block = train[:, n:-1, :n], train[:, n:-1, n:-1]
        right = torch.cat([w * base_map.mT @ cross.mT, c[..., None]], -1)
        # Base parameters are u - V x.
        V, u = (base_map @ solve_each(A, right)).split([count, 1], -1)
        ridge = COLLINEARITY_RIDGE * block.diagonal(dim1=-2, dim2=-1).diag_embed()
        M, r = block + ridge - cross @ V, train[:, n:-1, -1] - (cross @ u)[..., 0]
        unit = torch.eye(count + 1).to(c).expand(len(c), -1, -1)
        base = torch.cat([-V, u], -1)
        others = torch.cat([base, unit[:, -1:]], 1)
        columns = torch.cat([base, unit[:, :-1], -unit[:, -1:]], 1)
        return cls(M, r, others.mT @ Q @ others + w * columns.mT @ test @ columns)

    def __call__(self, sets: Sequence[tuple[int, ...]]) -> list[float]:
        """Mean test error of all dofs for each set."""
        z = torch.nn.functional.pad(self.coefficients(sets), (0, 1), value=1.0)[..., None]
        return (z.mT @ self.E @ z)[..., 0, 0].mean(1).tolist()

    def coefficients(self, sets: Sequence[tuple[int, ...]]) -> Tensor:
        """Coefficients of each set and fold, `[sets, folds, terms]`; zero for terms outside of a set."""
        mask = self.r.new_zeros(len(sets), 1, self.r.shape[-1])
        for row, chosen in zip(mask, sets, strict=True):
            row[0, list(chosen)] = 1.0
        # A term that never acts, or is collinear to rounding, gets the coefficient zero.
        square = self.M.diagonal(dim1=-2, dim2=-1)
        mask = mask * (square > 0)
        scale = square.clamp_min(1e-300).rsqrt() * mask
        M = scale[..., :, None] * self.M * scale[..., None, :] + (1 - mask).diag_embed()
        return scale * torch.linalg.solve(M, scale * self.r)


@dataclass(frozen=True, eq=False)
class TermInformation:
    """Fisher information of one dof's terms by the data alone, without the prior.

    Test folds resemble their neighbours in time. In a short log, or where a joint turns little, an offset and
    a slow periodic force that cancel can predict test folds well and other motions badly. So terms need a
    z-score as well. Common terms (`Term.common`) are exempt: they cannot cancel, since they are nonnegative.

    Attributes:
        information: information matrix of all terms, inertial parameters eliminated, `[terms, terms]`.
        equations: normal equations of base parameters and all terms, `[base + terms, base + terms]`.
        coefficients: maps a set to its coefficients, zero outside of the set, `[terms]`.
        terms: terms of the problem.
    """

    information: Tensor
    equations: Tensor
    coefficients: Callable[[tuple[int, ...]], Tensor]
    terms: Sequence[Term]

    @classmethod
    def of(
        cls, G: Tensor, A: Tensor, w: Tensor, count: Tensor, scores: SubsetScores,
        terms: Sequence[Term],
    ) -> TermInformation:  # fmt: skip
        """Compute the information of one dof's terms.

        Args:
            G: mean equations of the dof, `[columns, columns]`.
            A: equations of base parameters from all dofs, without terms of this dof and without the prior,
                `[base, base]`.
            w: weight of the dof, one over its error variance.
            count: number of its equations.
            scores: scores, which compute coefficients.
            terms: terms of the problem.
        """
        n = len(A)
        cross = G[n:-1, :n]
        remaining = G[n:-1, n:-1] - w * cross @ scaled_pseudo_inverse(A)[0] @ cross.mT
        equations = torch.cat([torch.cat([A, w * cross.mT], 1), w * G[n:-1, :-1]])
        return cls(
            count * w * remaining, equations, lambda x: scores.coefficients([x])[0].mean(0), terms
        )

    def least_significant(self, chosen: tuple[int, ...]) -> int | None:
        """The term of a set with the smallest z-score, if that is below `MIN_Z_SCORE`; otherwise None."""
        removable = [k for k in chosen if not self.terms[k].common]
        if not removable:
            return None
        index = torch.tensor(chosen, device=self.information.device)
        M = self.information[index[:, None], index]
        scale = M.diagonal().clamp_min(1e-300).rsqrt()
        value, vector = torch.linalg.eigh(scale[:, None] * M * scale)
        # Rounding can make eigenvalues of collinear terms negative.
        deviation = scale * (vector.square() @ (1 / value.clamp_min(COLLINEARITY_RIDGE))).sqrt()
        base = len(self.equations) - len(self.information)
        columns = torch.cat([torch.arange(base, device=index.device), base + index])
        collinear = collinear_combinations(self.equations[columns[:, None], columns])[:, base:]
        deviation = torch.where((collinear > 0).any(0), torch.inf, deviation)
        scores = (self.coefficients(chosen)[index].abs() / deviation).tolist()
        z = dict(zip(chosen, scores, strict=True))
        # A term that is always included is removed only if it is collinear, and after the other terms.
        removable = [k for k in removable if not self.terms[k].always_included or not z[k]]
        worst = min(removable, key=lambda k: (z[k], self.terms[k].always_included), default=None)
        return worst if worst is not None and z[worst] < MIN_Z_SCORE else None


def stepwise_search(
    scores: Callable[[Sequence[tuple[int, ...]]], list[float]],
    start: tuple[int, ...],
    allowed: Sequence[int],
    terms: Sequence[Term],
    least_significant: Callable[[tuple[int, ...]], int | None] = lambda chosen: None,
) -> tuple[int, ...]:
    """Select the terms of one dof by adding, exchanging and removing one term at a time.

    A step is taken when it lowers the score by more than `MIN_RELATIVE_GAIN` for each added term, and all
    terms of the new set are significant.

    Args:
        scores: prediction errors of sets.
        start: initial set.
        allowed: indices of the candidate terms.
        terms: terms of the problem.
        least_significant: the insignificant term of a set, if there is one.
    """
    chosen = tuple(sorted(set(start) & set(allowed)))
    while (dropped := least_significant(chosen)) is not None:
        chosen = tuple(k for k in chosen if k != dropped)
    (best,) = scores([chosen])
    while True:
        candidates = [k for k in allowed if k not in chosen]
        dry = [k for k in chosen if terms[k].friction]
        moves = [tuple(sorted((*chosen, k))) for k in candidates]
        moves += [_exchanged(chosen, d, k) for d in dry for k in candidates if terms[k].friction]
        moves += [
            tuple(x for x in chosen if x != k) for k in chosen if not terms[k].always_included
        ]
        moves = list(dict.fromkeys(moves))
        # Each added term costs a minimum gain, and each removed term may lose as much.
        scored = [
            (value + MIN_RELATIVE_GAIN * best * (len(move) - len(chosen)), value, move)
            for value, move in zip(scores(moves), moves, strict=True)
        ]
        better = sorted(x for x in scored if x[0] < best * (1 - 1e-9) and len(x[2]) <= MAX_TERMS)
        significant = ((v, move) for _, v, move in better if least_significant(move) is None)
        value, move = next(significant, (best, chosen))
        if move == chosen:
            return _prefer_sharp_friction(scores, chosen, allowed, terms)
        chosen, best = move, value


def _exchanged(chosen: tuple[int, ...], removed: int, added: int) -> tuple[int, ...]:
    return tuple(sorted((*(k for k in chosen if k != removed), added)))


def _prefer_sharp_friction(
    scores: Callable[[Sequence[tuple[int, ...]]], list[float]],
    chosen: tuple[int, ...],
    allowed: Sequence[int],
    terms: Sequence[Term],
) -> tuple[int, ...]:
    """Replace a friction law with presliding by its sharp limit where the prediction error is nearly equal.

    The filter removes most of the effect of a short presliding distance, so noise would decide. Unfiltered
    forces at each reversal would then be wrong.
    """
    limits = {k: terms[k].sharp_limit for k in allowed if terms[k].sharp_limit is not None}
    # The first candidate of each limit has the shortest presliding distance.
    shortest = {limit: k for k, limit in reversed(limits.items())}
    moves = [_exchanged(chosen, d, k)
             for k in allowed if k not in chosen and (d := shortest.get(terms[k])) in chosen]  # fmt: skip
    best, *values = scores([chosen, *moves])
    value, move = min(zip(values, moves, strict=True), default=(best, chosen))
    return move if value <= best * (1 + MIN_PRESLIDING_GAIN) else chosen
