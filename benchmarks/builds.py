"""Builds of large kernels: operations, seconds of processor time with an empty cache, and scratch memory.

    python benchmarks/builds.py [whole-body] [delta] [stewart] [--gradient]

`whole-body` is the control of a humanoid on its soles, the others are rollouts of parallel robots with RK4.
The time of compilers, which are child processes, is included.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from cases import floating_humanoid
from closed_chains import stewart
from quadratic import law, soles, standing_humanoid
from report import origin
from timing import processor_time
from torch import Tensor

import torchsko as ts
from torchsko.fused.calls import kernel, scan_kernel
from torchsko.fused.layout.schedule import schedule

Run = tuple[Callable[..., Tensor], list[Tensor]]
"""A function of a kernel, and its arguments."""


def delta() -> ts.Mechanism:
    """Three arms with universal rods to a platform that slides along x, y and z."""
    inertial = '<inertial pos="0.1 0 0" mass="0.3" diaginertia="2e-3 2e-3 2e-3"/>'
    arms = loops = ""
    for k in range(3):
        arms += f"""<body euler="0 0 {120 * k}"><body pos="0.2 0 0"><joint axis="0 1 0"/>{inertial}
          <body name="rod{k}" pos="0.2 0 0"><joint axis="0 1 0"/><joint axis="0 0 1"/>{inertial}
          </body></body></body>"""
        x, y = (0.05 * f(math.radians(120 * k)) for f in (math.cos, math.sin))
        loops += f'<connect body1="platform" body2="rod{k}" anchor="{x} {y} 0"/>'
    slides = "".join(f'<joint type="slide" axis="{a}"/>' for a in ("1 0 0", "0 1 0", "0 0 1"))
    text = f"""<mujoco model="delta"><worldbody>{arms}<body name="platform" pos="0 0 -0.35">{slides}
      {inertial}</body></worldbody><equality>{loops}</equality></mujoco>"""
    return ts.load(text, closures="embed")


def rollout(mech: ts.Mechanism) -> Run:
    """Ten steps from rest at the initial configuration."""
    fast, q = ts.fuse(mech), mech.initial()[None]
    force = q.new_zeros(1, mech.num_dof)

    def run(q: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
        return ts.rollout(fast, ts.State(q, qd), tau, steps=10, dt=1e-3, method="rk4").q

    return run, [q, 0 * force, force]


def whole_body() -> Run:
    """The law of `benchmarks/quadratic.py` with 15 iterations."""
    contacts = soles()
    fast = ts.fuse(lambda mech, q, qd: law(mech, q, qd, contacts), floating_humanoid().mech)
    return lambda q, qd: fast(q, qd)[0], [*standing_humanoid(1)]


CASES: dict[str, Callable[[], Run]] = {
    "whole-body": whole_body,
    "delta": lambda: rollout(delta()),
    "stewart": lambda: rollout(stewart().builder.build()),
}


def print_build(name: str, call: Callable[[], Any]) -> Any:
    """Print a line for each kernel that a call builds; returns its result."""
    programs = []
    modules = (kernel, scan_kernel)
    build = kernel.build_library
    for module in modules:
        module.build_library = lambda program, *args, **options: (
            programs.append(program) or build(program, *args, **options)
        )
    start = processor_time()
    result = call()
    seconds = processor_time() - start
    for module in modules:
        module.build_library = build
    for program in programs:
        kilobytes = 8e-3 * schedule(program, 1000).num_slots
        print(
            f"{name}: {program.num_flops} operations, {seconds:.1f} s, "
            f"scratch {kilobytes:.1f} kB a sample in float64",
            flush=True,
        )
    return result


def main() -> None:
    """Print the lines of the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*CASES, []])
    parser.add_argument("--gradient", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ts.RobotFileWarning)
    print(origin(1))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHSKO_CACHE"] = folder
        for name in options.names or CASES:
            run, inputs = CASES[name]()
            inputs = [x.requires_grad_(options.gradient) for x in inputs]
            found = print_build(name, partial(run, *inputs))
            if options.gradient:
                gradient = partial(torch.autograd.grad, found.square().sum(), inputs)
                print_build(f"{name}, gradient", gradient)


if __name__ == "__main__":
    main()
