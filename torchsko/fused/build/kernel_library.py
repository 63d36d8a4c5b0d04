"""Libraries of kernels: compiled from programs or loaded from the disk cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from array import array
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from math import prod

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchsko.errors import FusedError
from torchsko.fused.build.library_cache import add_key, load_cached_library, load_or_build_library
from torchsko.fused.build.progress import report_stage
from torchsko.fused.build.toolchain import Toolchain, digest_of
from torchsko.fused.emit.cpp import ENTRY, emit_cpp, native, plan
from torchsko.fused.program.program import Program
from torchsko.implicit.loop_roles import LoopRoles


def _python_files(room: str) -> list[Traversable]:
    """Modules of a folder of `torchsko/fused`, by name."""
    found = (x for x in (files("torchsko.fused") / room).iterdir() if x.name.endswith(".py"))
    return sorted(found, key=lambda file: file.name)


BITS = {torch.float32: 32, torch.float64: 64}
_RUNTIME = ("runtime.cpp", "memory.cpp")
_NATIVE = tuple(
    f"emit/native/{name}"
    for name in ("vector.hpp", "dense.hpp", "active_rows.hpp", "rows.hpp", "driver.hpp", *_RUNTIME)
)
WRITERS = (
    *(f"{room}/{file.name}" for room in ("emit", "layout") for file in _python_files(room)),
    *("program/dense_block.py", "program/program.py"),
)
"""Files in `torchsko/fused` that determine the source text of every kernel."""

_GENERATOR = (*WRITERS, *_NATIVE)
_SCAN_DRIVER = "emit/native/scan.hpp"

THREADED_COST = 80_000
"""Work, in additions of one vector, for which an additional thread pays; waking a thread takes several us."""

MIN_POOLED_BYTES = 2**19
"""Size of a result from which its memory comes from a pool of earlier results.

The C library maps large blocks anew at each allocation, and page faults then take longer than the
computation. For smaller results the gain is less than the cost of the pool."""

BLOCK_COST = 50_000
"""Largest cost of a block, the unit of work of a thread; so small that all threads end almost together."""

_CAPSULE = b"dltensor"  # referenced here, since capsules store a pointer to their name


def build_library(
    program: Program,
    dtype: torch.dtype,
    toolchain: Toolchain,
    identity: str | None = None,
    roles: LoopRoles | None = None,
    vector_bytes: int | None = None,
) -> Compiled:
    """Load the library of a program from the disk cache, or compile it.

    Args:
        program: the program.
        dtype: float32 or float64.
        toolchain: the compiler.
        identity: a hexadecimal digest of everything that the program depends on, by which
            `load_library` finds the library without the program.
        roles: roles of the ports, if the program is the step of a scan.
        vector_bytes: width of the vectors; by default the widest of the toolchain.

    Raises:
        CompilerError: the compiler failed.
        FusedError: the dtype is not supported, or an instruction is unknown.
    """
    if dtype not in BITS:
        raise FusedError(
            f"no fused kernel for {dtype}: kernels are float32 or float64.",
            advice="Convert the inputs, or use the eager functions.",
        )
    width = vector_bytes or toolchain.vector_bytes
    key = library_key(toolchain, dtype, program_digest(program), roles, width)

    def units() -> list[str]:
        report_stage("emit", program.num_flops)
        return emit_cpp(
            plan(program, width, roles),
            bits=BITS[dtype],
            vector_bytes=width,
            max_units=os.cpu_count() or 1,
            roles=roles,
        )

    library = load_or_build_library(key, units, toolchain)
    if identity is not None:
        add_key(key, library_key(toolchain, dtype, identity, roles, width))
    return Compiled(library, toolchain)


def load_library(
    identity: str,
    dtype: torch.dtype,
    toolchain: Toolchain,
    roles: LoopRoles | None = None,
    vector_bytes: int | None = None,
) -> Compiled | None:
    """The library that `build_library` stored under an identity; None if there is none."""
    width = vector_bytes or toolchain.vector_bytes
    library = load_cached_library(library_key(toolchain, dtype, identity, roles, width))
    return library and Compiled(library, toolchain)


def is_built(
    program: Program, dtype: torch.dtype, toolchain: Toolchain, vector_bytes: int | None = None
) -> bool:
    """True if the disk cache has the library of a program."""
    width = vector_bytes or toolchain.vector_bytes
    return (
        load_cached_library(library_key(toolchain, dtype, program_digest(program), None, width))
        is not None
    )


def program_digest(program: Program) -> str:
    """SHA-256 of a program; names of ports are ignored."""
    total = hashlib.sha256()
    total.update(repr([port.size for port in program.inputs]).encode())
    total.update(repr([port.size for port in program.outputs]).encode())
    total.update(array("q", program.results).tobytes())
    total.update(array("d", program.constants).tobytes())
    total.update("\n".join([f"{op}{args}" for op, args in program.code]).encode())
    for loop in program.loops:
        total.update(repr([getattr(loop, field.name) for field in fields(loop)[1:]]).encode())
        total.update(program_digest(loop.program).encode())
    total.update(repr(program.block).encode())
    return total.hexdigest()


def library_key(toolchain: Toolchain, *parts: object) -> str:
    """The cache key of a library, from the parts that identify it, the compiler and the generator."""
    driver = (_SCAN_DRIVER,) if any(isinstance(part, LoopRoles) for part in parts) else ()
    return cache_key((*_GENERATOR, *driver), toolchain.identity, toolchain.flags, *parts)


def cache_key(generator: Iterable[str], *parts: object) -> str:
    """A cache key, from the ``repr`` of the parts and the content of the files of the generator."""
    return digest_of(repr(parts).encode(), *map(_source_digest, generator))


@cache  # the imported source does not change within a process
def _source_digest(name: str) -> bytes:
    """Digest of a file in `torchsko/fused`."""
    return hashlib.sha256((files("torchsko.fused") / name).read_bytes()).digest()


def _runtime(toolchain: Toolchain) -> ctypes.CDLL:
    """The library of threads and memory, one for all kernels."""
    key = library_key(toolchain, "runtime")
    return load_or_build_library(key, lambda: [native(name) for name in _RUNTIME], toolchain)


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(library[name], ctypes.c_void_p).value or 0


class _Plan(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_longlong),
    )


class Compiled:
    """The library of a kernel.

    Attributes:
        toolchain: the compiler that built it.
        width: number of lanes of its vectors.
        tiles: number of vectors of samples that it processes together.
        cost: time of one vector, in additions.
        kernel: address of its code.
        launch_address: address of the function that runs it on several threads.
        scratch_bytes: scratch memory of a thread.
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
        # A new prototype, since argtypes set on the library's function would be shared.
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
        """Run one call; ``words`` is the struct ``Call`` of the driver.

        Raises:
            MemoryError: no memory for scratch.
        """
        if self._launch(self._plan_address, words, threads) != 0:
            raise MemoryError("no memory for the scratch of a fused kernel")

    def result(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A new uninitialized tensor; a large one may reuse the memory of an earlier result.

        Raises:
            MemoryError: no memory for it.
        """
        if prod(shape) * like.element_size() < MIN_POOLED_BYTES:
            return like.new_empty(shape)
        sizes = struct.pack(f"@{len(shape)}q", *shape)
        threads = torch.get_num_threads()
        managed = self._result(len(shape), sizes, BITS[like.dtype], threads)
        if managed is None:
            raise MemoryError(f"no memory for a result of shape {list(shape)}")
        return from_dlpack(self._capsule(managed, _CAPSULE, None))
