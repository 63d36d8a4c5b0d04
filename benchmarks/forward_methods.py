"""Compare methods of forward dynamics: articulated bodies, O(N), and Cholesky of the mass matrix.

Usage: python benchmarks/forward_methods.py [--batches 1 64 1024] [--robots chain2 arm humanoid chain64]
Both run interleaved on the same states, alone and with the backward pass of a sum; a ratio above 1 says
by how much the mass matrix is faster: the median over passes of the ratio within a pass.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from report import machine
from robots import chain, humanoid
from torch import Tensor

import torchsko as ts

ROBOTS: dict[str, Callable[[], str]] = {
    "chain2": lambda: chain(2),
    "chain4": lambda: chain(4),
    "arm": lambda: ts.robots.panda.read_text(),
    "chain16": lambda: chain(16),
    "humanoid": humanoid,
    "chain64": lambda: chain(64),
}


def ratios(calls: list[Callable[[], object]], passes: int, repeats: int) -> tuple[float, float]:
    """Median seconds of the first call, and median of first over second within a pass."""
    seconds: list[list[float]] = [[], []]
    for p in range(passes + 1):
        for times, call in zip(seconds, calls, strict=True):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            if p:  # the first pass warms up
                times.append((time.perf_counter() - start) / repeats)
    pairs = zip(*seconds, strict=True)
    return statistics.median(seconds[0]), statistics.median(a / b for a, b in pairs)


def with_gradient(method: Callable[..., Tensor], mech: ts.Mechanism, *states: Tensor) -> Tensor:
    """Forward dynamics and the gradient of its sum to the states."""
    inputs = [x.clone().requires_grad_() for x in states]
    q, qd, tau = inputs
    model = ts.assemble(mech, q, qd)
    return torch.autograd.grad(method(model, tau).sum(), inputs)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--robots", nargs="+", default=list(ROBOTS), choices=list(ROBOTS))
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    methods = (ts.algorithms.forward_dynamics, ts.algorithms.composite_forward_dynamics)
    print(f"{machine()}, {torch.get_num_threads()} threads, torch "
          f"{torch.__version__}, {args.dtype}, {args.device}")  # fmt: skip
    print(
        "| robot | dofs | batch | articulated us | articulated / composite | with gradient us | ratio |"
    )
    print("|---|---|---|---|---|---|---|")
    for robot in args.robots:
        mech = ts.load(ROBOTS[robot](), dtype=getattr(torch, args.dtype), device=args.device)
        for batch in args.batches:
            g = torch.Generator(device=args.device).manual_seed(0)
            q, qd = mech.random_state(batch, generator=g)
            tau = torch.randn_like(qd)
            repeats = 5 if batch * mech.num_dof < 5000 else 1

            def alone(method: Callable[..., Tensor]) -> Callable[[], object]:
                return lambda: _finish(method(ts.assemble(mech, q, qd), tau))  # noqa: B023

            def both(method: Callable[..., Tensor]) -> Callable[[], object]:
                return lambda: _finish(with_gradient(method, mech, q, qd, tau))  # noqa: B023

            with torch.no_grad():
                t, ratio = ratios([alone(m) for m in methods], args.passes, repeats)
            t_grad, ratio_grad = ratios([both(m) for m in methods], args.passes, repeats)
            print(f"| {robot} | {mech.num_dof} | {batch} | {t * 1e6:.0f} | {ratio:.2f} "
                  f"| {t_grad * 1e6:.0f} | {ratio_grad:.2f} |", flush=True)  # fmt: skip


def _finish(x: Tensor) -> Tensor:
    if x.is_cuda:
        torch.cuda.synchronize()
    return x


if __name__ == "__main__":
    main()
