"""NVIDIA's run-time compiler: CUDA in, machine code of one architecture out. No GPU is needed, nor a toolkit.

It comes with PyTorch's CUDA builds; the wheels ``nvidia-cuda-nvrtc`` and ``nvidia-cuda-nvrtc-cu12`` bring
it beside any other build.

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
_NONE = (
    "no NVRTC for fused kernels on GPUs ({tried} not found).\n"
    "It compiles their CUDA on first use; without it the eager functions serve.\n"
    "Install a CUDA build of PyTorch, which brings it, or pip install nvidia-cuda-nvrtc."
)


class Nvrtc:
    """The compiler, loaded.

    Attributes:
        version: of it, major and minor.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def compile(self, source: str, architecture: str) -> bytes:
        """Machine code of a translation unit, as a module that the driver loads.

        Args:
            source: CUDA that includes nothing.
            architecture: ``"sm_90"``, say.

        Raises:
            CompilerError: the compiler failed; the message holds its own.
        """
        library, program = self._library, ctypes.c_void_p()
        made = library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode("ascii"), b"kernel.cu", 0, None, None
        )
        self._check(made)
        try:
            options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode("ascii"))
            if library.nvrtcCompileProgram(program, len(options), options) != 0:
                said = self._read(program, "ProgramLog").decode(errors="replace").rstrip("\0")
                raise CompilerError(
                    f"NVRTC failed on a fused kernel for {architecture}:",
                    f"{said[-2000:]}",
                    "Install a newer CUDA build of PyTorch, or use the eager functions.",
                )
            return self._read(program, "CUBIN")
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, content))
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
    """The compiler of PyTorch's own CUDA; where PyTorch has none, the newest that is installed.

    Raises:
        CompilerError: none is.
    """
    for name in _candidates():
        try:
            if (path := Path(name)).is_absolute():
                # It asks for this one by its name alone, which the loader knows then.
                for other in path.parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(other))
            return Nvrtc(ctypes.CDLL(name))
        except OSError:
            continue
    raise CompilerError(_NONE.format(tried=", ".join(_NAMES)))


def _candidates() -> Iterator[str]:
    """Names and paths, in the order in which they are tried."""
    cuda = torch.version.cuda
    own = f"libnvrtc.so.{cuda.split('.')[0]}" if cuda else None
    names = sorted(_NAMES, key=lambda name: name != own)
    for name in names[:1] if own else []:
        yield name  # PyTorch has loaded it, or knows where it is
    for name in names:
        for folder in (Path(place).resolve() for place in sys.path if place):
            for part in _FOLDERS:
                if (path := folder / "nvidia" / part / name).exists():
                    yield str(path)
    yield from names
