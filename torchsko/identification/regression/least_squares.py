"""Weighted least squares on base parameters, and the covariance of its estimates."""

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
"""Relative eigenvalue of scaled normal equations below which a direction counts as rank-deficient."""

COLLINEARITY_TOLERANCE = 1e-9
"""Relative eigenvalue of scaled normal equations below which columns count as collinear."""

ZERO_COLUMN_TOLERANCE = 1e-24
"""Squared column norm, relative to the largest, up to which a column is rounding of a joint at rest."""

MIN_SHARE = 1e-3
"""Smallest share of a parameter in a collinear combination, relative to the largest share."""


def fit_base_parameters(
    normal: NormalEquations, model: ModelStructure, base: BaseParameters
) -> Solution:
    """Solve least squares for base parameters and terms, without the physical cone and the prior.

    Inertial parameters that do not represent a base parameter are zero.

    Args:
        normal: equations of one fold.
        model: terms and weights of each dof.
        base: base parameters of the robot.
    """
    G = mean_equations(normal)[None]
    parts = eliminate_terms_of_problems(G, normal.num_base, {0: model.choice})[0]
    A, c = schur_complement_over_dofs(weighted_sum(G, model.scale)[0], model.scale, parts)
    beta = scaled_pseudo_inverse(A)[0] @ c
    coefficients = tuple(part.coefficients(beta) for part in parts)
    return Solution(base.representative @ beta, beta, coefficients, model.choice)


def scaled_pseudo_inverse(A: Tensor) -> tuple[Tensor, float]:
    """Pseudo-inverse of a symmetric matrix after scaling to unit diagonal, and its condition number."""
    scale = inverse_column_norms(A)
    value, vector = torch.linalg.eigh(scale[:, None] * A * scale)
    nonzero = value > RANK_TOLERANCE * value[-1]
    inverse = torch.where(nonzero, 1 / torch.where(nonzero, value, 1.0), 0.0)
    condition = float((value[-1] / value[0].clamp_min(1e-300)).sqrt())
    return scale[:, None] * ((vector * inverse) @ vector.mT) * scale, condition


def inverse_column_norms(A: Tensor) -> Tensor:
    """One over the norms of columns with products `A`; 0 for columns that are zero to rounding."""
    square = A.diagonal()
    nonzero = square > ZERO_COLUMN_TOLERANCE * square.amax().clamp_min(0)
    return torch.where(nonzero, torch.where(nonzero, square, 1.0).rsqrt(), 0.0)


def collinear_combinations(A: Tensor) -> Tensor:
    """Find combinations of parameters whose columns cancel, `[combinations, parameters]`.

    Args:
        A: normal equations.

    Returns:
        Absolute share of each parameter, 1 for the largest and 0 for rounding. Parameters with zero columns
        come first, each as a combination by itself.
    """
    scale = inverse_column_norms(A)
    # Zero columns get unit length, so that they do not join the combinations of other columns.
    unit = scale[:, None] * A * scale + (scale == 0).diag_embed()
    value, vector = torch.linalg.eigh(unit)
    share = vector.mT[value <= COLLINEARITY_TOLERANCE * value[-1]].abs()
    share = share / share.amax(-1, keepdim=True)
    zero_columns = torch.eye(len(A)).to(A)[scale == 0]
    return torch.cat([zero_columns, torch.where(share > MIN_SHARE, share, 0.0)])


@dataclass(frozen=True, eq=False)
class ParameterUncertainty:
    """Covariance of the estimates by the data alone, without the prior.

    Attributes:
        covariance: covariance of base parameters, `[base, base]`.
        term_std: standard errors of the coefficients of each dof.
        condition: condition number of the weighted columns of base parameters at unit length.
    """

    covariance: Tensor
    term_std: tuple[Tensor, ...]
    condition: float


def parameter_uncertainty(
    normal: NormalEquations,
    model: ModelStructure,
    choice: TermChoice,
    variance: Tensor,
    autocorrelation: Tensor,
) -> ParameterUncertainty:
    """Covariance of weighted least squares with autocorrelated residuals, M^-1 B M^-1.

    M is the information matrix with the weights of the fit, and B the variance of the score. Variances are
    multiplied by the integrated autocorrelation of the residuals, so that the sampling rate does not matter.

    Args:
        normal: equations of the whole log as one fold.
        model: weights of the fit.
        choice: fitted terms of each dof.
        variance: residual variance of each dof, `[num_dof]`.
        autocorrelation: integrated autocorrelation of its residual in samples, `[num_dof]`.
    """
    sandwich = SandwichBread.of(normal, model, choice)
    meat = model.scale.square() * normal.count[0] * variance * autocorrelation
    covariance = sandwich.bread @ (meat[:, None, None] * sandwich.A).sum(0) @ sandwich.bread
    deviations = []
    for j, (gain, inverse) in enumerate(
        zip(sandwich.base_gain, sandwich.term_inverse, strict=True)
    ):
        total = variance[j] * autocorrelation[j] * inverse + gain @ covariance @ gain.mT
        deviations.append(total.diagonal().clamp_min(0).sqrt())
    return ParameterUncertainty(covariance, tuple(deviations), sandwich.condition)


@dataclass(frozen=True, eq=False)
class SandwichBread:
    """Outer factors of the sandwich covariance of weighted least squares.

    Attributes:
        A: equations of base parameters of each dof, terms eliminated, `[num_dof, base, base]`.
        bread: inverse of their weighted sum, `[base, base]`.
        condition: condition number of that sum at unit diagonal.
        base_gain: decrease of each dof's coefficients per base parameter, `[terms, base]`.
        columns: column indices of each dof's terms, `[terms]`.
        term_inverse: inverse of the equations of each dof's terms alone, `[terms, terms]`.
    """

    A: Tensor
    bread: Tensor
    condition: float
    base_gain: tuple[Tensor, ...]
    columns: tuple[Tensor, ...]
    term_inverse: tuple[Tensor, ...]

    @classmethod
    def of(
        cls, normal: NormalEquations, model: ModelStructure, choice: TermChoice
    ) -> SandwichBread:
        """Compute the factors from the equations of the whole log as one fold."""
        G, n = mean_equations(normal), normal.count[0]
        parts = [schur_complement(g, normal.num_base, t) for g, t in zip(G, choice, strict=True)]
        A = torch.stack([p.A for p in parts])
        bread, condition = scaled_pseudo_inverse(((model.scale * n)[:, None, None] * A).sum(0))
        columns, inverses = [], []
        for g, count, chosen in zip(G, n, choice, strict=True):
            index = term_columns(normal.num_base, chosen, G)
            block = g[index[:, None], index] * count
            columns.append(index)
            inverses.append(scaled_pseudo_inverse(block)[0] if len(index) else block)
        gains = tuple(p.base_gain for p in parts)
        return cls(A, bread, condition, gains, tuple(columns), tuple(inverses))
