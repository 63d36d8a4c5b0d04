"""Item 4: seconds from `ts.fuse` to the first result, in a fresh process, cold and from the disk cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import Options, Section, at_most

CASES = {  # name: robot, whether with the VJP, seconds
    "arm, forward": ("panda", False, 3),
    "arm, forward and VJP": ("panda", True, 5),
    "humanoid (30 dof, fixed), forward": ("fixed_humanoid", False, 5),
    "humanoid (30 dof, fixed), forward and VJP": ("fixed_humanoid", True, 10),
    "humanoid (free base), forward": ("floating_humanoid", False, 5),
    "humanoid (free base), forward and VJP": ("floating_humanoid", True, 10),
    "64-link chain, forward and VJP": ("chain64", True, 25),
}
FROM_CACHE = 0.3


def run(options: Options) -> Section:
    """Every case twice, each in a process of its own."""
    section, rows = Section("Build time"), []
    for name, (robot, with_vjp, wanted) in CASES.items():
        if options.quick and robot != "panda":
            continue
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (first_result(robot, with_vjp, cache, options.threads) for _ in range(2))
        rows.append([name, *(f"{x:.2f}" if x is not None else "-" for x in (cold, warm))])
        section.demands.append(at_most("4", f"build, {name}", wanted, cold, " s"))
        section.demands.append(at_most("4", f"from the cache, {name}", FROM_CACHE, warm, " s"))
    section.lines.append(
        "Seconds from `ts.fuse(mech)` to the first result of one state, float64, imports of torch and "
        "torchsko and reading the robot not counted; with the VJP, to the first gradient by autograd."
    )
    section.table(["program", "cold", "from the disk cache"], rows)
    return section


def first_result(robot: str, with_vjp: bool, cache: str, threads: int) -> float | None:
    """Seconds in a fresh process; None where there is no `ts.fuse`.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, __file__, robot, str(int(with_vjp)), str(threads)]
    here = Path(__file__).parent.parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TORCHSKO_CACHE": cache, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    said = done.stdout.split()[-1]
    return None if said == "none" else float(said)


def _child(robot: str, with_vjp: bool, threads: int) -> None:
    import time

    import cases
    import torch
    from cases import fuse

    torch.set_num_threads(threads)
    make = (lambda: cases.link_chain(64)) if robot == "chain64" else getattr(cases, robot)
    case = cases.Case.random(make(), torch.float64, 1, threads)
    if fuse is None:
        print("none")
        return
    mech = case.robot.mech
    inputs = [x.requires_grad_(with_vjp) for x in (case.q, case.qd, case.tau)]
    start = time.perf_counter()
    qdd = fuse(mech).forward_dynamics(*inputs)
    if with_vjp:
        torch.autograd.grad(qdd, inputs, case.cotangent)
    print(time.perf_counter() - start)


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2] == "1", int(sys.argv[3]))
