"""Calls outside of the caller's transforms and modes, and values of tensors that `torch.func` wraps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _dispatch_tls_is_dispatch_key_excluded
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, maybe_get_bdim
from torch.autograd import forward_ad

T = TypeVar("T")

_TRANSFORMS: Any = torch._C._parse_dispatch_key("FuncTorchDynamicLayerFrontMode")


def in_clean_thread(work: Callable[[], T]) -> T:
    """Run in a new thread, which the caller's modes, transforms and autocast do not reach."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(copy_context().run, work).result()


def outside_transforms(work: Callable[[], T]) -> T:
    """Run outside of the transforms of torch.func that are active."""
    return in_clean_thread(work) if _are_functorch_transforms_active() else work()


def below_modes(work: Callable[[], T]) -> T:
    """Run operations on plain tensors without recording gradients.

    Below a dispatch mode that redispatches, such as that of torch.compile's "aot_eager", transforms of
    torch.func are
    excluded: a vmap fails, and a derivative may crash the process. The operations then run in a new thread.
    """
    if not _dispatch_tls_is_dispatch_key_excluded(_TRANSFORMS):
        return work()

    def without_gradients() -> T:
        with torch.no_grad():  # a new thread is not below autograd
            return work()

    return in_clean_thread(without_gradients)


def has_saved_tensor_hooks() -> bool:
    """True if saved-tensor hooks are active, such as those of `torch.utils.checkpoint`."""
    top_hooks = cast(Any, torch._C)._autograd._top_saved_tensors_default_hooks
    return top_hooks(False) is not None


@contextmanager
def hidden_from_saved_tensor_hooks() -> Iterator[None]:
    """Hide saved tensors from active hooks; `torch.utils.checkpoint` counts them and expects equal counts."""
    if not has_saved_tensor_hooks():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach(), lambda x: x):
        yield


def is_wrapped(x: Tensor) -> bool:
    """True if `torch.func` has wrapped a tensor."""
    return is_functorch_wrapped_tensor(x)


def is_differentiated(x: Tensor) -> bool:
    """True if a tensor is being differentiated, in reverse or forward mode."""
    while is_functorch_wrapped_tensor(x):
        if maybe_get_bdim(x) < 0:  # a wrapper of a derivative
            return True
        x = get_unwrapped(x)
    if x.requires_grad:
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def concrete(x: Tensor) -> Tensor:
    """A copy of the values of a tensor, with dimensions of vmaps in front; only for use in a clean thread."""
    mapped, value = [], x
    while is_functorch_wrapped_tensor(value):
        if (dim := maybe_get_bdim(value)) >= 0:
            mapped.append(dim)
        value = get_unwrapped(value)
    value = value.detach()
    for k, dim in enumerate(reversed(mapped)):
        value = value.movedim(dim + k, k)
    sample = value[(0,) * len(mapped)]
    return (sample if torch.equal(value, sample.expand_as(value)) else value).clone()


def assert_at_runtime(condition: Tensor, message: str) -> None:
    """Make a compiled program raise an error if a condition is false when it runs."""
    # Inductor copies the text into C++ without escapes.
    text = message.replace("\\", "/").replace("\n", " ").replace('"', "'")
    torch.ops.aten._assert_async.msg(condition, text)
