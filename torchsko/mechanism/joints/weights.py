"""Edge weights of a group of joints, written so that they cost few passes over memory."""

from __future__ import annotations

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

    def narrow(self, first: int, count: int) -> Tensor:
        """The weights of some of the joints, `[*batch, count, 6, 6]`, contiguous."""
        weight = self.constant.narrow(-3, first, count)
        for coefficient, matrix in self.factors:
            weight = torch.addcmul(
                weight, coefficient.narrow(-3, first, count), matrix.narrow(-3, first, count)
            )
        return weight.contiguous()
