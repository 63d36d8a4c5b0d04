"""Compile a peer's C++ program for this machine, once."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cases import MissingPeerError
from torch import Tensor

FLAGS = "-std=c++17 -O3 -march=native -DNDEBUG -fopenmp -shared -fPIC -w".split()
HERE = Path(__file__).parent


def build(source: str, flags: Sequence[str], *identity: str) -> ctypes.CDLL:
    """The compiled library, from the cache where nothing has changed.

    Args:
        source: file beside this one.
        flags: besides `FLAGS`.
        identity: whatever else the result depends on, as versions.

    Raises:
        MissingPeerError: no compiler, or it failed.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise MissingPeerError("no C++ compiler")
    text = (HERE / source).read_bytes()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    key = repr((FLAGS, flags, version, cpu_flags(), identity)).encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchsko-bench"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{Path(source).stem}-{hashlib.sha256(text + key).hexdigest()[:20]}.so"
    if not target.exists():
        _compile([compiler, *FLAGS, str(HERE / source), *flags], target)
    return ctypes.CDLL(str(target))


def _compile(command: list[str], target: Path) -> None:
    print(f"building {target.name} (kept; minutes for Pinocchio)...", file=sys.stderr, flush=True)
    start = time.perf_counter()
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    done = subprocess.run([*command, "-o", str(temporary)], capture_output=True, text=True)
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "killed")
        raise MissingPeerError(f"its build failed: {first[:300]}")
    os.replace(temporary, target)
    print(f"built in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)


def cpu_flags() -> str:
    """The instruction sets of this machine, which -march=native reads."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("flags")), "")


def array(x: Tensor | np.ndarray) -> np.ndarray:
    """A contiguous array, to be kept as long as C reads it."""
    return np.ascontiguousarray(x.numpy() if isinstance(x, Tensor) else x)


def address(x: np.ndarray) -> ctypes.c_void_p:
    """Address of the array's data."""
    return ctypes.c_void_p(x.ctypes.data)
