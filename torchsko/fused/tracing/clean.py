"""Work away from the caller's transforms and modes, the values `torch.func` wraps, refusals to come."""

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
    """Run ordinary operations on plain tensors, the gradients of which are somebody else's.

    A mode of dispatch that calls on, as torch.compile's "aot_eager" has one, leaves the transforms of
    torch.func out of whatever is called then: a vmap fails there, and a derivative may end the process.
    """
    if not _dispatch_tls_is_dispatch_key_excluded(_TRANSFORMS):
        return work()

    def apart() -> T:
        with torch.no_grad():  # as below autograd, which a new thread is not
            return work()

    return in_clean_thread(apart)


def is_followed() -> bool:
    """Whether somebody follows what autograd saves, as `torch.utils.checkpoint` does, which counts it."""
    asked = cast(Any, torch._C)._autograd._top_saved_tensors_default_hooks
    return asked(False) is not None


@contextmanager
def unfollowed() -> Iterator[None]:
    """Work once done, of which a call that is made again saves nothing: who follows must not see it."""
    if not is_followed():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach(), lambda x: x):
        yield


def is_wrapped(x: Tensor) -> bool:
    """Whether `torch.func` has wrapped a tensor."""
    return is_functorch_wrapped_tensor(x)


def is_differentiated(x: Tensor) -> bool:
    """Whether a derivative by a tensor is on its way, in reverse or in forward mode."""
    while is_functorch_wrapped_tensor(x):
        if maybe_get_bdim(x) < 0:  # a wrapper of a derivative's
            return True
        x = get_unwrapped(x)
    if x.requires_grad:
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def concrete(x: Tensor) -> Tensor:
    """A copy of the values of a tensor, dimensions that vmaps hide in front; in a clean thread only."""
    hidden, value = [], x
    while is_functorch_wrapped_tensor(value):
        if (dim := maybe_get_bdim(value)) >= 0:
            hidden.append(dim)
        value = get_unwrapped(value)
    value = value.detach()
    for k, dim in enumerate(reversed(hidden)):
        value = value.movedim(dim + k, k)
    one = value[(0,) * len(hidden)]
    return (one if torch.equal(value, one.expand_as(value)) else value).clone()


def refuse_when_run(is_right: Tensor, why: str) -> None:
    """Have a compiled program stop where this is false by the time that it runs."""
    # Inductor writes the text into C++ as it is.
    text = why.replace("\\", "/").replace("\n", " ").replace('"', "'")
    torch.ops.aten._assert_async.msg(is_right, text)
