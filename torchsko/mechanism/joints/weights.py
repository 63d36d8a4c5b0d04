"""Edge weights of a group of joints as a sum of few terms, to save passes over memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class WeightTerms:
    """Weights of a group of joints: a constant plus functions of q times constant matrices.

    The weight of a joint with one degree of freedom is affine in (cos q, sin q) or in q. Its coefficients are
    shared by all samples, so the sum takes two passes over memory instead of products of small matrices.

    Attributes:
        constant: constant term, `[*, g, 6, 6]`.
        factors: functions of q, `[*batch, g, 1, 1]`, each with its matrix `[*, g, 6, 6]`.
    """

    constant: Tensor
    factors: tuple[tuple[Tensor, Tensor], ...] = ()

    def split(self, sizes: Sequence[int]) -> list[Tensor]:
        """Weights of consecutive runs of joints, each `[*batch, n, 6, 6]`, contiguous."""
        # One split per tensor: the gradient of each separate slice would have the size of the whole tensor.
        runs = list(self.constant.split(tuple(sizes), -3))
        for coefficient, matrix in self.factors:
            cuts = coefficient.split(tuple(sizes), -3), matrix.split(tuple(sizes), -3)
            runs = [torch.addcmul(*parts) for parts in zip(runs, *cuts, strict=True)]
        return [run.contiguous() for run in runs]
