"""Least squares on base parameters, without cone or prior; and what the data know of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.regression.elimination import (
    TermChoice,
    eliminate_terms_of_problems,
    mean_equations,
    schur_complement,
    schur_complement_over_dofs,
    term_columns,
    weighted_sum,
)
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.regression.solution import ModelStructure, Solution
from torchsko.verbs.base_parameters import BaseParameters

RANK_TOLERANCE = 1e-12
"""Relative eigenvalue of scaled normal equations below which a direction is not in the data."""

COLLINEARITY_TOLERANCE = 1e-9
"""Relative eigenvalue of normal equations at unit length below which columns cancel each other."""

ZERO_COLUMN_TOLERANCE = 1e-24
"""Square of a column, of the largest, up to which it is rounding: of accelerations of a joint that stood."""

MIN_SHARE = 1e-3
"""Of the largest, from which on a number is part of a combination."""


def fit_base_parameters(
    normal: NormalEquations, model: ModelStructure, base: BaseParameters
) -> Solution:
    """Least squares: numbers that lead base parameters, the others zero, and those of the terms.

    Args:
        normal: equations of one fold.
        model: terms of each dof, and how much each dof's error counts.
        base: which numbers lead.
    """
    G = mean_equations(normal)[None]
    parts = eliminate_terms_of_problems(G, normal.base, {0: model.choice})[0]
    A, c = schur_complement_over_dofs(weighted_sum(G, model.scale)[0], model.scale, parts)
    beta = scaled_pseudo_inverse(A)[0] @ c
    numbers = tuple(p.numbers(beta) for p in parts)
    return Solution(base.representative @ beta, beta, numbers, model.choice)


def scaled_pseudo_inverse(A: Tensor) -> tuple[Tensor, float]:
    """Inverse of a symmetric matrix by eigenvalues of it at unit diagonal, and its condition number."""
    size = inverse_column_norms(A)
    value, vector = torch.linalg.eigh(size[:, None] * A * size)
    known = value > RANK_TOLERANCE * value[-1]
    inverse = torch.where(known, 1 / torch.where(known, value, 1.0), 0.0)
    condition = float((value[-1] / value[0].clamp_min(1e-300)).sqrt())
    return size[:, None] * ((vector * inverse) @ vector.mT) * size, condition


def inverse_column_norms(A: Tensor) -> Tensor:
    """One over the length of columns by their products, 0 of those that are nothing: times rounding, too."""
    square = A.diagonal()
    known = square > ZERO_COLUMN_TOLERANCE * square.amax().clamp_min(0)
    return torch.where(known, torch.where(known, square, 1.0).rsqrt(), 0.0)


def collinear_combinations(A: Tensor) -> Tensor:
    """Combinations of numbers whose columns cancel each other, `[combinations, numbers]`.

    Args:
        A: normal equations.

    Returns:
        The share of each number, 1 for the largest; 0 for what is rounding. First those whose columns are
        nothing at all, each by itself.
    """
    size = inverse_column_norms(A)
    # Columns that are nothing have unit length here: beside others they would share with all that cancels.
    unit = size[:, None] * A * size + (size == 0).diag_embed()
    value, vector = torch.linalg.eigh(unit)
    share = vector.mT[value <= COLLINEARITY_TOLERANCE * value[-1]].abs()
    share = share / share.amax(-1, keepdim=True)
    alone = torch.eye(len(A)).to(A)[size == 0]
    return torch.cat([alone, torch.where(share > MIN_SHARE, share, 0.0)])


@dataclass(frozen=True, eq=False)
class ParameterUncertainty:
    """What the data alone tell of what was fitted: Fisher's information, and what follows.

    Attributes:
        covariance: of base parameters, `[base, base]`.
        terms: standard deviations of the numbers of each dof's terms.
        condition: of the columns of base parameters at unit length, weighed as in the fit.
    """

    covariance: Tensor
    terms: tuple[Tensor, ...]
    condition: float


def parameter_uncertainty(
    normal: NormalEquations,
    model: ModelStructure,
    choice: TermChoice,
    variance: Tensor,
    inflation: Tensor,
) -> ParameterUncertainty:
    """Covariance of weighted least squares whose errors are correlated in time.

    M^-1 B M^-1 with M the information at the weights of the fit and B the variance of its slope: an error
    that lasts counts as one, however often it was sampled.

    Args:
        normal: equations of one fold: all.
        model: weights of the fit.
        choice: terms that were fitted.
        variance: of each dof's residual, `[num_dof]`.
        inflation: samples of it that are one, `[num_dof]`.
    """
    told = SandwichBread.of(normal, model, choice)
    size = model.scale.square() * normal.count[0] * variance * inflation
    covariance = told.bread @ (size[:, None, None] * told.A).sum(0) @ told.bread
    deviations = []
    for j, (gain, own) in enumerate(zip(told.base_gain, told.own, strict=True)):
        total = variance[j] * inflation[j] * own + gain @ covariance @ gain.mT
        deviations.append(total.diagonal().clamp_min(0).sqrt())
    return ParameterUncertainty(covariance, tuple(deviations), told.condition)


@dataclass(frozen=True, eq=False)
class SandwichBread:
    """How weighted least squares answers to errors: what stands on both sides of their variance.

    Attributes:
        A: of each dof, equations of base parameters, terms eliminated, `[num_dof, base, base]`.
        bread: inverse of their weighted sum, `[base, base]`.
        condition: of that sum at unit diagonal.
        gain: what each dof's terms lose to base parameters, `[terms, base]`.
        columns: where each dof's terms stand, `[terms]`.
        own: inverse of the equations of each dof's terms alone, `[terms, terms]`.
    """

    A: Tensor
    bread: Tensor
    condition: float
    base_gain: tuple[Tensor, ...]
    columns: tuple[Tensor, ...]
    own: tuple[Tensor, ...]

    @classmethod
    def of(
        cls, normal: NormalEquations, model: ModelStructure, choice: TermChoice
    ) -> SandwichBread:
        """That of equations of one fold: all."""
        G, n = mean_equations(normal), normal.count[0]
        parts = [schur_complement(g, normal.base, t) for g, t in zip(G, choice, strict=True)]
        A = torch.stack([p.A for p in parts])
        bread, condition = scaled_pseudo_inverse(((model.scale * n)[:, None, None] * A).sum(0))
        columns, own = [], []
        for g, count, chosen in zip(G, n, choice, strict=True):
            S = term_columns(normal.base, chosen, G)
            alone = g[S[:, None], S] * count
            columns.append(S)
            own.append(scaled_pseudo_inverse(alone)[0] if len(S) else alone)
        return cls(
            A, bread, condition, tuple(p.base_gain for p in parts), tuple(columns), tuple(own)
        )
