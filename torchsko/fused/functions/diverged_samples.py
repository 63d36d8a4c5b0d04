"""Gradients of samples without a cotangent.

In reverse mode, zero times a derivative that is not finite is nan. A sample that left the finite numbers
would make the gradient of a parameter that all samples share nan, although a mask excludes it from the loss.
The gradient of a sample whose cotangents are all zero is therefore zero, also if its derivatives are not
finite.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import NonFiniteError, caller_stack_level
from torchsko.fused.program.program import Port
from torchsko.implicit.jacobian_products import Tensors
from torchsko.integrators.finite_checks import NonFiniteChoice
from torchsko.utils.concrete_values import concrete_values


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


def treat_nonfinite(
    name: str, outputs: Sequence[Tensor], ports: Sequence[Port], choice: NonFiniteChoice
) -> Sequence[Tensor]:
    """Results of a kernel whose samples may have left the finite numbers.

    Args:
        name: name of the function.
        outputs: its results, `[*batch, *shape]`.
        ports: their ports.
        choice: see `torchsko.fuse`.

    Returns:
        The results; with "zero" those of samples that are not finite are constants.

    Raises:
        NonFiniteError: with "raise", when a result is not finite; names the sample.
    """
    if choice == "ignore":
        return outputs
    finite = _are_finite(outputs, ports)
    if choice == "zero":
        pairs = zip(outputs, ports, strict=True)
        return [torch.where(finite[(..., *[None] * len(p.shape))], y, y.detach()) for y, p in pairs]
    read = concrete_values(finite)
    if read is None or read.all():
        return outputs
    sample = [int(k[0]) for k in (~read).nonzero()]
    fields = (
        f"results of {name} are not finite in {int((~read).sum())} samples, the first of them {sample}.",
        "Its inputs are not finite, or the motion left the finite numbers.",
        'Reset the sample; nonfinite="zero" of ts.fuse removes its gradient, "ignore" this check.',
    )
    if choice == "raise":
        raise NonFiniteError(*fields)
    warnings.warn("\n".join(fields), RuntimeWarning, stacklevel=caller_stack_level())
    return outputs


def _are_finite(tensors: Sequence[Tensor], ports: Sequence[Port]) -> Tensor:
    """True for samples whose numbers are finite, `[*batch]`."""
    parts = [
        x.isfinite().flatten(x.ndim - len(port.shape)).all(-1) if port.shape else x.isfinite()
        for x, port in zip(tensors, ports, strict=True)
    ]
    finite = parts[0]
    for part in parts[1:]:
        finite = finite & part
    return finite
