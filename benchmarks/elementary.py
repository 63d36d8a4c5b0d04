"""Our elementary functions beside SLEEF's and those of the C library for vectors: time and error.

Usage: python benchmarks/elementary.py [--target x86-64-v3]

For sine with cosine, exp, expm1, tanh and log: nanoseconds of the processor for an element, the least of many
sweeps of arrays that the first-level cache holds, and the largest error in units in the last place, against
long double. SLEEF (Debian: libsleef-dev) and glibc's libmvec take part where they link.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from torchsko.fused.build.toolchain import Toolchain, find_toolchain
from torchsko.fused.emit.cpp import _prelude

FUNCTIONS = {
    "sincos": 100.0,  # of arguments up to so much
    "exp": 80.0,
    "expm1": 10.0,
    "tanh": 4.0,
    "log": 30.0,  # of the exponential of that
}
SIZE, SWEEPS, REPEATS = 1024, 20, 400
SLEEF = {64: "avx512f", 32: "avx2", 16: "sse4"}
MVEC = {64: "e", 32: "d", 16: "b"}

LOOP = """
#include <time.h>
static double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}
#define MEASURED(name, BODY) \\
  extern "C" __attribute__((visibility("default"))) double name( \\
      const T* x, T* y, T* z, int size, int sweeps, int repeats) { \\
    double least = 1e300; \\
    for (int r = 0; r < repeats; ++r) { \\
      const double start = now(); \\
      for (int s = 0; s < sweeps; ++s) \\
        for (int k = 0; k < size; k += W) { \\
          const V a = *(const V*)(x + k); \\
          V b = a, c = a; \\
          BODY; \\
          *(V*)(y + k) = b; \\
          *(V*)(z + k) = c; \\
        } \\
      const double taken = now() - start; \\
      if (taken < least) least = taken; \\
    } \\
    return least / sweeps / size; \\
  }
"""


def mine() -> str:
    """Our own functions."""
    lines = ["MEASURED(run_sincos, vsincos(a, &b, &c))"]
    return "\n".join(
        lines + [f"MEASURED(run_{f}, b = v{f}(a))" for f in FUNCTIONS if f != "sincos"]
    )


def sleef(bits: int, bytes_: int) -> str:
    """Those of SLEEF of one unit in the last place."""
    lanes, letter = bytes_ * 8 // bits, "d" if bits == 64 else "f"
    tail = f"{letter}{lanes}_u10{SLEEF[bytes_]}"
    lines = ["struct Two { V sine, cosine; };", f'extern "C" Two Sleef_sincos{tail}(V);']
    lines.append(
        f"MEASURED(run_sincos, const Two t = Sleef_sincos{tail}(a); b = t.sine; c = t.cosine)"
    )
    for name in list(FUNCTIONS)[1:]:
        lines.append(f'extern "C" V Sleef_{name}{tail}(V);')
        lines.append(f"MEASURED(run_{name}, b = Sleef_{name}{tail}(a))")
    return "\n".join(lines)


def mvec(bits: int, bytes_: int) -> str:
    """Those that GCC calls for loops; they have sine and cosine one by one."""
    lanes, tail = bytes_ * 8 // bits, "" if bits == 64 else "f"

    def symbol(name: str) -> str:
        return f"_ZGV{MVEC[bytes_]}N{lanes}v_{name}{tail}"

    names = ("sin", "cos", *list(FUNCTIONS)[1:])
    lines = [f'extern "C" V {symbol(name)}(V);' for name in names]
    lines.append(f"MEASURED(run_sincos, b = {symbol('sin')}(a); c = {symbol('cos')}(a))")
    for name in names[2:]:
        lines.append(f"MEASURED(run_{name}, b = {symbol(name)}(a))")
    return "\n".join(lines)


def units(found: np.ndarray, exact: np.ndarray) -> float:
    """The largest error in units in the last place."""
    return float(np.max(np.abs(found - exact) / np.spacing(np.abs(exact.astype(found.dtype)))))


def arguments(name: str, kind: type) -> np.ndarray:
    """Random arguments of a function, of both signs where it has them."""
    x = np.random.default_rng(0).uniform(-1, 1, 64 * SIZE) * FUNCTIONS[name]
    return (np.exp(x) if name == "log" else x).astype(kind)


def measure(library: ctypes.CDLL, name: str, kind: type) -> tuple[float, float]:
    """Nanoseconds an element, and units in the last place."""
    run = library[f"run_{name}"]
    run.restype = ctypes.c_double
    x = arguments(name, kind)
    # Aligned for any vector, which numpy does not promise.
    work = np.empty(3 * SIZE + 64, kind)
    start = (-work.ctypes.data % 64) // work.itemsize
    own, y, z = (work[start + k * SIZE : start + (k + 1) * SIZE] for k in range(3))
    worst, least = 0.0, float("inf")
    for k in range(0, len(x), SIZE):
        own[:] = x[k : k + SIZE]
        pointers = [ctypes.c_void_p(part.ctypes.data) for part in (own, y, z)]
        least = min(least, run(*pointers, SIZE, SWEEPS, REPEATS // 64 + 1))
        wide = own.astype(np.longdouble)
        pairs = [(y, np.sin), (z, np.cos)] if name == "sincos" else [(y, getattr(np, name))]
        worst = max(worst, *(units(part, f(wide)) for part, f in pairs))
    return least, worst


def built(text: str, links: list[str], toolchain: Toolchain) -> ctypes.CDLL | None:
    """A library that calls others, or None where these are not installed."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "elementary.cpp"), Path(folder, "elementary.so")
        source.write_text(text)
        command = [toolchain.path, *toolchain.flags, "-shared", str(source), "-o", str(library)]
        done = subprocess.run([*command, *links, "-Wl,-z,defs"], capture_output=True)
        return ctypes.CDLL(str(library)) if done.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="native", help="instruction set, as for -march")
    toolchain = find_toolchain(parser.parse_args().target)
    width = toolchain.vector_bytes
    print(f"{toolchain.path}, vectors of {width} bytes: ns an element (units in the last place)")
    for bits, kind in ((64, np.float64), (32, np.float32)):
        texts = {
            "torchsko": (mine(), []),
            "SLEEF": (sleef(bits, width), ["-lsleef"]),
            "libmvec": (mvec(bits, width), ["-lmvec", "-lm"]),
        }
        for library_name, (text, links) in texts.items():
            library = built(_prelude(bits, width) + LOOP + text, [*links, "-lm"], toolchain)
            if library is None:
                print(f"float{bits} {library_name:9} does not link")
                continue
            found = {name: measure(library, name, kind) for name in FUNCTIONS}
            cells = "".join(f"{n:>8} {t:6.2f} ({u:.2f})" for n, (t, u) in found.items())
            print(f"float{bits} {library_name:9}{cells}", flush=True)


if __name__ == "__main__":
    main()
