"""Libraries of kernels: made of programs, found again on disk, and run."""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from array import array
from collections.abc import Iterable
from importlib.resources import files
from math import prod

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchsko.errors import FusedError
from torchsko.fused.build.libraries import built_library, cached_library, name_again
from torchsko.fused.build.toolchain import Toolchain, digest_of
from torchsko.fused.emit.cpp import ENTRY, emit_cpp, native, plan
from torchsko.fused.program.program import Program
from torchsko.implicit.step_roles import Roles

BITS = {torch.float32: 32, torch.float64: 64}
_RUNTIME = ("runtime.cpp", "memory.cpp")
_NATIVE = tuple(
    f"emit/native/{name}" for name in ("vector.hpp", "rows.hpp", "driver.hpp", *_RUNTIME)
)
WRITERS = (
    *("emit/cpp.py", "emit/loop_source.py", "emit/register_hints.py", "emit/statements.py"),
    *("layout/angles.py", "layout/multiples.py", "layout/register_order.py"),
    *("layout/result_places.py", "layout/schedule.py", "layout/widths.py"),
    "program/product_rounds.py",
)
"""Files below `torchsko/fused` that determine the source text of any kernel."""

_GENERATOR = (*WRITERS, *_NATIVE)
_OF_STEPS = "emit/native/scan.hpp"

# A helper thread costs its caller some microseconds, more if it sleeps. It pays for each so much work,
# counted in additions of one vector.
THREADED_COST = 80_000

# Results of so many bytes come from memory that earlier ones have left. The C library maps such anew each
# time, or gives its last ones back when several are freed together, and to have their pages provided again
# takes longer than to compute what is written there. Smaller ones gain less than a call of the pool costs.
FRESH_BYTES = 2**19

# Bound of a block, the unit of work of a thread: small enough that a call ends at once for all threads.
BLOCK_COST = 50_000

_CAPSULE = b"dltensor"  # kept: capsules point to their name


def build_library(
    program: Program,
    dtype: torch.dtype,
    toolchain: Toolchain,
    identity: str | None = None,
    roles: Roles | None = None,
    vector_bytes: int | None = None,
) -> Compiled:
    """Compile a program, or load it from the disk cache.

    Args:
        program: the program.
        dtype: float32 or float64.
        toolchain: the compiler.
        identity: a hexadecimal digest of all that the program depends on; given, `load_library` finds
            the library without the program.
        roles: of its ports, if it is a step to be repeated.
        vector_bytes: width of its vectors; by default the widest of the toolchain.

    Raises:
        CompilerError: the compiler failed.
        FusedError: another dtype, or an instruction without a rule.
    """
    if dtype not in BITS:
        raise FusedError(
            f"no fused kernel for {dtype}: kernels are float32 or float64.",
            advice="Convert the inputs, or use the eager functions.",
        )
    width = vector_bytes or toolchain.vector_bytes
    key = library_key(toolchain, dtype, program_digest(program), roles, width)

    def units() -> list[str]:
        return emit_cpp(
            plan(program, width, roles),
            bits=BITS[dtype],
            vector_bytes=width,
            max_units=os.cpu_count() or 1,
            roles=roles,
        )

    library = built_library(key, units, toolchain)
    if identity is not None:
        name_again(key, library_key(toolchain, dtype, identity, roles, width))
    return Compiled(library, toolchain)


def load_library(
    identity: str,
    dtype: torch.dtype,
    toolchain: Toolchain,
    roles: Roles | None = None,
    vector_bytes: int | None = None,
) -> Compiled | None:
    """The library that `build_library` stored under an identity, or None."""
    width = vector_bytes or toolchain.vector_bytes
    library = cached_library(library_key(toolchain, dtype, identity, roles, width))
    return library and Compiled(library, toolchain)


def is_built(
    program: Program, dtype: torch.dtype, toolchain: Toolchain, vector_bytes: int | None = None
) -> bool:
    """Whether the disk cache has the library of a program that `build_library` would compile."""
    width = vector_bytes or toolchain.vector_bytes
    return (
        cached_library(library_key(toolchain, dtype, program_digest(program), None, width))
        is not None
    )


def program_digest(program: Program) -> str:
    """SHA-256 of all that a program computes; names of ports do not count."""
    total = hashlib.sha256()
    total.update(repr([port.size for port in program.inputs]).encode())
    total.update(repr([port.size for port in program.outputs]).encode())
    total.update(array("q", program.results).tobytes())
    total.update(array("d", program.constants).tobytes())
    total.update("\n".join([f"{op}{args}" for op, args in program.code]).encode())
    for loop in program.loops:
        total.update(repr((loop.count, loop.backward, loop.halts, loop.ports)).encode())
        total.update(program_digest(loop.program).encode())
    return total.hexdigest()


def library_key(toolchain: Toolchain, *parts: object) -> str:
    """The name in the cache of what these parts say, as this compiler and this package make it."""
    steps = (_OF_STEPS,) if any(isinstance(part, Roles) for part in parts) else ()
    return cache_key((*_GENERATOR, *steps), toolchain.identity, toolchain.flags, *parts)


def cache_key(generator: Iterable[str], *parts: object) -> str:
    """A name in the cache, by parts with a faithful ``repr`` and the files of this folder that generate."""
    sources = (files("torchsko.fused") / name for name in generator)
    return digest_of(repr(parts).encode(), *(source.read_bytes() for source in sources))


def _runtime(toolchain: Toolchain) -> ctypes.CDLL:
    """Threads and memory, one library for all kernels."""
    key = library_key(toolchain, "runtime")
    return built_library(key, lambda: [native(name) for name in _RUNTIME], toolchain)


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(library[name], ctypes.c_void_p).value or 0


class _Plan(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_longlong),
    )


class Compiled:
    """A library of a kernel, and how to run it.

    Attributes:
        width: lanes of its vectors.
        tiles: how many vectors of samples it takes together.
        cost: time of one vector, in additions.
        kernel: address of the code.
        scratch_bytes: what a thread needs.
    """

    def __init__(self, library: ctypes.CDLL, toolchain: Toolchain) -> None:
        self._library = library  # keeps the code loaded
        self.toolchain = toolchain
        runtime = _runtime(toolchain)
        self.launch_address = _address(runtime, "torchsko_launch")
        self.kernel = _address(library, ENTRY)
        self.width, self.tiles, self.cost, self.scratch_bytes = (
            ctypes.c_longlong.in_dll(library, f"torchsko_{name}").value
            for name in ("width", "tiles", "cost", "scratch_bytes")
        )
        self._plan = _Plan(self.kernel, self.scratch_bytes)
        self._plan_address = ctypes.addressof(self._plan)
        # A prototype of our own: setting argtypes on the library's function would be shared.
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
        self._launch = prototype(("torchsko_launch", runtime))
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int
        )
        self._result = prototype(("torchsko_result", runtime))
        prototype = ctypes.PYFUNCTYPE(
            ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
        )
        self._capsule = prototype(("PyCapsule_New", ctypes.pythonapi))

    def launch(self, words: bytes, threads: int) -> None:
        """Run one call, its words as the driver's text says.

        Raises:
            MemoryError: there was none for scratch.
        """
        if self._launch(self._plan_address, words, threads) != 0:
            raise MemoryError("no memory for the scratch of a fused kernel")

    def result(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A new tensor, not initialised; a large one in memory that an earlier result has left.

        Raises:
            MemoryError: there was none.
        """
        if prod(shape) * like.element_size() < FRESH_BYTES:
            return like.new_empty(shape)
        sizes = struct.pack(f"@{len(shape)}q", *shape)
        threads = torch.get_num_threads()
        made = self._result(len(shape), sizes, BITS[like.dtype], threads)
        if made is None:
            raise MemoryError(f"no memory for a result of shape {list(shape)}")
        return from_dlpack(self._capsule(made, _CAPSULE, None))
