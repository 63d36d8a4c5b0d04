"""Edge weights of a group of joints, written so that they cost few passes over memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class WeightTerms:
    """Weights of a group of joints as constant matrices times functions of q, summed.

    A joint with one freedom has a weight that is affine in (cos q, sin q) or in q, with coefficients
    that are the same for all samples: two passes over memory instead of products of small matrices.

    Attributes:
        constant: `[*, g, 6, 6]`.
        factors: coefficient functions of q, `[*batch, g, 1, 1]`, and their matrices `[*, g, 6, 6]`.
    """

    constant: Tensor
    factors: tuple[tuple[Tensor, Tensor], ...] = ()

    def split(self, sizes: Sequence[int]) -> list[Tensor]:
        """The weights of consecutive runs of the joints, each `[*batch, n, 6, 6]`, contiguous."""
        # Each tensor is cut once: a cut per run would have a gradient of the size of the whole each.
        runs = list(self.constant.split(tuple(sizes), -3))
        for coefficient, matrix in self.factors:
            cuts = coefficient.split(tuple(sizes), -3), matrix.split(tuple(sizes), -3)
            runs = [torch.addcmul(*parts) for parts in zip(runs, *cuts, strict=True)]
        return [run.contiguous() for run in runs]
