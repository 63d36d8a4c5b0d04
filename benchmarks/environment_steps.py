"""Seconds to the first step and the first gradient of environments, cold and with kernels on disk.

Usage: python benchmarks/environment_steps.py [Hopper-v5 Ant-v5 ...] [FOLDER ...]
Each measurement is a new process, without its imports. The last line is the time from the start of a process,
with its imports, to the end of the first update of SHAC. Printed are processor seconds with those of
compilers, seconds on the clock in parentheses, and the operations of the kernels of a step, for this checkout
and for those in the folders given. Errors against Gymnasium are in ``environments.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import processor_time

TASKS = ("Hopper-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5")
NUM_ENVS = 64
START = time.time()


def measure(name: str) -> dict[str, Any]:
    """Processor seconds and seconds of each phase in this process, and sizes of the kernels."""
    import torchsko as ts

    times: dict[str, list[float]] = {}

    def timed(phase: str, call: Callable[[], Any]) -> Any:
        before = (processor_time(), time.perf_counter())
        found = call()
        after = (processor_time(), time.perf_counter())
        times[phase] = [b - a for a, b in zip(before, after, strict=True)]
        return found

    env = timed("make", lambda: ts.envs.make(name, num_envs=NUM_ENVS))
    state = timed("first reset", env.reset)
    action = state.observation.new_zeros(NUM_ENVS, env.action_size)
    timed("first step", lambda: env.step(state, action))

    def gradient() -> Any:
        leaf = action.clone().requires_grad_()
        after, transition = env.step(state, leaf)
        loss = after.physics.q.sum() + transition.observation.sum() + transition.reward.sum()
        return torch.autograd.grad(loss, leaf)

    timed("first gradient", gradient)
    timed("steps 2 to 25", lambda: [env.step(state, action) for _ in range(24)])
    ((names, _),) = env._kernels._fused_step._made
    function = env._kernels._fused_step.function(names)
    operations = [function.program.num_flops]
    operations += [x.program.num_flops for x in function._derivatives.values()]
    return {"times": times, "operations": operations}


def first_update(name: str) -> list[float]:
    """Processor seconds and seconds from the start of a process to the end of the first update of SHAC."""
    import torchsko as ts

    reads: list[list[float]] = []

    def clock() -> float:
        reads.append([processor_time(), time.time() - START])
        return reads[-1][1]

    with tempfile.TemporaryDirectory() as folder:
        ts.envs.train(name, out=folder, updates=1, evaluate=False, report=None, clock=clock)
    return reads[2]  # those before are at the start and before the update


def first_updates(name: str, tree: Path) -> tuple[list[float], list[float]]:
    """The result of `first_update` with an empty cache, and the least of three with kernels on disk."""
    with tempfile.TemporaryDirectory() as cache:
        cold, *warm = (child(tree, "first_update", name, cache) for _ in range(4))
    return cold, min(warm)


def child(tree: Path, mode: str, name: str, cache: str) -> Any:
    """The measurements of a checkout in a new process."""
    here = str(Path(__file__).parent)
    variables = {"TORCHSKO_CACHE": cache, "PYTHONPATH": f"{tree}{os.pathsep}{here}"}
    variables["PYTHONDONTWRITEBYTECODE"] = (
        ""  # the package has its bytecode, as after an installation
    )
    run = subprocess.run(
        [sys.executable, __file__, "--child", mode, name],
        env={**os.environ, **variables},
        cwd=tree,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(run.stdout.splitlines()[-1])


def report(name: str, tree: Path) -> None:
    """Print the measurements of one environment."""
    with tempfile.TemporaryDirectory() as cache:
        for label in ("cold", "warm"):
            found = child(tree, "measure", name, cache)
            parts = [f"{phase} {a:.2f} ({b:.2f})" for phase, (a, b) in found["times"].items()]
            total = [sum(x) for x in zip(*found["times"].values(), strict=True)]
            print(
                f"  {tree.name}, {label}: {'; '.join(parts)}; all {total[0]:.2f} ({total[1]:.2f}) s"
            )
    (cold, x), (warm, y) = first_updates(name, tree)
    print(
        f"  {tree.name}, train to first update: cold {cold:.2f} ({x:.2f}), warm {warm:.2f} ({y:.2f}) s"
    )
    forward, *gradient = found["operations"]
    print(f"  {tree.name}: {forward} operations forward, {gradient} with gradient", flush=True)


def main() -> None:
    """Measure the chosen environments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="environments, and checkouts of other commits")
    parser.add_argument(
        "--child", choices=("measure", "first_update"), help="measure in this process"
    )
    args = parser.parse_args()
    if args.child:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        print(json.dumps(globals()[args.child](args.names[0])))
        return
    from report import origin

    print(origin(2))
    folders = [x for x in args.names if Path(x).is_dir()]
    for name in [x for x in args.names if x not in folders] or TASKS:
        print(name)
        for tree in (Path(__file__).resolve().parents[1], *(Path(x).resolve() for x in folders)):
            report(name, tree)


if __name__ == "__main__":
    main()
