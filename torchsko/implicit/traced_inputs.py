"""Inputs of loops that belong to a program which is being traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchsko.implicit.jacobian_products import Tensors
from torchsko.utils.traced_tensor import TracedTensor


def first_traced(tensors: Sequence[Tensor]) -> Any:
    """The first tensor of a program that is being traced, without wrappers of torch.func, or None."""
    if torch.compiler.is_compiling():
        return None
    found = next(filter(_is_symbolic, tensors), None)
    return None if found is None else torch.func.debug_unwrap(found, recurse=True)


def _is_symbolic(x: Tensor) -> bool:
    return isinstance(torch.func.debug_unwrap(x, recurse=True), TracedTensor)


def with_float_inputs(
    body: Callable[..., Tensors], are_bool: Sequence[bool]
) -> Callable[..., Tensors]:
    """The body with floats in place of bool inputs, bool and integer outputs, which have no derivatives."""

    def float_body(*tensors: Tensor) -> Tensors:
        outputs = body(*(x != 0 if b else x for x, b in zip(tensors, are_bool, strict=True)))
        return tuple(x if x.is_floating_point() else x.to(tensors[0].dtype) for x in outputs)

    return float_body
