"""A kernel's call for small batches, made of C: what Python does there takes several times the kernel's time.

The function reads tensors by the C exchange interface of DLPack (``__dlpack_c_exchange_api__``), which
PyTorch has since 2.11. Where it has none, or the library does not link, `quick_call` gives None, and
calls go through `Kernel.__call__`, which gives the same results.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import CompilerError
from torchsko.fused.build.kernel_library import Compiled, library_key
from torchsko.fused.build.libraries import built_library
from torchsko.fused.build.toolchain import Toolchain
from torchsko.fused.emit.cpp import native

SOURCE = "quick.cpp"
_MOST_PORTS, _MOST_RANK, _MAJOR = 40, 4, 1
_CAPSULE = b"dlpack_exchange_api"

Quick = Callable[..., "tuple[Tensor, ...] | None"]


def _library(toolchain: Toolchain) -> ctypes.CDLL | None:
    """The compiled `native/quick.cpp`; None if it cannot be linked against the running Python."""
    try:
        text = native(SOURCE)
        return built_library(library_key(toolchain, text), lambda: [text], toolchain)
    except (CompilerError, OSError):
        return None


def quick_call(compiled: Compiled, words: Sequence[int], ports: Sequence[Any]) -> Quick | None:
    """The call of one kernel.

    Args:
        compiled: the kernel.
        words: the fields of ``Plan`` in `native/quick.cpp` from ``bits`` to ``one_lead``.
        ports: for each input and output (shape for one sample, number of scalars, the input that has
            its shape or -1).

    Returns:
        A function of the inputs, plain tensors without derivatives; gives the results, or None for
        inputs that are not usual. None instead if the kernel has more ports than it takes.
    """
    exchange = _exchange()
    if exchange is None or len(ports) > _MOST_PORTS or any(len(s) > _MOST_RANK for s, *_ in ports):
        return None
    library = _library(compiled.toolchain)
    if library is None:
        return None
    plan = [exchange, compiled.launch_address, compiled.kernel, compiled.scratch_bytes, *words]
    for shape, size, like in ports:
        plan += (like, size, len(shape), *shape, *(0,) * (_MOST_RANK - len(shape)))
    make = ctypes.pythonapi["PyCFunction_NewEx"]
    make.restype, make.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p),
    )
    # The function keeps its self, and by that all that it reads.
    own = (struct.pack(f"@{len(plan)}q", *plan), None, Tensor, torch.empty_like, "new_empty")
    return make(ctypes.addressof(ctypes.c_char.in_dll(library, "torchsko_method")), own, None)


def _exchange() -> int | None:
    """The address of PyTorch's exchange interface."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    read = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    address = read(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, _CAPSULE)
    return address if ctypes.c_uint32.from_address(address).value == _MAJOR else None
