"""Our threads beside those of OpenMP: what a call of forward dynamics of an arm takes, from small to large.

Usage: python benchmarks/pool.py [--threads 2] [--rounds 300] [--busy 0]

The same kernel and the same blocks, called from C; OpenMP (GCC's) draws them with `schedule(dynamic)`, as
`at::parallel_for` would at best. Microseconds of a call, median and least of interleaved rounds, each after a
pause of a millisecond ("cold") or at once ("hot"). With `--busy` as many other processes keep cores busy.
"""

from __future__ import annotations

import argparse
import ctypes
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import torchsko as ts
from torchsko.fused.build.kernel_library import BLOCK_COST, build_library
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.emit.cpp import native
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

BATCHES = (256, 1024, 4096, 65536)

OPENMP = """
extern "C" __attribute__((visibility("default"))) int openmp_launch(
    const Plan* plan, const void* call, int threads) {
  const long long batch = ((const long long*)call)[0], block_rows = ((const long long*)call)[1];
  const long long blocks = (batch + block_rows - 1) / block_rows;
#pragma omp parallel num_threads(threads)
  {
    void* scratch = nullptr;
    if (posix_memalign(&scratch, 64, (size_t)plan->scratch_bytes)) abort();
#pragma omp for schedule(dynamic) nowait
    for (long long block = 0; block < blocks; ++block)
      plan->kernel(call, scratch, block, block + 1);
    free(scratch);
  }
  return 0;
}
// Nanoseconds of one call; memory of two kinds of threads is not mixed within it.
extern "C" __attribute__((visibility("default"))) long long timed(
    const Plan* plan, const void* call, int threads, int openmp) {
  const long long start = nanoseconds();
  openmp ? openmp_launch(plan, call, threads) : torchsko_launch(plan, call, threads);
  return nanoseconds() - start;
}
"""


def launcher() -> ctypes.CDLL:
    """Both ways in one library."""
    toolchain = find_toolchain()
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "pool.cpp"), Path(folder, "pool.so")
        source.write_text(native("runtime.cpp") + OPENMP)
        command = [toolchain.path, *toolchain.flags, "-fopenmp", "-shared", str(source)]
        subprocess.run([*command, "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--busy", type=int, default=0)
    asked = parser.parse_args()
    mech = ts.load(ts.robots.panda)
    n = mech.num_dof
    program = trace(
        lambda *x: (ts.forward_dynamics(mech, *x),),
        [Port(name, (n,)) for name in ("q", "qd", "tau")],
    )
    compiled = build_library(program, torch.float64, find_toolchain())
    timed = launcher().timed
    timed.restype = ctypes.c_longlong
    plan = struct.pack("@qq", compiled.kernel, compiled.scratch_bytes)
    others = [subprocess.Popen([sys.executable, "-c", "while True: 0"]) for _ in range(asked.busy)]
    try:
        print(
            f"{asked.threads} threads, {asked.busy} other busy processes: us of a call, median (least)"
        )
        for batch in BATCHES:
            line(timed, plan, compiled, mech, batch, asked)
    finally:
        for process in others:
            process.kill()
            process.wait()


def line(timed, plan, compiled, mech, batch, asked) -> None:
    """Print a batch size."""
    q, qd = mech.random_state(batch)
    tensors = [q, qd, torch.sin(qd), torch.empty_like(qd)]
    tiles = max(1, min(64, BLOCK_COST // compiled.cost, batch // (16 * compiled.width)))
    words = [batch, compiled.width * tiles]
    for x in tensors:
        words += (x.data_ptr(), mech.num_dof)
    call = struct.pack(f"@{len(words)}q", *words)
    found: dict[str, list[float]] = {}
    # A run of its own for each: OpenMP's threads spin after a call, in the way of ours, and the reverse.
    for start in range(0, asked.rounds, 20):
        for name, openmp in (("ours", 1 - 1), ("OpenMP", 1)):
            for k in range(min(20, asked.rounds - start)):
                is_hot = k % 4 != 0
                if not is_hot:
                    time.sleep(1e-3)
                taken = timed(plan, call, asked.threads, openmp) / 1e3
                if k > 0:
                    found.setdefault(f"{name} {'hot' if is_hot else 'cold'}", []).append(taken)
            time.sleep(5e-3)
    cells = "".join(f"  {k} {median(v):.0f} ({min(v):.0f})" for k, v in sorted(found.items()))
    print(f"batch {batch:6}:{cells}", flush=True)


if __name__ == "__main__":
    main()
