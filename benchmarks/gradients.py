"""Gradients through long rollouts: kernels, checkpoints and the full tape, beside differences.

Usage: python benchmarks/gradients.py [--robots panda humanoid] [--steps 1000] [--batch 1024] [--whole]
Semi-implicit Euler, 1 ms, float64, the gradient of the end of a rollout. First a batch, by the start and
constant forces, so that neither the result nor the gradient is large: each way in a process of its own, the
most memory besides what was there before the call, and the seconds of the processor. Kernels run all steps.
Of eager ways both are straight lines in the steps, once a checkpoint has its stride (the root of all steps):
each is measured at two horizons, and the line is followed to the end, so a tape that would not fit is known
as well; --whole runs the checkpoints to the end instead. Binomial checkpoints make no line: they are run to
the end, by --whole only. The full tape of this library is small: dynamics keep what they are given and what
they return, not what is between. Then one sample, by all joint forces: kernels beside central differences
along one direction, and beside the full tape.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from cases import floating_humanoid, panda
from report import origin
from torch import Tensor

import torchsko as ts

ROBOTS = {"panda": panda, "humanoid": floating_humanoid}
DT = 1e-3
WAYS = {
    "full tape": {"fused": False},
    "checkpoint, root": {"checkpoint": "root", "fused": False},
    "binomial, 43 states": {"checkpoint": ts.integrators.Binomial(43), "fused": False},
    "kernel": {},
    "kernel, root": {"checkpoint": "root"},
}
MARGIN = 1 << 14
"""Bytes from which glibc gives blocks of their own, in all ways: its heap has holes, as chance has it."""


def start(mech: ts.Mechanism, batch: int, steps: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(batch, generator=g)
    tau = torch.randn(batch, steps, mech.num_dof, generator=g, dtype=q.dtype)
    return [q, qd / 10, tau / 10]


def end(mech: object, states: list[Tensor], steps: int, **options: object) -> Tensor:
    """A number for the last state."""
    q, qd, tau = states
    start = ts.State(q, qd)
    qs, qds, *_ = ts.rollout(mech, start, tau, steps=steps, dt=DT, nonfinite="ignore", **options)  # type: ignore
    return qs[:, -1].square().sum() + qds[:, -1].square().sum()


def pulled(mech: object, states: list[Tensor], steps: int, **options: object) -> Tensor:
    """Its gradient by the joint forces."""
    tau = states[2].clone().requires_grad_()
    (found,) = torch.autograd.grad(end(mech, [*states[:2], tau], steps, **options), tau)
    return found


def check(name: str, steps: int) -> None:
    """Print how far kernels are from differences and from the tape."""
    mech = ROBOTS[name]().mech
    fast, states = ts.fuse(mech), start(mech, 1, steps)
    g = torch.Generator().manual_seed(1)
    direction = torch.randn(states[2].shape, generator=g, dtype=torch.float64)
    pulled(fast, states, steps)  # built
    began = time.process_time()
    kernel = pulled(fast, states, steps)
    between = time.process_time()
    tape = pulled(mech, states, steps, fused=False)
    ratio = (time.process_time() - between) / (between - began)
    h = 1e-6  # of the five points of an error of order h^4
    at = {k: end(fast, [*states[:2], states[2] + k * h * direction], steps) for k in (-2, -1, 1, 2)}
    theirs = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * h)
    error = ((kernel * direction).sum() / theirs - 1).abs().item()
    off = ((tape - kernel).abs().max() / tape.abs().max()).item()
    print(
        f"  one gradient of {steps} steps by kernels, from differences {error:.1g}, from the full tape "
        f"{off:.1g}; the eager tape takes {ratio:.0f} times as long",
        flush=True,
    )


def options_of(way: str, root: int, horizon: int) -> dict[str, object]:
    """Of a way, whose last state alone is given; kernels keep states at a stride that divides the horizon."""
    given: dict[str, object] = {"every": horizon} | WAYS[way]
    if given.get("checkpoint") == "root":
        near = sorted(range(1, horizon + 1), key=lambda k: abs(k - root))
        whole = (k for k in near if horizon % k == 0)
        given["checkpoint"] = next(whole) if way.startswith("kernel") else root
    return given


def memory(what: str) -> float:
    """MB of this process."""
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index(what) + 1]) / 1024


def measure(name: str, way: str, steps: int, batch: int, horizon: int) -> None:
    """Print memory [MB] and time of the processor [s] of so many steps of one way of going all steps."""
    mech = ROBOTS[name]().mech
    given, root = ts.fuse(mech) if way.startswith("kernel") else mech, round(steps**0.5)

    def gradient(batch: int, steps: int) -> None:
        leaves = [x.requires_grad_() for x in start(mech, batch, 1)]
        Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
        before, began = memory("VmRSS:"), time.process_time()
        torch.autograd.grad(end(given, leaves, steps, **options_of(way, root, steps)), leaves)
        said = memory("VmHWM:") - before, time.process_time() - began
        print(*said)

    # Kernels are built first, and loaded: those of all that a gradient of so many steps takes.
    for size, steps in ((2, horizon if way.startswith("kernel") else 3), (batch, horizon)):
        gradient(size, steps)


def measured(name: str, way: str, args: argparse.Namespace, horizon: int) -> tuple[float, ...]:
    """The same, from a process of its own."""
    numbers = {"steps": args.steps, "batch": args.batch, "threads": args.threads}
    command = [sys.executable, __file__, "--robots", name, "--way", way, "--horizon", str(horizon)]
    command += [str(x) for key, value in numbers.items() for x in (f"--{key}", value)]
    settings = {"MALLOC_MMAP_THRESHOLD_": str(MARGIN)}
    done = subprocess.run(
        command, nonfinite="raise", text=True, stdout=subprocess.PIPE, env=os.environ | settings
    )
    return tuple(float(x) for x in done.stdout.splitlines()[-1].split())


def table(name: str, args: argparse.Namespace) -> None:
    """Print memory and time of all ways."""
    print(f"{name}: {args.batch} samples, {args.steps} steps, {args.threads} threads", flush=True)
    tape, root = None, round(args.steps**0.5)
    once = measured(name, "full tape", args, 2)[0]
    print(f"  two steps alone, of which nothing is saved by any way: {once:.0f} MB", flush=True)
    for way in WAYS:
        whole = way.startswith("kernel") or (args.whole and way != "full tape")
        if way.startswith("binomial") and not whole:
            continue
        horizons = (args.taped, 2 * args.taped) if way == "full tape" else (2 * root, 6 * root)
        if whole:
            found, said = measured(name, way, args, args.steps), "measured"
        else:
            near, far = (measured(name, way, args, steps) for steps in horizons)
            share = (args.steps - horizons[0]) / (horizons[1] - horizons[0])
            found = tuple(a + share * (b - a) for a, b in zip(near, far, strict=True))
            said = "from {} and {} steps".format(*horizons)
        tape = tape or found
        print(
            f"  {way:20} {found[0]:9.0f} MB, {100 * found[0] / tape[0]:5.1f} % of the tape, "
            f"{100 * (found[0] - once) / (tape[0] - once):5.1f} % besides two steps   "
            f"{found[1]:8.3g} s of the processor, {found[1] / tape[1]:6.3g} of its   ({said})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robots", nargs="+", default=list(ROBOTS), choices=ROBOTS)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--taped", type=int, default=32, help="the first horizon of the full tape")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--whole", action="store_true", help="checkpoints to the end")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--horizon", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.way:
        return measure(args.robots[0], args.way, args.steps, args.batch, args.horizon)
    print(origin(args.threads))
    for name in args.robots:
        table(name, args)
        check(name, args.steps)
    return None


if __name__ == "__main__":
    main()
