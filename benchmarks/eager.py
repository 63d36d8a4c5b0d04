"""Eager cost: ATen operations and time per call, beside ADAM and (where it installs) BARD.

Usage: python benchmarks/eager.py [--batches 1 1024 16384] [--robots arm humanoid chain64]
All contestants run interleaved on the same states; a time is the median of several passes, a ratio is
the median over passes of the ratio within a pass.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from report import machine
from robots import chain, humanoid
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchsko as ts

ROBOTS: dict[str, Callable[[], str]] = {
    "arm": lambda: ts.robots.panda.read_text(),
    "humanoid": humanoid,
    "chain64": lambda: chain(64),
}
Call = Callable[[Tensor, Tensor, Tensor], Tensor]


class CountOperations(TorchDispatchMode):
    """Counts ATen operations: all of them, and those that are no mere view."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.kernels = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.total += 1
        self.kernels += not func.is_view
        return func(*args, **(kwargs or {}))


def contestants(mech: ts.Mechanism, urdf: str, dtype: torch.dtype) -> dict[str, dict[str, Call]]:
    """Forward and inverse dynamics of each library, as functions of (q, qd, x)."""
    found: dict[str, dict[str, Call]] = {
        "torchsko": {
            "forward": lambda q, qd, tau: ts.forward_dynamics(mech, q, qd, tau),
            "inverse": lambda q, qd, qdd: ts.inverse_dynamics(mech, q, qd, qdd),
        }
    }
    path = Path(tempfile.mkdtemp()) / "robot.urdf"
    path.write_text(urdf)
    try:
        from adam.pytorch import KinDynComputationsBatch
    except ImportError:
        print("ADAM is not installed (pip install adam-robotics): left out")
    else:
        kindyn = KinDynComputationsBatch(str(path), list(mech.joint_names), dtype=dtype)

        def adam_forward(q: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
            pose = torch.eye(4, dtype=dtype).expand(q.shape[0], 4, 4)
            return kindyn.aba(pose, q, q.new_zeros(q.shape[0], 6), qd, tau)

        found["ADAM"] = {"forward": adam_forward}
    try:
        import bard  # noqa: F401
    except ImportError:
        print("BARD is not installed (no package of that name on PyPI): left out")
    return found


def measure(
    calls: dict[str, Call], states: tuple[Tensor, ...], passes: int
) -> dict[str, list[float]]:
    """Seconds of each pass, contestants interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for p in range(passes + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call(*states)
            if p:  # the first pass warms up
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 1024, 16384])
    parser.add_argument("--robots", nargs="+", default=list(ROBOTS), choices=list(ROBOTS))
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    print(f"{machine()}, {args.threads} threads, torch "
          f"{torch.__version__}, {args.dtype}; fixed base for torchsko, ADAM's base is free")  # fmt: skip
    print(
        "| robot | call | batch | library | operations (kernels) | us/call | us/sample | ADAM / this |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for robot in args.robots:
        urdf = ROBOTS[robot]()
        mech = ts.load(urdf, dtype=dtype)
        libraries = contestants(mech, urdf, dtype)
        for batch in args.batches:
            q, qd = mech.random_state(batch, generator=torch.Generator().manual_seed(0))
            states = (q, qd, torch.randn_like(qd))
            for call in ("forward", "inverse"):
                calls = {name: verbs[call] for name, verbs in libraries.items() if call in verbs}
                with torch.no_grad():
                    seconds = measure(calls, states, args.passes)
                    for name, times in seconds.items():
                        with CountOperations() as count:
                            calls[name](*states)
                        ratio = "-"
                        if "ADAM" in seconds:
                            pairs = zip(seconds["ADAM"], times, strict=True)
                            ratio = f"{statistics.median(a / b for a, b in pairs):.2f}"
                        t = statistics.median(times)
                        print(f"| {robot} | {call} | {batch} | {name} | {count.total} ({count.kernels}) "
                              f"| {t * 1e6:.0f} | {t * 1e6 / batch:.3g} | {ratio} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
