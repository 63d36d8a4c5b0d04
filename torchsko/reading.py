"""The numbers of tensors that users give, where a check may look at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
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
    if type(x) not in (Tensor, torch.nn.Parameter) or x.device.type != "cpu":
        return None
    if most is not None and x.numel() > most:
        return None
    try:
        return x.detach().numpy()
    except (RuntimeError, TypeError):
        pass
    try:
        return np.array(x.tolist())  # which looks through a derivative of torch.func's
    except RuntimeError:
        return None


def is_mapped(x: Tensor) -> bool:
    """Whether a tensor stands for the samples of a vmap: it has no memory of its own."""
    try:
        x.data_ptr()
    except RuntimeError:
        return True
    return False
