"""Contents of tensors at some time, to be compared with what they hold later."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from operator import is_
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import CompilerError
from torchsko.fused.build.library_cache import load_or_build_library
from torchsko.fused.build.program_cache import digest
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.emit.cpp import native


class MemorySnapshot:
    """Copies of the contents of tensors.

    On a CPU the contents are compared, since PyTorch does not count the changes made by collectives, by
    ``.data`` or by NumPy. On other devices PyTorch's version counters are compared: reading would wait for
    the device. They do not count changes by collectives of `torch.distributed`. Tensors without counters,
    made in inference mode, count as changed.

    Args:
        tensors: plain ones, not wrapped by transforms of torch.func.

    Attributes:
        is_unchanged: a function without arguments: whether the memory of the tensors holds what it held.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tuple(tensors)
        self._addresses, self._versions = _addresses(tensors), _versions(tensors)
        memory = [_memory(x) for x in tensors if x.is_cpu]
        others = [x for x in tensors if x.is_cpu and _memory(x) is None]
        same = _comparison([x.numpy() for x in memory if x is not None])
        if others or len(memory) < len(tensors):
            same = self._comparison(same, [(x, x.detach().clone()) for x in others])
        self.is_unchanged: Callable[[], bool] = same

    def _comparison(
        self, same: Callable[[], bool], strided: Sequence[tuple[Tensor, Tensor]]
    ) -> Callable[[], bool]:
        has_far = any(not x.is_cpu for x in self._tensors)

        def compare() -> bool:
            if not same() or not all(torch.equal(x, old) for x, old in strided):
                return False
            versions = _versions(self._tensors) if has_far else []
            return not has_far or (versions is not None and versions == self._versions)

        return compare

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        """True if these are the same tensors, in the same memory, with unchanged values."""
        same = all(map(is_, tensors, self._tensors)) and _addresses(tensors) == self._addresses
        return same and self.is_unchanged()


def _memory(x: Tensor) -> Tensor | None:
    """A contiguous tensor of the same memory; None if the memory has gaps."""
    x = x.detach()
    if x.is_contiguous():
        return x
    storage = x.untyped_storage()
    if storage.nbytes() > x.numel() * x.element_size():
        return None
    return torch.empty(0, dtype=x.dtype).set_(storage)  # pyright: ignore


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    """Memory addresses of tensors, and whether each requires gradients."""
    with torch._C.DisableTorchFunction():  # no call of a function that is traced
        return [x.data_ptr() for x in tensors] + [x.requires_grad for x in tensors]


def _versions(tensors: Sequence[Tensor]) -> list[int] | None:
    """Version counters of tensors that are not on the CPU; None if PyTorch keeps no counters."""
    try:
        return [x._version for x in tensors if not x.is_cpu]
    except RuntimeError:  # made in inference mode
        return None


def _comparison(arrays: Sequence[Any]) -> Callable[[], bool]:
    """A function that compares the memory of arrays, which it keeps alive, with a copy made now."""
    copies, library = [x.tobytes() for x in arrays], _library()
    if library is None:
        return lambda: [x.tobytes() for x in arrays] == copies
    plan = [len(arrays), *(word for x in arrays for word in (x.ctypes.data, x.nbytes))]
    own = (struct.pack(f"@{len(plan)}q", *plan), b"".join(copies), True, False, tuple(arrays))
    make = ctypes.pythonapi["PyCFunction_NewEx"]
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    method = ctypes.c_char.in_dll(library, "torchsko_unchanged_method")
    return make(ctypes.addressof(method), own, None)


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled comparison, loaded once in a process; None without a compiler."""
    source = native("unchanged.cpp")
    try:
        toolchain = find_toolchain()
        return load_or_build_library(digest(toolchain, source), lambda: [source], toolchain)
    except (CompilerError, OSError):
        return None
