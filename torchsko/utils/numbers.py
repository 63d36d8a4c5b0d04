"""Numbers of arguments: Python numbers, and those of NumPy."""

from __future__ import annotations

from numbers import Real
from operator import index
from typing import Any

import torch
from torch import Tensor


def as_integer(x: Any) -> int | None:
    """An integer, also one of NumPy, as an int; None for any other type."""
    if isinstance(x, bool) or (isinstance(x, Tensor) and x.dtype == torch.bool):
        return None
    if isinstance(x, int | torch.SymInt):
        return x  # type: ignore[return-value]
    try:
        return index(x)
    except (TypeError, RuntimeError):
        return None


def as_number(x: Any) -> float | None:
    """A real number, also one of NumPy; None for any other type."""
    is_real = isinstance(x, float | int | torch.SymFloat | torch.SymInt) or isinstance(x, Real)
    return x if is_real and not isinstance(x, bool) else None  # type: ignore[return-value]
