"""Jacobian-vector and vector-Jacobian products, as functions of tensors that can be differentiated again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

T = TypeVar("T")
Flags = tuple[bool, ...]
Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensor | Sequence[Tensor]]
Pullback = Callable[[Flags, Tensors, Tensors, Tensors], Sequence[Tensor]]
"""Maps (needed, inputs, outputs, cotangents) to the gradients of the needed inputs."""

MAX_SEPARATE_VJPS = 3
"""Number of VJPs of one function, each of other inputs, after which a new one includes all of theirs."""


def covering_flags(needed: Flags, built: Sequence[Flags]) -> Flags:
    """The inputs of a VJP that includes the needed ones: of the smallest built one if any does.

    A function of n inputs has at most `MAX_SEPARATE_VJPS` + n VJPs then, instead of 2^n.

    Args:
        needed: flags the inputs whose gradients are needed.
        built: the flags of the VJPs that were built before.
    """
    covering = [
        flags for flags in built if all(a or not b for a, b in zip(flags, needed, strict=True))
    ]
    if covering:
        return min(covering, key=sum)
    if len(built) < MAX_SEPARATE_VJPS:
        return needed
    return tuple(map(any, zip(needed, *built, strict=True)))


def select_flagged(items: Sequence[T], flags: Flags, chosen: Flags) -> tuple[T, ...]:
    """Of items for the flagged positions, those for the chosen ones."""
    pairs = zip(
        items, (keep for flag, keep in zip(flags, chosen, strict=True) if flag), strict=True
    )
    return tuple(item for item, keep in pairs if keep)


def fix_inputs(
    fn: Callable[..., Tensors], inputs: Sequence[Tensor], flags: Sequence[bool]
) -> tuple[Callable[..., Tensors], Tensors]:
    """A function of the flagged inputs with all others fixed at their values, and the flagged inputs."""
    positions = [k for k, flag in enumerate(flags) if flag]

    def part(*chosen: Tensor) -> Tensors:
        full = list(inputs)
        for k, x in zip(positions, chosen, strict=True):
            full[k] = x
        return fn(*full)

    return part, tuple(inputs[k] for k in positions)


def vjp(
    fn: Callable[..., Tensors], *inputs: Tensor
) -> tuple[Tensors, Callable[[Sequence[Tensor]], Tensors]]:
    """The outputs of a function and its pullback, which maps cotangents to gradients, as `torch.func.vjp`.

    The pullback of `torch.func.vjp` and `torch.autograd.grad` import torch._dynamo and sympy, which takes one
    to two seconds of processor time in each process.
    """
    if torch.compiler.is_compiling():  # Dynamo knows torch.func.vjp alone
        return torch.func.vjp(fn, *inputs)[:2]
    wrapped: list[Tensors] = []

    def recording(*primals: Tensor) -> Tensors:
        wrapped.extend((primals, tuple(fn(*primals))))
        return wrapped[1]

    outputs = torch.func.vjp(recording, *inputs)[0]
    primals, results = wrapped

    def pull(cotangents: Sequence[Tensor]) -> Tensors:
        pairs = [z for z in zip(results, cotangents, strict=True) if z[0].requires_grad]
        found: Sequence[Tensor | None] = [None] * len(primals)
        if pairs:
            ends, grads = zip(*pairs, strict=True)
            # Retain the graph, create that of higher derivatives where they are on, allow unused inputs.
            options = True, torch.is_grad_enabled(), primals, True
            found = _engine_run_backward(ends, grads, *options, accumulate_grad=False)
        return tuple(
            torch.zeros_like(x) if dx is None else dx for x, dx in zip(primals, found, strict=True)
        )

    return outputs, pull


def jvp_by_double_vjp(fn: Callable[..., Tensors], inputs: Tensors, tangents: Tensors) -> Tensors:
    """JVP of a function, computed as the VJP of its VJP with respect to the cotangent.

    `torch.func.jvp` fails if the caller has entered forward mode, which has one level for the whole
    process. A traced program loses nothing: the cotangent occurs linearly and is eliminated.
    """
    outputs, pullback = vjp(fn, *inputs)
    zeros = tuple(torch.zeros_like(y) for y in outputs)
    return vjp(lambda *cotangents: pullback(cotangents), *zeros)[1](tangents)


def vjp_of(
    fn: Callable[..., Tensors],
    needed: Flags,
    num_outputs: int,
    with_value: bool,
    pullback: Pullback | None = None,
) -> Function:
    """The function (inputs, saved outputs, cotangents) -> gradients of the needed inputs.

    Args:
        fn: the function to differentiate.
        needed: for each input, whether its gradient is returned.
        num_outputs: number of outputs of ``fn``.
        with_value: whether the outputs of ``fn`` are returned before the gradients.
        pullback: computes the gradients; by default the VJP of ``fn``. Outputs are saved only for a pullback.
    """
    num_inputs = len(needed)

    def gradients(*tensors: Tensor) -> Tensors:
        inputs, cotangents = tensors[:num_inputs], tensors[-num_outputs:]
        if pullback is None:
            part, chosen = fix_inputs(fn, inputs, needed)
            value, pull = vjp(part, *chosen)
            found = pull(cotangents)
        else:
            value = fn(*inputs) if with_value else tensors[num_inputs:-num_outputs]
            found = pullback(needed, inputs, value, cotangents)
        return (*value, *found) if with_value else tuple(found)

    return gradients


def jvp_of(fn: Callable[..., Tensors], moving: Flags) -> Function:
    """The function (inputs, tangents) -> output tangents; ``moving`` flags the inputs that have a tangent."""

    def output_tangents(*tensors: Tensor) -> Tensors:
        part, chosen = fix_inputs(fn, tensors[: len(moving)], moving)
        return jvp_by_double_vjp(part, chosen, tensors[len(moving) :])

    return output_tangents
