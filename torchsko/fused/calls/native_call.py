"""Native call of a kernel for small batches.

For these, Python code takes several times the time of the kernel. The function reads tensors by the C
exchange interface of DLPack (``__dlpack_c_exchange_api__``), which PyTorch has since 2.11, and NumPy arrays
by the buffer protocol. Without the interface, or if the library cannot be linked, calls use
`Kernel.__call__`, which returns the same results.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import CompilerError
from torchsko.fused.build.kernel_library import Compiled, library_key
from torchsko.fused.build.library_cache import load_or_build_library
from torchsko.fused.build.toolchain import Toolchain
from torchsko.fused.emit.cpp import native

SOURCE = "native_call.cpp"
_MAX_PORTS, _MAX_RANK, _DLPACK_MAJOR = 40, 4, 1
_CAPSULE = b"dlpack_exchange_api"

NativeCall = Callable[..., "tuple[Any, ...] | None"]
"""A function of tensors or arrays that returns the results, or None for inputs that it does not support."""


def _library(toolchain: Toolchain) -> ctypes.CDLL | None:
    """The compiled `native/native_call.cpp`; None if it cannot be linked against the running Python."""
    try:
        text = native(SOURCE)
        return load_or_build_library(library_key(toolchain, text), lambda: [text], toolchain)
    except (CompilerError, OSError):
        return None


def make_native_call(
    compiled: Compiled, dtype: torch.dtype, words: Sequence[int], ports: Sequence[Any]
) -> NativeCall | None:
    """Make the native call of one kernel.

    Args:
        compiled: the kernel.
        dtype: float32 or float64.
        words: the fields of ``Plan`` in `native/native_call.cpp` from ``bits`` to ``releases``.
        ports: for each input and output (shape for one sample, number of scalars, the input that has
            its shape or -1).

    Returns:
        A function of the inputs, which are plain tensors without derivatives or NumPy arrays; results are
        arrays if the first input is one. It returns the results, or None for inputs that it does
        not support. If the kernel has too many ports, there is no such function.
    """
    exchange = _exchange()
    if exchange is None or len(ports) > _MAX_PORTS or any(len(s) > _MAX_RANK for s, *_ in ports):
        return None
    library = _library(compiled.toolchain)
    if library is None:
        return None
    plan = [exchange, compiled.launch_address, compiled.kernel, compiled.scratch_bytes, *words]
    for shape, size, like in ports:
        plan += (like, size, len(shape), *shape, *(0,) * (_MAX_RANK - len(shape)))
    make = ctypes.pythonapi["PyCFunction_NewEx"]
    make.restype, make.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p),
    )
    # The function holds a reference to its self, and so to everything that it reads.
    self = (struct.pack(f"@{len(plan)}q", *plan), None, Tensor, torch.empty_like, "new_empty")
    self += (np.ndarray, np.empty, np.dtype(f"f{dtype.itemsize}"))
    return make(ctypes.addressof(ctypes.c_char.in_dll(library, "torchsko_method")), self, None)


def _exchange() -> int | None:
    """The address of PyTorch's exchange interface."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    read = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    address = read(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, _CAPSULE)
    return address if ctypes.c_uint32.from_address(address).value == _DLPACK_MAJOR else None
