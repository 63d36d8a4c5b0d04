"""This torchsko beside another commit of it: every benchmarked verb, interleaved in one run.

Usage: python benchmarks/against.py COMMIT [--robots panda talos] [--batches 1 4096] [--passes 9]

Each commit runs in a process of its own, from a worktree of git. A pass asks both in turn for the same
call, so that what disturbs one disturbs the other; a ratio is the median over passes of this commit's
time over the other's, with its extremes. Above 1 means slower than before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from timing import ratio, timed

HERE = Path(__file__).parent
SLOT = 0.05


def calls(robot: str, batch: int, dtype_name: str) -> dict[str, Callable[[], object]]:
    """Every verb of a robot, eager and fused, on the same states in either commit."""
    import torch
    from cases import Case, floating_humanoid, panda

    import torchsko as ts

    dtype = getattr(torch, dtype_name)
    case = Case.random({"panda": panda, "talos": floating_humanoid}[robot](), dtype, batch, 1)
    mech = case.robot.mech.to(dtype)
    fast = ts.fuse(mech)
    q, qd, qdd, tau = case.q, case.qd, case.qdd, case.tau
    leaves = [x.clone().requires_grad_() for x in (q, qd, tau)]

    def gradient(forward: Callable[..., torch.Tensor]) -> object:
        return torch.autograd.grad(forward(*leaves), leaves, case.cotangent)

    return {
        "eager inverse": lambda: ts.inverse_dynamics(mech, q, qd, qdd),
        "eager forward": lambda: ts.forward_dynamics(mech, q, qd, tau),
        "eager mass matrix": lambda: ts.mass_matrix(mech, q),
        "eager forward and VJP": lambda: gradient(lambda *x: ts.forward_dynamics(mech, *x)),
        "eager step": lambda: ts.rollout(mech, ts.State(q, qd), tau, steps=1),
        "fused inverse": lambda: fast.inverse_dynamics(q, qd, qdd),
        "fused forward": lambda: fast.forward_dynamics(q, qd, tau),
        "fused mass matrix": lambda: fast.mass_matrix(q),
        "fused forward and VJP": lambda: fast.forward_dynamics_vjp(q, qd, tau, case.cotangent),
        "fused forward, VJP by autograd": lambda: gradient(fast.forward_dynamics),
        "fused step": lambda: ts.integrators.advance(fast, ts.State(q, qd), tau, dt=2e-3),
        "fused step, VJP by autograd": lambda: gradient(
            lambda q, qd, tau: ts.integrators.advance(fast, ts.State(q, qd), tau, dt=2e-3).qd
        ),
    }


def serve() -> None:
    """Answer requests [robot, batch, dtype, verb] with the seconds of one call."""
    made: dict[tuple, dict[str, Callable[[], object]]] = {}
    for line in sys.stdin:
        robot, batch, dtype, verb = json.loads(line)
        key = (robot, batch, dtype)
        if key not in made:
            made = {key: calls(*key)}
            for call in made[key].values():
                call()
        call = made[key][verb]
        number = max(1, min(10_000, math.ceil(SLOT / timed(call))))
        print(json.dumps(statistics.median(timed(call) for _ in range(number))), flush=True)


@contextmanager
def worker(tree: Path, threads: int) -> Iterator[Callable[[list], float]]:
    """A process that times calls of the torchsko in a folder; this file and its robots serve both."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, str(HERE / "against.py"), "--serve"]
    process = subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin and process.stdout

    def ask(request: list) -> float:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    try:
        yield ask
    finally:
        process.stdin.close()
        process.wait()


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A worktree of a commit."""
    folder = Path(tempfile.mkdtemp(prefix="torchsko-against-")) / "tree"
    git = ["git", "-C", str(HERE.parent), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", default="HEAD~1")
    parser.add_argument("--robots", nargs="+", default=["panda", "talos"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4096])
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", help="verbs whose names hold one of these words")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    verbs = [
        f"{form} {verb}" for form in ("eager", "fused")
        for verb in ("inverse", "forward", "mass matrix", "forward and VJP", "step")
    ] + ["fused forward, VJP by autograd"]  # fmt: skip
    if args.only:
        verbs = [verb for verb in verbs if any(word in verb for word in args.only)]
    print(f"This tree over {args.commit}, {args.dtype}, {args.threads} threads.\n")
    print(
        "| robot | batch | verb | before, us | now, us | now / before |\n|---|---|---|---|---|---|"
    )
    with (
        checkout(args.commit) as old,
        worker(old, args.threads) as before,
        worker(HERE.parent, args.threads) as now,
    ):
        for robot in args.robots:
            for batch in args.batches:
                for verb in verbs:
                    request = [robot, batch, args.dtype, verb]
                    pairs = [(before(request), now(request)) for _ in range(args.passes + 1)][1:]
                    old_times, new_times = (list(times) for times in zip(*pairs, strict=True))
                    row = [f"{statistics.median(t) * 1e6:.3g}" for t in (old_times, new_times)]
                    found = ratio(new_times, old_times)
                    print(
                        f"| {robot} | {batch} | {verb} | {row[0]} | {row[1]} | {found} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
