"""Dynamics keep the type that their mechanism has, also under `torch.autocast`, and know what it rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from torchsko.utils.traced_tensor import TracedTensor

P = ParamSpec("P")
T = TypeVar("T")

_DEVICES = ("cpu", "cuda")


def without_autocast(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with `torch.autocast` turned off while it runs.

    Autocast rounds the factors of every product to 16 bits. Recursions over bodies subtract nearly
    equal numbers, which would leave no digit; and what is rounded meets what is not.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                with torch.autocast(device, enabled=False):
                    return run(*args, **kwargs)
        return function(*args, **kwargs)

    return run


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type in which numbers are computed: that of the tensor, or, where it is traced, of the kernel.

    Expressions of a traced function are float64, whatever its kernel computes in: who asks what rounding
    makes of a number asks here.
    """
    if torch.compiler.is_compiling():
        return x.dtype
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    if isinstance(x, TracedTensor):
        return x.compute_dtype
    with torch._C.DisableTorchFunction():  # where an expression is put in its place, its own type
        return x.dtype


def is_traced_as(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor of another type is one of this type in a function that is traced.

    Expressions are, and what they are put in the place of.
    """
    return x.dtype != dtype and compute_dtype(x) == dtype
