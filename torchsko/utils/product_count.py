"""Number of multiplications and additions of matrix products and convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_FIRST_FACTOR = {
    _aten.mm: 0,
    _aten.bmm: 0,
    _aten.mv: 0,
    _aten.dot: 0,
    _aten.addmm: 1,
    _aten.addmv: 1,
    _aten.baddbmm: 1,
}
"""Position of the first factor among the arguments of a matrix product."""


class ProductCount(TorchDispatchMode):
    """A mode that counts multiply-add operations.

    `torch.utils.flop_counter` does not count products of a matrix and a vector.

    Attributes:
        total: number of multiply-add operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operation = func.overloadpacket
        if operation in _FIRST_FACTOR:
            self.total += result.numel() * args[_FIRST_FACTOR[operation]].shape[-1]
        elif operation is _aten.convolution:
            self.total += result.numel() * args[1][0].numel()
        return result
