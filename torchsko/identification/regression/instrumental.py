r"""Instrumental variables on base parameters and terms of all dofs at once.

Least squares on :math:`Y^T (Y \theta - \tau)` is biased where Y is computed of noisy positions: the noise of
Y does not vanish in :math:`Y^T Y`. Delayed columns Z have independent noise, which vanishes in
:math:`Z^T (Y \theta - \tau) = 0`. The mean over a delay and an advance is the symmetric part of the
autocorrelation of the columns at that lag, which `normal_equations` accumulates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.identification.regression.elimination import mean_equations, term_columns
from torchsko.identification.regression.least_squares import (
    RANK_TOLERANCE,
    ParameterUncertainty,
    inverse_column_norms,
    scaled_pseudo_inverse,
)
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.regression.solution import ModelStructure, Solution, TermChoice
from torchsko.verbs.base_parameters import BaseParameters

MIN_STRENGTH = 0.1
"""Correlation of a direction with its instruments below which it keeps the least-squares estimate: a weak
instrument has less bias, but unbounded variance."""


def paired(lagged: NormalEquations, plain: NormalEquations) -> NormalEquations:
    """Stack equations with and without the lag along the dofs."""
    sums, count = (
        torch.cat([getattr(x, name) for x in (lagged, plain)], 1) for name in ("sums", "count")
    )
    return NormalEquations(sums, count, plain.num_base)


def instrumental_fit(
    pair: NormalEquations, model: ModelStructure, base: BaseParameters
) -> Solution:
    """Solve the instrumental-variable equations of one fold, starting at least squares.

    Args:
        pair: from `paired`.
        model: terms and weights.
        base: parameters.
    """
    (A, c), (A0, c0) = paired_systems(pair, model)
    start = scaled_pseudo_inverse(A0)[0] @ c0
    root, value, vector = strengths(A, A0)
    known = value > MIN_STRENGTH
    gain = torch.where(known, 1 / torch.where(known, value, 1.0), 0.0)
    theta = start + root @ (vector @ (gain * (vector.mT @ (root.mT @ (c - A @ start)))))
    beta, *numbers = theta.split([pair.num_base, *(len(some) for some in model.choice)])
    return Solution(base.representative @ beta, beta, tuple(numbers), model.choice)


def instrumental_information(
    pair: NormalEquations,
    model: ModelStructure,
    variance: Tensor,
    inflation: Tensor,
    *,
    weak: bool = False,
) -> ParameterUncertainty:
    """Covariance of `instrumental_fit`, for autocorrelated errors that are independent of the motion.

    Directions with weak instruments keep the bias of least squares; it is estimated from the corrections of
    the other directions.

    Args:
        pair: from `paired`.
        model: terms and weights of the fit.
        variance: of each dof's residual, `[num_dof]`.
        inflation: samples of it that are one, `[num_dof]`.
        weak: of these directions alone.
    """
    dofs = len(variance)
    (A, c), (A0, c0) = paired_systems(pair, model)
    meat = model.scale.square() * variance * inflation / pair.count[0, dofs:].clamp_min(1)
    B, _ = assembled(mean_equations(pair)[dofs:], meat, model.choice, pair.num_base)
    root, value, vector = strengths(A, A0)
    strong, way = value > MIN_STRENGTH, root @ vector
    size = (way.mT @ B @ way).diagonal().clamp_min(1e-300)
    bias = (c @ way - value * (c0 @ way)).square() / value.square() / size
    more = bias[strong].mean().clamp_min(1.0).sqrt() if bool(strong.any()) else 1.0
    gain = torch.where(strong, 0.0 if weak else 1 / value, more * torch.ones_like(value))
    bread = way * gain @ way.mT
    covariance = bread @ B @ bread.mT
    deviation, count = covariance.diagonal().clamp_min(0).sqrt(), pair.num_base
    parts = deviation[count:].split([len(some) for some in model.choice])
    condition = scaled_pseudo_inverse(A0)[1]
    return ParameterUncertainty(covariance[:count, :count], tuple(parts), condition)


class Instrumental:
    """Influence of each sample's error on the part of `instrumental_fit` with strong instruments.

    See `torchsko.identification.uncertainty.robust_covariance.InfluenceFunction`.

    Args:
        pair: from `paired`.
        model: terms and weights of the fit.
        lag: of the instruments [samples].
    """

    def __init__(self, pair: NormalEquations, model: ModelStructure, lag: int) -> None:
        (A, _), (A0, _) = paired_systems(pair, model)
        root, value, vector = strengths(A, A0)
        gain = torch.where(value > MIN_STRENGTH, 1 / value.clamp_min(MIN_STRENGTH), 0.0)
        bread, dofs = root @ (vector * gain) @ vector.mT @ root.mT, len(model.scale)
        self.lag, self.choice, self.num_base = lag, model.choice, pair.num_base
        first, *own = bread.split([pair.num_base, *(len(some) for some in model.choice)])
        each = zip(model.scale, pair.count[0, :dofs].clamp_min(1), own, strict=True)
        self.bread = [w / n * torch.cat([first, rows]) for w, n, rows in each]

    def __call__(self, dof: int, X: Tensor, error: Tensor) -> Tensor:
        """Influence `[samples, parameters]` of columns `[samples, columns]` and errors `[samples]`."""
        columns = torch.cat([torch.arange(self.num_base, device=X.device),
                             term_columns(self.num_base, self.choice[dof], X)])  # fmt: skip
        X = X.index_select(-1, columns)
        none = torch.zeros_like(X[: self.lag])
        early, late = torch.cat([none, X[: -self.lag]]), torch.cat([X[self.lag :], none])
        return error[:, None] * (early + late)[: len(X)] / 2 @ self.bread[dof]


def paired_systems(
    pair: NormalEquations, model: ModelStructure
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Both systems of a pair, with the lag and without."""
    with_lag, without = mean_equations(pair).chunk(2)
    rest = model.scale, model.choice, pair.num_base
    return assembled(with_lag, *rest), assembled(without, *rest)


def strengths(A: Tensor, A0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Correlations of directions with their instruments: a root of A0^-1, eigenvalues and eigenvectors."""
    size = inverse_column_norms(A0)
    value, vector = torch.linalg.eigh(size[:, None] * A0 * size)
    known = value > RANK_TOLERANCE * value[-1]
    root = size[:, None] * vector * torch.where(known, value, 1.0).rsqrt() * known
    inside = root.mT @ A @ root
    return root, *torch.linalg.eigh((inside + inside.mT) / 2)


def assembled(G: Tensor, scale: Tensor, choice: TermChoice, base: int) -> tuple[Tensor, Tensor]:
    """Assemble the weighted normal equations of all dofs into one system."""
    at, first = base, torch.arange(base, device=G.device)
    size = base + sum(map(len, choice))
    A, c = G.new_zeros(size, size), G.new_zeros(size)
    for j, some in enumerate(choice):
        own = torch.arange(at, at + len(some), device=G.device)
        place = torch.cat([first, own])
        pick = torch.cat([first, term_columns(base, some, G)])
        A = A.index_put(
            (place[:, None], place), scale[j] * G[j][pick[:, None], pick], accumulate=True
        )
        c = c.index_put((place,), scale[j] * G[j][pick, -1], accumulate=True)
        at += len(some)
    return A, c
