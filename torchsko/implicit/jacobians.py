"""Derivatives of functions of tensors, as functions of tensors again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchsko.implicit.jacobian_products import Flags, Tensors, restricted, tangents_along

Function = Callable[..., Tensor | Sequence[Tensor]]
Pullback = Callable[[Flags, Tensors, Tensors, Tensors], Sequence[Tensor]]


def gradients_of(
    fn: Callable[..., Tensors],
    needed: Flags,
    num_outputs: int,
    with_value: bool,
    pullback: Pullback | None = None,
) -> Function:
    """Gradients of a function, of (inputs, outputs if saved, cotangents)."""
    num_inputs = len(needed)

    def gradients(*tensors: Tensor) -> Tensors:
        inputs, by = tensors[:num_inputs], tensors[-num_outputs:]
        if pullback is None:
            part, chosen = restricted(fn, inputs, needed)
            value, pull = torch.func.vjp(part, *chosen)[:2]
            found = pull(by)
        else:
            value = fn(*inputs) if with_value else tensors[num_inputs:-num_outputs]
            found = pullback(needed, inputs, value, by)
        return (*value, *found) if with_value else tuple(found)

    return gradients


def tangents_of(fn: Callable[..., Tensors], given: Flags) -> Function:
    """Tangents of a function, of (inputs, tangents of the given inputs)."""

    def tangents(*tensors: Tensor) -> Tensors:
        part, chosen = restricted(fn, tensors[: len(given)], given)
        return tangents_along(part, chosen, tensors[len(given) :])

    return tangents
