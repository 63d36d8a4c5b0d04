"""Values of tensor arguments, for checks of arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, maybe_get_bdim
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]
from torch.overrides import _get_current_function_mode_stack, has_torch_function_unary
from torch.utils._device import DeviceContext


def concrete_values(x: Any, most: int | None = None) -> np.ndarray | None:
    """Values of a tensor, for checks that only decide whether to raise an error.

    Returns None if the values are not available: under a compiler, a trace or a vmap, and on a device other
    than the CPU, whose read would wait for it. It is None under torch function modes as well, which would
    record the read; a default device does not.

    Args:
        x: a tensor; any other object has no values.
        most: largest number of entries that is read; None: no limit.
    """
    if torch.compiler.is_compiling() or is_tracing() or _is_recorded():
        return None
    if (
        not isinstance(x, Tensor)
        or x.device.type != "cpu"
        or (most is not None and x.numel() > most)
    ):
        return None
    within = x
    while is_functorch_wrapped_tensor(within):
        if maybe_get_bdim(within) >= 0:
            return None
        within = get_unwrapped(within)
    if type(within) not in (Tensor, torch.nn.Parameter):
        return None  # a tensor subclass may have no values, and a read of it may crash
    try:
        # A list reads through wrappers of torch.func, and supports dtypes that NumPy lacks.
        known = within is x and x.dtype != torch.bfloat16
        return x.detach().numpy() if known else np.array(x.tolist())
    except (RuntimeError, TypeError):
        return None


def _is_recorded() -> bool:
    """True under a torch function mode that may record operations."""
    return has_torch_function_unary(None) and not all(
        isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack()
    )


def is_vmapped(x: Tensor) -> bool:
    """True for a tensor that represents the samples of a vmap, which has no memory."""
    try:
        x.data_ptr()
    except RuntimeError:
        return True
    return False
