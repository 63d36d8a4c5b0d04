"""Closure conversion of loop bodies in traced functions.

The body of a loop is traced separately, below all transforms of torch.func or, in a backward pass, after
they have ended. Captured tensors become arguments of the body if they belong to the enclosing trace, are
inputs of the kernel, or are wrapped by a transform. All other captured tensors are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, unwrap_if_dead
from torch.overrides import _get_current_function_mode_stack

from torchsko.fused.tracing.clean import is_wrapped
from torchsko.fused.tracing.object_graph import ObjectGraph
from torchsko.fused.tracing.swap import Swap, innermost
from torchsko.fused.tracing.symbolic import Symbolic


def unwrapped_constants(fn: Callable[..., Any]) -> AbstractContextManager:
    """A mode that replaces wrapped tensors by their values, for a function outside of the transforms."""
    wrapped = ObjectGraph(fn).wrapped()
    return Swap(wrapped, [_value(x) for x in wrapped]) if wrapped else nullcontext()


def convert_captures(
    body: Callable[..., Any],
) -> tuple[Callable[..., Any], list[Tensor]]:
    """Convert captured tensors of a function to additional arguments.

    Returns:
        A function that takes them as its last arguments, and the tensors.
    """
    swaps = [x for x in _get_current_function_mode_stack() if isinstance(x, Swap)]
    tensors = [
        x
        for x in ObjectGraph(body).objects()
        if isinstance(x, Tensor)
        if isinstance(x, Symbolic) or is_wrapped(x) or any(_is_traced(swap, x) for swap in swaps)
    ]
    if not tensors:
        return body, []

    def converted(*arguments: Tensor) -> Any:
        count = len(arguments) - len(tensors)
        with Swap(tensors, arguments[count:]):
            return body(*arguments[:count])

    return converted, tensors


def _is_traced(swap: Swap, x: Tensor) -> bool:
    """True if a mode replaces a tensor by a symbolic one."""
    return isinstance(innermost(swap.replacement(x)), Symbolic)


def _value(x: Tensor) -> Tensor:
    """A tensor without wrappers of derivatives and of transforms that have ended."""
    inner = unwrap_if_dead(x)
    if inner is x and is_functorch_wrapped_tensor(x):
        inner = get_unwrapped(x)
    return x if inner is x else _value(inner)
