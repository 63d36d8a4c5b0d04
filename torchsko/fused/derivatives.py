"""Derivatives of functions of tensors, as functions of tensors again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Flags = tuple[bool, ...]
Tensors = tuple[Tensor, ...]
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
            part, chosen = _restricted(fn, inputs, needed)
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
        part, chosen = _restricted(fn, tensors[: len(given)], given)
        return _jvp(part, chosen, tensors[len(given) :])

    return tangents


def _jvp(fn: Callable[..., Tensors], inputs: Tensors, by: Tensors) -> Tensors:
    """JVP as the VJP of the VJP in its cotangent.

    Forward mode has one level for the whole process, so `torch.func.jvp` fails where a caller has
    entered it. The traced program loses nothing: the cotangent occurs linearly and drops out.
    """
    outputs, pullback = torch.func.vjp(fn, *inputs)[:2]
    zeros = tuple(torch.zeros_like(y) for y in outputs)
    return torch.func.vjp(lambda *cotangents: pullback(cotangents), *zeros)[1](by)


def _restricted(
    fn: Callable[..., Tensors], inputs: Sequence[Tensor], flags: Flags
) -> tuple[Callable[..., Tensors], Tensors]:
    """A function of some of its inputs, the others held at their values; and those inputs."""
    places = [k for k, flag in enumerate(flags) if flag]

    def part(*chosen: Tensor) -> Tensors:
        full = list(inputs)
        for k, x in zip(places, chosen, strict=True):
            full[k] = x
        return fn(*full)

    return part, tuple(inputs[k] for k in places)
