"""The C++ compiler of this machine."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchsko.errors import CompilerError

# -fno-math-errno and -fno-trapping-math change no value and allow loops over lanes to be vectorized.
_FLAGS = (
    "-std=c++17 -O3 -fPIC -fvisibility=hidden -fno-math-errno -fno-trapping-math "
    "-ffp-contract=fast -w -pthread"
).split()
_CANDIDATES = ("g++", "c++", "clang++")
_TIMEOUT = 30
"""Longest time of a compiler query, in s."""

TEXT: dict[str, Any] = {"text": True, "errors": "replace"}
"""Options of a subprocess; compilers may write in any encoding."""

_CXX_WARNING = (
    "the C++ compiler of the environment variable CXX does not work ({failed}).\n"
    "Kernels are compiled by {path} instead.\n"
    "Set CXX to a g++ or clang++ that runs here, or unset it."
)


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler and its target.

    Attributes:
        path: the executable.
        flags: all flags except inputs and outputs.
        identity: digest of the compiler's predefined macros: its version, the CPU's instruction
            sets, the ABI.
        vector_bytes: width of the widest vectors of the target.
    """

    path: str
    flags: tuple[str, ...]
    identity: str
    vector_bytes: int


def find_toolchain(target: str = "native") -> Toolchain:
    """The compiler of the environment variable ``CXX``, or else g++, c++ or clang++.

    ``CXX`` is a name or a path. Flags may follow, or a compiler that it launches (``ccache g++``).
    If it does not work, a warning is given and the other compilers are tried.

    Args:
        target: instruction set, a value of the compiler's ``-march``.

    Raises:
        CompilerError: no compiler is installed, or none works.
    """
    return _find_toolchain(target, os.environ.get("CXX"), os.environ.get("PATH"))


@cache  # a query of the compiler takes 10 ms; its result depends on these arguments
def _find_toolchain(target: str, cxx: str | None, search_path: str | None) -> Toolchain:
    failures = []
    for name in filter(None, (cxx, *_CANDIDATES)):
        path, *flags = _split_command(name, search_path)
        if path is None:
            failures.append(f"{name}: not found")
            continue
        for march in (f"-march={target}", f"-mcpu={target}"):  # Clang on Arm has the second
            macros = _predefined_macros([path, *flags, march])
            if macros is not None:
                if cxx and failures:
                    warnings.warn(_CXX_WARNING.format(failed=failures[0], path=path), stacklevel=1)
                return _toolchain(path, [*flags, *_FLAGS, march], macros)
        failures.append(f"{name}: not a working g++ or clang++")
    raise CompilerError(
        f"no C++ compiler for fused kernels ({'; '.join(failures)}).",
        "Kernels are compiled on first use.",
        "Install one (Debian: apt install g++; macOS: xcode-select --install), set CXX, or use the "
        "eager functions.",
    )


def _split_command(name: str, search_path: str | None) -> list[Any]:
    """A compiler's executable, or None if it does not exist, and the flags that follow it."""
    if path := shutil.which(name, path=search_path):  # the path may contain spaces
        return [path]
    try:
        first, *rest = shlex.split(name)
    except ValueError:  # empty, or an unbalanced quote
        return [None]
    return [shutil.which(first, path=search_path), *rest]


def _predefined_macros(command: Sequence[str]) -> str | None:
    command = [*command, "-dM", "-E", "-x", "c++", os.devnull]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, **TEXT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 and "#define __cplusplus" in done.stdout else None


def _toolchain(path: str, flags: list[str], macros: str) -> Toolchain:
    vector_bytes = 16
    if "#define __AVX512F__" in macros and "#define __AVX512VL__" in macros:
        vector_bytes = 64
    elif "#define __AVX__" in macros:
        vector_bytes = 32
    if "#define __clang__" not in macros:
        # Scheduling before register allocation reduces spills in long programs.
        flags += ["-fschedule-insns", "-fsched-pressure"]
        if vector_bytes == 64:
            flags.append("-mprefer-vector-width=512")  # otherwise loops over lanes are split in two
    identity = digest_of(os.path.realpath(path).encode(), macros.encode())
    return Toolchain(path, tuple(flags), identity, vector_bytes)


def digest_of(*parts: bytes) -> str:
    """SHA-256 of several byte strings, in hexadecimal digits."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()
