"""Closure conversion of loop bodies in traced functions.

The body of a loop is traced into a program of its own, below all transforms of torch.func, or, by a backward
pass, after they have ended. Tensors of the surrounding trace, captured tensors of the function, and tensors
that transforms have wrapped become arguments of the body. Others that it closes over are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, unwrap_if_dead
from torch.overrides import _get_current_function_mode_stack

from torchsko.fused.capture.object_graph import ObjectGraph
from torchsko.fused.capture.watch import Swap, innermost
from torchsko.fused.tracing.clean import is_wrapped
from torchsko.fused.tracing.symbolic import Symbolic


def unwrapped_constants(fn: Callable[..., Any]) -> Swap:
    """A mode in which a function reads the values of tensors whose transforms do not reach it."""
    wrapped = ObjectGraph(fn).wrapped()
    return Swap(wrapped, [_value(x) for x in wrapped])


def closed_over_as_arguments(
    step: Callable[..., Any],
) -> tuple[Callable[..., Any], list[Tensor]]:
    """Convert tensors that a function closes over to further arguments.

    Returns:
        A function that takes them as its last arguments, and the tensors.
    """
    swaps = [x for x in _get_current_function_mode_stack() if isinstance(x, Swap)]
    tensors = [
        x
        for x in ObjectGraph(step).objects()
        if isinstance(x, Tensor)
        if isinstance(x, Symbolic) or is_wrapped(x) or any(_is_traced(swap, x) for swap in swaps)
    ]
    if not tensors:
        return step, []

    def converted(*arguments: Tensor) -> Any:
        count = len(arguments) - len(tensors)
        with Swap(tensors, arguments[count:]):
            return step(*arguments[:count])

    return converted, tensors


def _is_traced(swap: Swap, x: Tensor) -> bool:
    """Whether a mode puts an expression in the place of a tensor."""
    return isinstance(innermost(swap.replacement(x)), Symbolic)


def _value(x: Tensor) -> Tensor:
    """A tensor without the wrappers of derivatives, and of other transforms that have ended."""
    inner = unwrap_if_dead(x)
    if inner is x and is_functorch_wrapped_tensor(x):
        inner = get_unwrapped(x)
    return x if inner is x else _value(inner)
