"""Speed of kernels by compiler: forward dynamics of an arm and of a humanoid.

Usage: python benchmarks/compilers.py [--compilers g++ clang++] [--robots panda talos] [--target x86-64-v3]

Nanoseconds of the processor for a sample on one thread, the least of interleaved calls, and how many times
longer the kernels of each compiler take than those of the first.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from auto import ROBOTS

import torchsko as ts
from torchsko.fused.build.toolchain import Toolchain, find_toolchain
from torchsko.fused.calls.kernel import Kernel, build_kernel
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

BATCH, CALLS, ROUNDS = 4096, 2, 40


def toolchain_of(compiler: str, target: str) -> Toolchain:
    """The toolchain of a compiler by its name."""
    os.environ["CXX"] = compiler
    return find_toolchain(target)


def least(kernels: dict[str, Kernel], inputs: list[torch.Tensor]) -> dict[str, float]:
    """Nanoseconds a sample of each, of the processor: others may use the machine."""
    found = dict.fromkeys(kernels, float("inf"))
    for _ in range(ROUNDS):
        for name, kernel in kernels.items():
            kernel(inputs)
            start = time.thread_time_ns()
            for _ in range(CALLS):
                kernel(inputs)
            taken = (time.thread_time_ns() - start) / CALLS / BATCH
            found[name] = min(found[name], taken)
    return found


def measure(robot: str, toolchains: dict[str, Toolchain]) -> None:
    """Print the lines of a robot."""
    mech = ROBOTS[robot]()
    ports = [Port("q", (mech.num_q,)), *(Port(name, (mech.num_dof,)) for name in ("qd", "tau"))]
    program = trace(lambda *x: (ts.forward_dynamics(mech, *x),), ports)
    q, qd = mech.random_state(BATCH)
    for dtype in (torch.float64, torch.float32):
        inputs = [x.to(dtype) for x in (q, qd, torch.sin(qd))]
        kernels = {name: build_kernel(program, dtype, of) for name, of in toolchains.items()}
        found = least(kernels, inputs)
        first = next(iter(found.values()))
        cells = "".join(f"  {name} {x:.1f} ({x / first:.2f}x)" for name, x in found.items())
        print(f"{robot} {str(dtype).removeprefix('torch.')}:{cells}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compilers", nargs="+", default=["g++", "clang++"])
    parser.add_argument("--robots", nargs="+", default=list(ROBOTS), choices=ROBOTS)
    parser.add_argument("--target", default="native", help="instruction set, as for -march")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    toolchains = {name: toolchain_of(name, asked.target) for name in asked.compilers}
    for name, of in toolchains.items():
        print(f"{name}: {of.path} {of.flags[-1]}, vectors of {of.vector_bytes} bytes")
    for robot in asked.robots:
        measure(robot, toolchains)


if __name__ == "__main__":
    main()
