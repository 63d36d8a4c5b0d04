"""Torque regressors beside a Python loop over Pinocchio's `computeJointTorqueRegressor`.

Usage: python benchmarks/regressor.py [--batch 4096] [--threads 1] [--passes 9]
All contestants run interleaved on the same states of the Panda, float64, after a check that they
agree; a ratio is the median over passes of the ratio within a pass, with its extremes. Memory is what
a first call adds to the resident set at its peak, the result included.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
from collections.abc import Callable

import numpy as np
import pinocchio as pin
import torch
from parts.memory import reset_mark, resident
from timing import interleaved, ratio
from torch import Tensor

import torchsko as ts

LOOP, EAGER, FUSED = "Pinocchio, Python loop", "torchsko, eager", "torchsko, fused"
Call = Callable[[], Tensor]


def pinocchio_loop(*states: Tensor) -> Call:
    """One call of Pinocchio a sample, each result copied to its place in one array."""
    model = pin.buildModelFromUrdf(str(ts.robots.panda))
    data = model.createData()
    q, qd, qdd = (x.numpy() for x in states)

    def run() -> Tensor:
        found = np.empty((len(q), model.nv, 10 * model.nv))
        for k in range(len(q)):
            found[k] = pin.computeJointTorqueRegressor(model, data, q[k], qd[k], qdd[k])
        return torch.from_numpy(found)

    return run


def peak_bytes(call: Call) -> int:
    """Growth of the resident set's peak over one call, from a heap without free pages."""
    ctypes.CDLL(None).malloc_trim(0)
    before = reset_mark()
    call()
    return resident("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1, help="of torchsko; the loop has one")
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--slot", type=float, default=0.5, help="seconds of a contestant in a pass")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    arm = ts.load(ts.robots.panda)
    fast = ts.fuse(arm)
    g = torch.Generator().manual_seed(0)
    q, qd = arm.random_state(args.batch, generator=g)
    states = (q, qd, torch.randn(qd.shape, generator=g, dtype=qd.dtype))
    calls: dict[str, Call] = {
        LOOP: pinocchio_loop(*states),
        EAGER: lambda: ts.torque_regressor(arm, *states),
        FUSED: lambda: fast.torque_regressor(*states),
    }
    few = [x[:2] for x in states]  # builds, allocates what stays
    ts.torque_regressor(arm, *few), fast.torque_regressor(*few)
    peaks = {name: peak_bytes(call) for name, call in calls.items()}
    expected = calls[LOOP]()
    for name in (EAGER, FUSED):
        error = (calls[name]().flatten(-2) - expected).abs().max() / expected.abs().max()
        print(f"{name}: largest difference from Pinocchio {error:.1e} of the largest entry")
    seconds = interleaved(calls, args.passes, args.slot)
    print(f"\nPanda, batch {args.batch}, {args.threads} thread(s), float64")
    print("| | ms a call | us a sample | loop / this | peak MB |\n|---|---|---|---|---|")
    for name, times in seconds.items():
        t, peak = statistics.median(times), peaks[name]
        print(f"| {name} | {1e3 * t:.3g} | {1e6 * t / args.batch:.3g} "
              f"| {ratio(seconds[LOOP], times)} | {peak / 1e6:.0f} |")  # fmt: skip


if __name__ == "__main__":
    main()
