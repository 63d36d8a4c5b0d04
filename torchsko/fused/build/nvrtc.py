"""NVIDIA's run-time compiler NVRTC, which compiles CUDA to machine code without a GPU or a toolkit.

CUDA builds of PyTorch contain it. For other builds there are the wheels ``nvidia-cuda-nvrtc`` and
``nvidia-cuda-nvrtc-cu12``.

Reference: *NVRTC user guide*, NVIDIA.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from torchsko.errors import CompilerError

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_FOLDERS = ("cu13/lib", "cuda_nvrtc/lib")


class Nvrtc:
    """The loaded compiler.

    Attributes:
        version: its major and minor version.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def compile(self, source: str, architecture: str) -> bytes:
        """Compile a translation unit to a module for the CUDA driver.

        Args:
            source: CUDA text without includes.
            architecture: for example ``"sm_90"``.

        Raises:
            CompilerError: the compiler failed; the error contains its message.
        """
        library, program = self._library, ctypes.c_void_p()
        made = library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode("ascii"), b"kernel.cu", 0, None, None
        )
        self._check(made)
        try:
            options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode("ascii"))
            if library.nvrtcCompileProgram(program, len(options), options) != 0:
                log = self._read(program, "ProgramLog").decode(errors="replace").rstrip("\0")
                raise CompilerError(
                    f"NVRTC failed on a fused kernel for {architecture}:",
                    log[-2000:],
                    "Install a newer CUDA build of PyTorch, or use the eager functions.",
                )
            return self._read(program, "CUBIN")
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, item: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{item}Size")(program, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{item}")(program, content))
        return content.raw

    def _check(self, result: int) -> None:
        if result != 0:
            text = self._library.nvrtcGetErrorString
            text.restype = ctypes.c_char_p
            raise CompilerError(
                f"NVRTC failed: {text(result).decode()}.",
                advice="Use the eager functions.",
            )


def find_nvrtc() -> Nvrtc:
    """Load the compiler of PyTorch's CUDA build, or else the newest one installed.

    Raises:
        CompilerError: NVRTC is not installed.
    """
    for name in _candidates():
        try:
            if (path := Path(name)).is_absolute():
                # NVRTC loads this library by its name, which succeeds if it is loaded already.
                for other in path.parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(other))
            return Nvrtc(ctypes.CDLL(name))
        except OSError:
            continue
    raise CompilerError(
        f"NVRTC, the compiler of fused kernels for GPUs, was not found ({', '.join(_NAMES)}).",
        "Kernels are compiled on first use.",
        "Install a CUDA build of PyTorch, or pip install nvidia-cuda-nvrtc, or use the eager functions.",
    )


def _candidates() -> Iterator[str]:
    """Names and paths of the library, in the order in which they are tried."""
    cuda = torch.version.cuda
    own = f"libnvrtc.so.{cuda.split('.')[0]}" if cuda else None
    names = sorted(_NAMES, key=lambda name: name != own)
    for name in names[:1] if own else []:
        yield name  # loaded by PyTorch, or on its search path
    for name in names:
        for folder in (Path(place).resolve() for place in sys.path if place):
            for part in _FOLDERS:
                if (path := folder / "nvidia" / part / name).exists():
                    yield str(path)
    yield from names
