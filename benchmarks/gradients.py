"""Gradients through long rollouts: kernels, checkpoints and the full tape, beside differences.

Usage: python benchmarks/gradients.py [--robots panda humanoid] [--steps 1000] [--taped 20] [--batch 1024]
Semi-implicit Euler, 1 ms, float64, the gradient of the end of a rollout by all joint forces. The first table
holds kernels to central differences along one direction, and to the full tape on the first steps of it; the
second gives peak memory besides what was there before, and time, each in a process of its own. The full tape
and checkpoints are run for `--taped` steps: the tape grows with the steps, what a checkpoint keeps with their
root.
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
from torch import Tensor

import torchsko as ts
from torchsko.rollout.binomial import Binomial

ROBOTS = {"panda": panda, "humanoid": floating_humanoid}
DT = 1e-3
WAYS = {
    "full tape": {},
    "checkpoint, root": {"checkpoint": "root"},
    "checkpoint, binomial 4": {"checkpoint": "binomial", "every": "end"},
    "kernel": {"fused": True},
    "kernel, thinned": {"fused": True, "every": "root"},
}


def start(mech: ts.Mechanism, batch: int, steps: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(batch, generator=g)
    tau = torch.randn(batch, steps, mech.num_dof, generator=g, dtype=q.dtype)
    return [q, qd / 10, tau / 10]


def end(mech: object, states: list[Tensor], steps: int, **options: object) -> Tensor:
    """A number for the last state."""
    qs, qds = ts.rollout(mech, *states, steps, DT, check=False, **options)  # type: ignore
    return qs[:, -1].square().sum() + qds[:, -1].square().sum()


def pulled(mech: object, states: list[Tensor], steps: int, **options: object) -> Tensor:
    """Its gradient by the joint forces."""
    tau = states[2].clone().requires_grad_()
    (found,) = torch.autograd.grad(end(mech, [*states[:2], tau], steps, **options), tau)
    return found


def check(name: str, steps: int, taped: int) -> None:
    """Print how far kernels are from differences and from the tape."""
    mech = ROBOTS[name]().mech
    fast = ts.fuse(mech)
    states = start(mech, 1, steps)
    g = torch.Generator().manual_seed(1)
    direction = torch.randn(states[2].shape, generator=g, dtype=torch.float64)
    mine = (pulled(fast, states, steps) * direction).sum()
    h = 1e-6  # of the five points of an error of order h^4
    at = {k: end(fast, [*states[:2], states[2] + k * h * direction], steps) for k in (-2, -1, 1, 2)}
    theirs = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * h)
    error = (mine / theirs - 1).abs().item()
    few = [*states[:2], states[2][:, :taped]]
    tape, kernel = pulled(mech, few, taped), pulled(fast, few, taped)
    off = ((tape - kernel).abs().max() / tape.abs().max()).item()
    print(
        f"{name}: gradient of {steps} steps by kernels, from differences {error:.1g}; of {taped} steps, "
        f"from the full tape {off:.1g}",
        flush=True,
    )


def options_of(way: str, steps: int) -> dict[str, object]:
    root = round(steps**0.5)
    given = dict(WAYS[way])
    if given.get("checkpoint") == "root":
        given["checkpoint"] = root
    if given.get("checkpoint") == "binomial":
        given["checkpoint"] = Binomial(4)
    if "every" in given:
        given["every"] = steps if given["every"] == "end" else root
    given.pop("fused", None)
    return given


def memory(what: str) -> float:
    """MB of this process."""
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index(what) + 1]) / 1024


def measure(name: str, way: str, steps: int, batch: int) -> None:
    """Print memory and time of one way."""
    mech = ROBOTS[name]().mech
    given = ts.fuse(mech) if way.startswith("kernel") else mech
    options = options_of(way, steps)
    pulled(given, start(mech, 2, steps), steps, **options)  # built, and loaded
    states = start(mech, batch, steps)
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before = memory("VmRSS:")
    began, worked = time.perf_counter(), time.process_time()
    pulled(given, states, steps, **options)
    spent, cpu = time.perf_counter() - began, time.process_time() - worked
    most = memory("VmHWM:") - before
    print(
        f"  {way:24} {steps:5} steps  {most:8.0f} MB, {1e3 * most / steps:7.3g} MB a thousandth   "
        f"{spent:7.3g} s, of the processor {1e3 * cpu / steps:.3g} ms a step",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robots", nargs="+", default=list(ROBOTS), choices=ROBOTS)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--taped", type=int, default=20)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.way:
        return measure(args.robots[0], args.way, args.steps, args.batch)
    for name in args.robots:
        check(name, args.steps, args.taped)
        for way in WAYS:
            steps = args.steps if way.startswith("kernel") else args.taped
            command = [
                sys.executable,
                __file__,
                "--robots",
                name,
                "--way",
                way,
                "--steps",
                str(steps),
            ]
            command += ["--batch", str(args.batch), "--threads", str(args.threads)]
            subprocess.run(command, check=True)
    return None


if __name__ == "__main__":
    main()
