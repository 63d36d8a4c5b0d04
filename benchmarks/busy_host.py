"""Kernels and PyTorch's operators beside busy processes, by number of threads and OpenMP's wait policy.

Usage: python benchmarks/busy_host.py [--busy 2] [--seconds 2]
Milliseconds of a call in interleaved runs, each policy in a process of its own: a fused rollout of 128 double
pendulums over 200 steps, eager forward dynamics of 1024 Pandas, and one operator on 51200 numbers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import torchsko as ts

POLICIES = {"default": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}


def pendulum() -> ts.Mechanism:
    """Two rods in a row."""
    builder = ts.MechanismBuilder("pendulum")
    for name, parent in (("first", None), ("second", "first")):
        builder.link(name, mass=1.0, com=(0.0, 0.0, -0.25))
        builder.joint(f"{name}_hinge", "revolute", child=name, parent=parent, axis=(0, 1, 0))
    return builder.build()


def cases() -> dict[str, Callable[[], Any]]:
    """The calls, by name."""
    robot, arm = pendulum(), ts.load(ts.robots.panda)
    fast, (q, qd) = ts.fuse(robot), arm.random_state(1024)
    zero, tau = torch.zeros(2).double(), torch.zeros(128, 200, 2).double()
    return {
        "fused rollout": lambda: ts.rollout(
            fast, ts.State(zero, zero), tau, steps=200, dt=0.02, method="rk4"
        ),
        "eager dynamics": lambda: ts.forward_dynamics(arm, q, qd, qd),
        "one operator": lambda: torch.cos(tau),
    }


def mean_time(call: Callable[[], Any], seconds: float) -> float:
    """Mean time of a call in ms, after a first call."""
    call()
    start, count = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        call()
        count += 1
    return (time.perf_counter() - start) / count * 1e3


def measure(policy: str, seconds: float) -> None:
    """Print the times of one policy."""
    for threads in (1, 2, 1, 2):
        torch.set_num_threads(threads)
        cells = [f"{name} {mean_time(call, seconds):8.3f}" for name, call in cases().items()]
        print(f"{policy:8} {threads} threads: {'  '.join(cells)}", flush=True)


def main() -> None:
    """Measure both policies beside busy processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--policy", choices=POLICIES)
    args = parser.parse_args()
    if args.policy:
        measure(args.policy, args.seconds)
        return
    others = [subprocess.Popen([sys.executable, "-c", "while True: 0"]) for _ in range(args.busy)]
    try:
        for policy, environment in POLICIES.items():
            command = [sys.executable, __file__, "--policy", policy, "--seconds", str(args.seconds)]
            subprocess.run(command, env={**os.environ, **environment}, check=True)
    finally:
        for process in others:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
