"""Costs of eager calls and of kernel builds, on which `torchsko.fused.automatic` decides.

Usage: python benchmarks/auto.py [--robots panda talos]

For each robot: what a call costs that no sample is in, counted in samples; the build with an empty cache,
counted in the same; and both as the rule has them. Forward dynamics and its gradients, and rollouts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

import torch
from energy import example
from timing import build_time, interleaved

import torchsko as ts
from torchsko.fused import automatic as auto
from torchsko.mechanism.dispatch import MechanismLike

ROBOTS = {
    "panda": lambda: ts.load(ts.robots.panda),
    "talos": lambda: ts.load(example("talos_data/robots/talos_reduced.urdf"), floating_base=True),
}


def line(work: Callable[[int], object]) -> tuple[float, float]:
    """Seconds of an empty call, and of a sample."""
    calls = {n: lambda n=n: work(n) for n in (1, 2048)}
    seconds = interleaved({str(n): call for n, call in calls.items()}, 3, 0.3)
    few, many = (median(seconds[str(n)]) for n in calls)
    each = (many - few) / 2047
    return few - each, each


def measure(name: str, mech: ts.Mechanism) -> None:
    """Print the lines of a robot."""
    mass = mech.mass.clone().requires_grad_()
    learning = mech.replace(mass=mass)

    def gradient(given: MechanismLike, n: int) -> None:
        q, qd = mech.random_state(n)
        torch.autograd.grad(ts.forward_dynamics(given, q, qd, qd).square().sum(), mass)

    def steps(n: int, fused: bool | None) -> None:
        given = mech if fused is False else ts.fuse(mech)
        ts.rollout(given, ts.State(*mech.random_state(n)), None, steps=20, fused=fused)

    empty, each = line(lambda n: gradient(learning, n))
    made = build_time(lambda: gradient(ts.fuse(learning, inputs=["mass"]), 3))
    print(
        f"{name}, forward dynamics and gradient: empty {empty / each:.0f}, build {made / each:.0f}"
    )
    empty, each = line(lambda n: steps(n, False))
    made = build_time(lambda: steps(3, None)) * 20
    print(f"{name}, a step of a rollout: empty {empty / each:.0f}, build {made / each:.0f}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--robots", nargs="+", default=["panda"], choices=ROBOTS)
    print(f"the rule, in samples: empty {auto.FIXED}, build {auto.PAYS}")
    for name in parser.parse_args().robots:
        measure(name, ROBOTS[name]())


if __name__ == "__main__":
    main()
