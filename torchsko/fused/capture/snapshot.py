"""Tensors as they are at some time, to be told later from what has become of them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

import torch
import torch.distributed as dist
from torch import Tensor


class Snapshot:
    """What some tensors hold, and what makes them the same ones later.

    On a CPU contents are compared: PyTorch counts no change that collectives, ``.data`` or NumPy make. On
    other devices its count has to do, since reading would wait for them; where collectives may write there,
    nothing is known to be the same.

    Args:
        tensors: plain ones, not wrapped by transforms of torch.func.
    """

    leads_to = ()  # see `torchsko.fused.capture.sources.Reachable`

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tuple(tensors)
        # These hold the memory, so that its address is nobody else's while they are.
        self._views = [x.detach().numpy() for x in tensors if x.is_cpu]
        self._far = [x for x in tensors if not x.is_cpu]
        self._marks, self._contents = _marks(tensors), self._read()
        self._counts = _counts(self._far)

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the same tensors, and hold the same."""
        same = all(map(is_, tensors, self._tensors)) and _marks(tensors) == self._marks
        # In this order: a view of memory that is no longer the tensor's is not to be read.
        if not same or self._read() != self._contents:
            return False
        return not self._far or (self._counts is not None and _counts(self._far) == self._counts)

    def _read(self) -> list[bytes]:
        return [x.tobytes() for x in self._views]


def _marks(tensors: Sequence[Tensor]) -> list[int]:
    """Where tensors are, and which require gradients."""
    with torch._C.DisableTorchFunction():  # no call of a function that is traced
        return [x.data_ptr() for x in tensors] + [x.requires_grad for x in tensors]


def _counts(tensors: Sequence[Tensor]) -> list[int] | None:
    """PyTorch's counts of changes in place; None where it does not count them."""
    if dist.is_available() and dist.is_initialized():
        return None
    try:
        return [x._version for x in tensors]
    except RuntimeError:  # made in inference mode
        return None
