"""Computation dtypes: dynamics use their mechanism's dtype, also under `torch.autocast`."""

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
    """Decorator that turns `torch.autocast` off while the function runs.

    Autocast rounds the factors of every product to 16 bits. Recursions over bodies subtract nearly equal
    numbers, which would lose all digits. It would also mix dtypes.
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
    """The dtype of a computation: that of the tensor or, under tracing, that of the kernel.

    Expressions of a traced function are float64 whatever dtype its kernel computes in. Code that depends on
    rounding must use this function.
    """
    if torch.compiler.is_compiling():
        return x.dtype
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    if isinstance(x, TracedTensor):
        return x.compute_dtype
    with torch._C.DisableTorchFunction():  # the tensor's dtype, even if an expression replaces it
        return x.dtype


def is_traced_as(x: Tensor, dtype: torch.dtype) -> bool:
    """True if a tensor of another dtype has this dtype in the kernel of a traced function."""
    return x.dtype != dtype and compute_dtype(x) == dtype
