"""What the body of a loop closes over in a traced function, where transforms of torch.func have wrapped it.

A loop's body is traced below all transforms, or, by a backward pass, after they have ended. What a derivative
has only wrapped is read as the constant that it is; what a vmap maps differs from sample to sample, and so
is given to the body as an argument; what is differentiated by is refused, for its derivative would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch._C._functorch import (
    get_unwrapped,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
    unwrap_if_dead,
)
from torch.autograd import forward_ad

from torchsko.errors import FusedError
from torchsko.fused.capture.sources import Reachable
from torchsko.fused.capture.watch import Swap


def alive(fn: Callable[..., Any]) -> Swap:
    """Calls in which a function finds the values of what derivatives have wrapped that do not reach here."""
    wrapped = [x for x in Reachable(fn).wrapped() if not _is_mapped(x)]
    return Swap(wrapped, [_value(x) for x in wrapped])


def mapped_as_arguments(step: Callable[..., Any]) -> tuple[Callable[..., Any], list[Tensor]]:
    """A function that takes what vmaps map among the tensors that it closes over as arguments, the last.

    Below the vmaps a wrapper of theirs means nothing, or, where another vmap has taken its number, another's
    samples.

    Returns:
        The function, and what is mapped.
    """
    mapped = [x for x in Reachable(step).wrapped() if _is_mapped(x)]
    if not mapped:
        return step, []

    def given(*tensors: Tensor) -> Any:
        own = len(tensors) - len(mapped)
        with Swap(mapped, tensors[own:]):
            return step(*tensors[:own])

    return given, mapped


def refuse_differentiated(body: Callable[..., Any]) -> None:
    """Refuse a loop's body that closes over a tensor by which a derivative is being taken.

    Its derivative would be lost: the body is traced by itself, and reads values only of what it closes over.

    Raises:
        FusedError: there is one.
    """
    reach = Reachable(body)
    for x in reach.wrapped():
        if _is_differentiated(x):
            raise FusedError(
                f"the body of a loop closes over {reach.name_of(x)}, by which a derivative is taken.",
                "The body is traced by itself, where what it closes over is constant.",
                "Pass the tensor to it by args=[...], as ts.loop says.",
            )


def _layers(x: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """A tensor and what it wraps, outermost first, each with whether a vmap wrapped it."""
    while is_functorch_wrapped_tensor(x):
        yield x, maybe_get_bdim(x) >= 0
        x = get_unwrapped(x)
    yield x, False


def _is_mapped(x: Tensor) -> bool:
    """Whether a vmap hides a dimension of it."""
    return any(mapped for _, mapped in _layers(x))


def _is_differentiated(x: Tensor) -> bool:
    """Whether it depends on what a transform in force differentiates by; not, where one only wrapped it."""
    return any(
        y.requires_grad or forward_ad.unpack_dual(y, level=0).tangent is not None
        for y, mapped in _layers(x)
        if not mapped  # a vmap's wrapper says nothing of its own, and has no rule to ask for a tangent
    )


def _value(x: Tensor) -> Tensor:
    """A tensor without wrappers of derivatives, and of other transforms that have ended."""
    inner = unwrap_if_dead(x)
    if inner is x and is_functorch_wrapped_tensor(x):
        inner = get_unwrapped(x)
    return x if inner is x else _value(inner)
