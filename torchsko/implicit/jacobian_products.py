"""Products with Jacobians, of functions of tensors of which some inputs are held."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Flags = tuple[bool, ...]
Tensors = tuple[Tensor, ...]


def restricted(
    fn: Callable[..., Tensors], inputs: Sequence[Tensor], flags: Sequence[bool]
) -> tuple[Callable[..., Tensors], Tensors]:
    """A function of some of its inputs, the others held at their values; and those inputs."""
    places = [k for k, flag in enumerate(flags) if flag]

    def part(*chosen: Tensor) -> Tensors:
        full = list(inputs)
        for k, x in zip(places, chosen, strict=True):
            full[k] = x
        return fn(*full)

    return part, tuple(inputs[k] for k in places)


def tangents_along(fn: Callable[..., Tensors], inputs: Tensors, by: Tensors) -> Tensors:
    """JVP as the VJP of the VJP in its cotangent.

    Forward mode has one level for the whole process, so `torch.func.jvp` fails where a caller has
    entered it. A traced program loses nothing: the cotangent occurs linearly and drops out.
    """
    outputs, pullback = torch.func.vjp(fn, *inputs)[:2]
    zeros = tuple(torch.zeros_like(y) for y in outputs)
    return torch.func.vjp(lambda *cotangents: pullback(cotangents), *zeros)[1](by)
