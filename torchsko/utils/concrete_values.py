"""The numbers of tensors that users give, where a check may look at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, maybe_get_bdim
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]
from torch.overrides import has_torch_function_unary


def numbers(x: Any, most: int | None = None) -> np.ndarray | None:
    """The numbers of a tensor, to be looked at only: a check decides nothing but an error.

    None where there are none to look at (of a compiler, of a trace, of the samples of a vmap), where reading
    them would have to wait (on a device), and where a mode would take the look for a step of what it
    follows.

    Args:
        x: a tensor; of anything else there are none.
        most: how many are looked at; None: all.
    """
    if torch.compiler.is_compiling() or is_tracing() or has_torch_function_unary(None):
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
        return None  # a stand-in of somebody's, which may have none, and whose reading may crash
    try:
        # A list looks through derivatives of torch.func's, and takes types that NumPy does not know.
        known = within is x and x.dtype != torch.bfloat16
        return x.detach().numpy() if known else np.array(x.tolist())
    except (RuntimeError, TypeError):
        return None


def is_mapped(x: Tensor) -> bool:
    """Whether a tensor stands for the samples of a vmap: it has no memory of its own."""
    try:
        x.data_ptr()
    except RuntimeError:
        return True
    return False
