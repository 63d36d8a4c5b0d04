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
from typing import Any

from torchsko.errors import CompilerError

# -fno-math-errno and -fno-trapping-math change no value: they let loops over lanes become vectors.
_FLAGS = (
    "-std=c++17 -O3 -fPIC -fvisibility=hidden -fno-math-errno -fno-trapping-math "
    "-ffp-contract=fast -w -pthread"
).split()
_CANDIDATES = ("g++", "c++", "clang++")
_SECONDS = 30

TEXT: dict[str, Any] = {"text": True, "errors": "replace"}
"""Options of a subprocess, since compilers write in any encoding."""

_OTHER = (
    "the C++ compiler that CXX names does not work ({wanted}).\n"
    "Kernels are compiled by {path} instead, and kept apart from those of other compilers.\n"
    "Set CXX to a g++ or clang++ that runs here, or unset it."
)


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler and what it compiles for.

    Attributes:
        path: the executable.
        flags: all flags but inputs and outputs.
        identity: digest of the compiler's predefined macros: its version, the CPU's instruction
            sets, the ABI.
        vector_bytes: width of the vectors to generate.
    """

    path: str
    flags: tuple[str, ...]
    identity: str
    vector_bytes: int


def find_toolchain(target: str = "native") -> Toolchain:
    """The compiler that the environment variable ``CXX`` names, else g++, c++ or clang++.

    ``CXX`` is a name or a path, which may be followed by flags, or by a compiler that it launches
    (``ccache g++``). Where it does not work, one of the others does, after a warning.

    Args:
        target: instruction set, in the words of the compiler's ``-march``.

    Raises:
        CompilerError: none is installed, or none works.
    """
    tried, wanted = [], os.environ.get("CXX")
    for name in filter(None, (wanted, *_CANDIDATES)):
        path, *own = _words(name)
        if path is None:
            tried.append(f"{name}: not found")
            continue
        for march in (f"-march={target}", f"-mcpu={target}"):  # Clang on Arm knows the second
            macros = _predefined_macros([path, *own, march])
            if macros is not None:
                if wanted and tried:
                    # At this line, not at the caller's: Python says it once then, not for each kernel.
                    warnings.warn(_OTHER.format(wanted=tried[0], path=path), stacklevel=1)
                return _toolchain(path, [*own, *_FLAGS, march], macros)
        tried.append(f"{name}: is no g++ or clang++ that runs")
    raise CompilerError(
        f"no C++ compiler for fused kernels ({'; '.join(tried)}).",
        "Kernels are compiled on first use; without a compiler the eager functions serve.",
        "Install one (Debian: apt install g++; macOS: xcode-select --install), or set CXX.",
    )


def _words(name: str) -> list[Any]:
    """A compiler's executable, None if there is none, and what stands behind it."""
    if path := shutil.which(name):  # also one with spaces in its path
        return [path]
    try:
        first, *rest = shlex.split(name)
    except ValueError:  # nothing, or a quote that does not end
        return [None]
    return [shutil.which(first), *rest]


def _predefined_macros(command: Sequence[str]) -> str | None:
    command = [*command, "-dM", "-E", "-x", "c++", os.devnull]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, **TEXT)
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
        # Order before registers are given out: fewer of a long program's values wait on the stack.
        flags += ["-fschedule-insns", "-fsched-pressure"]
        if vector_bytes == 64:
            flags.append("-mprefer-vector-width=512")  # else loops over lanes are cut in two
    identity = digest_of(os.path.realpath(path).encode(), macros.encode())
    return Toolchain(path, tuple(flags), identity, vector_bytes)


def digest_of(*parts: bytes) -> str:
    """SHA-256 of several texts, in hexadecimal digits."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()
