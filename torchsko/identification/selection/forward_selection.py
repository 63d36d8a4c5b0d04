r"""Forward selection of the joint terms of one dof, scored by cross-validation.

The search starts with the default terms, without those that would have an impossible sign. Each step adds
one term, or exchanges the law of dry friction. It is taken if it lowers the test error by more than
`MIN_GAIN`, and by more than the standard error of the difference over folds, times a factor for the number of
classes of candidates: the best of many looks better than it is. Among candidates of one class, the first one
within one standard error of the best one is taken.

Reference: L. Breiman et al., *Classification and regression trees*, 1984 (one-standard-error rule);
T. Hastie, R. Tibshirani, J. Friedman, *The elements of statistical learning*, 2009, 3.3 and 7.10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.friction import Term
from torchsko.identification.regression.elimination import (
    COLLINEARITY_RIDGE,
    EliminatedTerms,
    eliminate_terms_of_problems,
    residual_quadratic_form,
    schur_complement_over_dofs,
    weighted_sum,
)
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import (
    ModelStructure,
    Solution,
    solve_physical_batch,
)
from torchsko.identification.selection.cross_validation import Folds
from torchsko.identification.workers import solve_each
from torchsko.utils.shapes import matvec

MIN_GAIN = 0.05
"""Smallest decrease of the mean square test error for which a step is taken, relative to that of one dof."""

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

    def __call__(self, sets: Sequence[tuple[int, ...]]) -> Tensor:
        """Test error of all dofs for each set and fold, `[sets, folds]`."""
        z = torch.nn.functional.pad(self.coefficients(sets), (0, 1), value=1.0)[..., None]
        return (z.mT @ self.E @ z)[..., 0, 0]

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


def select_terms(
    folds: Folds,
    model: ModelStructure,
    prior: EntropicPrior,
    terms: Sequence[Term],
    allowed: Sequence[int],
    starts: Sequence[Solution] | None,
    dof: int,
    *,
    solved: bool,
) -> tuple[ModelStructure, list[Solution]]:
    """Select the terms of one dof by forward search, with those of other dofs fixed.

    Subsets are scored with the quadratic approximation of the divergence at the current fit, so that each
    score is the solution of a small linear system.

    Args:
        folds: cross-validation folds.
        model: current model.
        prior: divergence from the nominal robot.
        terms: terms of the problem.
        allowed: indices of the candidate terms.
        starts: initial solutions of the folds. Default: the nominal robot.
        dof: dof whose terms are selected.
        solved: whether the initial solutions are the fits of the model.

    Returns:
        The model with the selected terms, and the fits of the folds before the selection.
    """
    if starts is not None and not solved:
        starts = [replace(fit, choice=model.choice) for fit in starts]
    fits = [*starts] if solved and starts is not None else None
    if fits is None:
        fits = solve_physical_batch(folds.train, model, prior, terms, starts)
    scores, choice = subset_scores(folds, model, prior, fits, dof), list(model.choice)
    choice[dof] = forward_search(
        scores, lambda x: scores.coefficients([x])[0].mean(0), choice[dof], allowed, terms
    )
    return replace(model, choice=tuple(choice)), fits


def subset_scores(
    folds: Folds,
    model: ModelStructure,
    prior: EntropicPrior,
    fits: Sequence[Solution],
    dof: int,
) -> SubsetScores:
    """Scores of sets of terms of one dof, near fits of the folds, with the terms of other dofs fixed."""
    base_map = prior.base_map
    half, phi0 = model.prior_weight / 2, torch.stack([fit.phi for fit in fits])
    gradient, hessian = prior.derivatives(phi0)
    # The terms of this dof are candidates, so they are not eliminated.
    fixed = tuple(() if j == dof else chosen for j, chosen in enumerate(model.choice))
    by_fold = eliminate_terms_of_problems(
        folds.train, len(base_map), dict.fromkeys(range(len(fits)), fixed)
    )
    parts = [EliminatedTerms.stacked(x) for x in zip(*by_fold.values(), strict=True)]
    A, c = schur_complement_over_dofs(weighted_sum(folds.train, model.scale), model.scale, parts)
    curvature = half * hessian
    A = base_map.mT @ A @ base_map + curvature
    c = c @ base_map + matvec(curvature, phi0) - half * gradient
    w, test = model.scale[dof], folds.test[:, dof]
    Q = residual_quadratic_form(
        weighted_sum(folds.test, model.scale) - w * test, folds.test, model.scale, parts, fixed
    )
    return SubsetScores.of(folds.train[:, dof], test, A, c, base_map, Q, w)


def selection_variance(
    scores: SubsetScores, chosen: tuple[int, ...], allowed: Sequence[int], terms: Sequence[Term]
) -> Tensor:
    """Variance of the coefficients of one dof over the sets that predict about as well, `[terms]`.

    These are the sets of one more term, or of another law of dry friction, whose error is within one standard
    error, or `MIN_GAIN`, of that of the chosen set. Another part of a log may select any of them. The
    coefficient of dry friction is that of any law.

    Args:
        scores: scores of the dof.
        chosen: selected set.
        allowed: indices of the candidate terms.
        terms: terms of the problem.

    Reference: S. Buckland, K. Burnham, N. Augustin, *Model selection: an integral part of inference*,
    Biometrics 53(2), 1997.
    """
    sets = [chosen, *_moves(chosen, allowed, terms)]
    errors, values = scores(sets), scores.coefficients(sets).mean(1)
    excess, std = _mean_and_std(errors - errors[0])
    negative = torch.tensor([[x.nonnegative for x in terms]]) & (values < 0)
    like = (excess <= std.clamp_min(MIN_GAIN)) & ~negative.any(-1)
    dry = values.new_tensor([bool(x.friction) for x in terms])
    values = torch.where(dry > 0, values @ dry[:, None], values)
    return (values[like] - values[0]).square().nan_to_num(0.0).sum(0) / like.sum().clamp_min(1)


def forward_search(
    scores: Callable[[Sequence[tuple[int, ...]]], Tensor],
    coefficients: Callable[[tuple[int, ...]], Tensor],
    start: tuple[int, ...],
    allowed: Sequence[int],
    terms: Sequence[Term],
) -> tuple[int, ...]:
    """Select the terms of one dof by adding one term at a time, or exchanging the law of dry friction.

    A joint has at most one law of dry friction. Default terms with a negative coefficient that must be
    positive are removed first, and may return.

    Args:
        scores: test errors of sets, `[sets, folds]`, of which each dof contributes about 1.
        coefficients: maps a set to its coefficients, `[terms]`.
        start: initial set.
        allowed: indices of the candidate terms.
        terms: terms of the problem.
    """

    def negative(chosen: tuple[int, ...]) -> list[int]:
        x = coefficients(chosen).tolist()
        return [k for k in chosen if terms[k].nonnegative and x[k] < 0]

    chosen = start
    while worst := negative(chosen):
        x = coefficients(chosen)
        drop = min(worst, key=lambda k: float(x[k]))
        chosen = tuple(k for k in chosen if k != drop)
    while len(chosen) < MAX_TERMS:
        moves = [x for x in _moves(chosen, allowed, terms) if not negative(x)]
        if not moves:
            break
        errors = scores([chosen, *moves])
        mean, std = _mean_and_std(errors[0] - errors[1:])
        added = [_added(chosen, x, terms) for x in moves]
        clear = mean > (_min_standard_errors(len(set(added))) * std).clamp_min(MIN_GAIN)
        if not bool(clear.any()):
            break
        best = int(torch.where(clear, mean, -torch.inf).argmax())
        loss, std = _mean_and_std(errors[1:] - errors[1 + best])
        similar = torch.tensor([x is added[best] for x in added])
        equivalent = clear & (loss <= std) & similar
        chosen = moves[int(equivalent.nonzero()[0])]
    return chosen


def _min_standard_errors(candidates: int) -> float:
    """Smallest gain of the best of several candidates, in standard errors of the gain.

    The largest of n standard normal values is below sqrt(2 log n) on average.
    """
    return max(1.0, math.sqrt(2 * math.log(candidates)))


def _mean_and_std(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over folds `[sets, folds]`, and its standard error."""
    return x.mean(1), x.std(1) / x.shape[1] ** 0.5


def _added(before: tuple[int, ...], after: tuple[int, ...], terms: Sequence[Term]) -> type[Term]:
    """Class of the term that a step adds."""
    (k,) = set(after) - set(before)
    return type(terms[k])


def _moves(
    chosen: tuple[int, ...], allowed: Sequence[int], terms: Sequence[Term]
) -> list[tuple[int, ...]]:
    """Sets with one more term, or with another law of dry friction."""
    dry = [k for k in chosen if terms[k].friction]
    sets = []
    for k in allowed:
        if k not in chosen:
            remaining = [x for x in chosen if not (terms[k].friction and x in dry)]
            sets.append(tuple(sorted((*remaining, k))))
    return sets
