"""Gradients of samples without a cotangent.

In reverse mode, zero times a derivative that is not finite is nan. A sample that left the finite numbers
would make the gradient of a parameter that all samples share nan, although a mask excludes it from the loss.
The gradient of a sample whose cotangents are all zero is therefore zero, also if its derivatives are not
finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.fused.program.program import Port
from torchsko.implicit.jacobian_products import Tensors


@dataclass(frozen=True)
class ZeroWithoutCotangent:
    """Replaces gradients that are not finite by zero in samples whose cotangents are all zero.

    Attributes:
        cotangents: ports of the cotangents.
        gradients: ports of the gradients.
    """

    cotangents: tuple[Port, ...]
    gradients: tuple[Port, ...]

    def __call__(self, gradients: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Tensors:
        """The gradients `[*batch, *shape]`, from cotangents `[*batch, *shape]`."""
        if not gradients or not cotangents:
            return tuple(gradients)
        size = _sizes(cotangents, self.cotangents)
        # A gradient that is finite stays as it is, with its derivative by the cotangents.
        dropped = (size == 0) & ~(_sizes(gradients, self.gradients) < torch.inf)
        return tuple(
            torch.where(dropped[(..., *[None] * len(port.shape))], torch.zeros_like(x), x)
            for x, port in zip(gradients, self.gradients, strict=True)
        )


def _sizes(tensors: Sequence[Tensor], ports: Sequence[Port]) -> Tensor:
    """Sum of the absolute values of each sample, `[*batch]`; nan if one of them is nan."""
    parts = []
    for x, port in zip(tensors, ports, strict=True):
        size = x.detach().abs()
        parts.append(size.flatten(x.ndim - len(port.shape)).sum(-1) if port.shape else size)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
