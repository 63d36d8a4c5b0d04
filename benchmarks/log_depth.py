"""Long chains without levels: operations, time and float32 error of the scan beside the sweeps.

Usage: python benchmarks/log_depth.py [--links 64 256 1024] [--batches 1 64] [--device cuda]
Contestants run interleaved on the same states; a time is the median of several passes, a ratio the
median over passes of level by level / without levels within a pass. Errors are relative to the largest
entry of each sample, against the sweeps in float64 on the same float32 mechanism and states. Exits with
1 when any of them takes more than a thirtieth of the sweep's operations at 1024 links, or is in error by
more than 1e-5 there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

import torch
from eager import CountOperations, measure
from report import machine
from robots import chain
from torch import Tensor

import torchsko as ts
from torchsko.algebra.operators.sweeps import gather
from torchsko.algebra.recursions.lyapunov import forward_diag
from torchsko.bridge.kinematics import Kinematics
from torchsko.bridge.level_free import assemble_level_free

States = tuple[Tensor, Tensor, Tensor]
Result = Callable[[], Tensor]


def contestants(mech: ts.Mechanism, states: States) -> dict[str, tuple[Result, Result]]:
    """Each computation level by level, and without levels."""
    q, qd, x = states
    model = assemble_level_free(Kinematics.of(mech, q, qd))
    layout, A = model.layout, model.edge_weight
    X = model.inertia.expand(*q.shape[:-1], -1, -1, -1)

    def forward(method: str) -> Result:
        return lambda: ts.forward_dynamics(mech, q, qd, x, method=method)

    def inverse(method: str) -> Result:
        return lambda: ts.inverse_dynamics(mech, q, qd, x, method=method)

    def gathered(method: str) -> Result:
        return lambda: gather(layout, A, model.coriolis_accel, method=method)

    def composite(method: str) -> Result:
        return lambda: torch.cat(forward_diag(layout, A, X, method=method), -3)

    return {
        "forward dynamics": (forward("articulated"), forward("scan")),
        "inverse dynamics": (inverse("newton_euler"), inverse("parallel")),
        "A x": (gathered("sweep"), gathered("doubling")),
        "diagonal of A M A*": (composite("sweep"), composite("doubling")),
    }


def operations(call: Result) -> tuple[int, int]:
    """ATen operations of one call: all of them, and those that are no mere view."""
    with CountOperations() as count:
        call()
    return count.total, count.kernels


def finished(call: Result, device: str) -> Callable[[], None]:
    """The call, and the wait for its end on a device that runs behind."""

    def run() -> None:
        call()
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    return run


def error(found: Tensor, exact: Tensor) -> float:
    """Largest error of any sample, relative to its largest entry."""
    off, size = (x.flatten(1).abs().amax(1) for x in (found.double() - exact, exact))
    return float((off / size).max())


def report(links: int, batch: int, passes: int, device: str) -> list[str]:
    """Print the rows of one chain and batch size; what was demanded and not reached."""
    mech = ts.load(chain(links), dtype=torch.float32).to(device)
    g = torch.Generator().manual_seed(0)
    states = tuple(
        torch.empty(batch, links).uniform_(-3, 3, generator=g).to(device) for _ in range(3)
    )
    exact = contestants(mech.to(torch.float64), tuple(x.double() for x in states))
    missed = []
    for name, calls in contestants(mech, states).items():
        counts = [operations(call) for call in calls]
        reference = exact[name][0]()
        errors = [error(call(), reference) for call in calls]
        timed = {str(k): finished(call, device) for k, call in enumerate(calls)}
        slow, fast = measure(timed, (), passes).values()
        saved = counts[0][0] / counts[1][0]
        speed = statistics.median(a / b for a, b in zip(slow, fast, strict=True))
        cells = [name, links, batch, *(f"{total} ({kernels})" for total, kernels in counts)]
        cells += [f"{saved:.1f}", *(f"{statistics.median(t) * 1e3:.3g}" for t in (slow, fast))]
        cells += [f"{speed:.2f}", *(f"{e:.1e}" for e in errors)]
        print("|", " | ".join(map(str, cells)), "|", flush=True)
        if links == 1024 and (saved < 30 or errors[1] > 1e-5):
            missed.append(f"{name}, batch {batch}: {saved:.1f}x fewer operations, {errors[1]:.1e}")
    return missed


def stressed(links: int) -> dict[str, ts.Mechanism]:
    """Chains that are hard on float32."""
    mech = ts.load(chain(links), dtype=torch.float32)
    every = torch.arange(links)

    def heavier(where: Tensor) -> ts.Mechanism:
        factor = torch.where(where, 1000.0, 1.0)
        return mech.replace(mass=mech.mass * factor, inertia=mech.inertia * factor[:, None, None])

    return {
        "random angles, equal links": mech,
        "almost straight, equal links": mech.replace(
            lower=1e-3 * mech.lower, upper=1e-3 * mech.upper
        ),
        "random angles, every second link 1000 x": heavier(every % 2 == 0),
        "random angles, 1000 x at the tip": heavier(every == links - 1),
    }


def report_accuracy(links: int) -> None:
    """Print errors of float32 forward dynamics where the scan composes in float32, and in float64."""
    g = torch.Generator().manual_seed(0)
    for name, mech in stressed(links).items():
        q, qd = mech.random_state(4, generator=g)
        tau = torch.randn(qd.shape, generator=g)
        double = (x.double() for x in (q, qd, tau))
        exact = ts.forward_dynamics(mech.to(torch.float64), *double)
        model = assemble_level_free(Kinematics.of(mech, q, qd))
        found = [ts.forward_dynamics(mech, q, qd, tau)] + [
            ts.innovations(model, method="scan", accumulate=dtype).forward_dynamics(tau)
            for dtype in (torch.float32, torch.float64)
        ]
        print(f"| {name} | {links} |", " | ".join(f"{error(x, exact):.1e}" for x in found), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--links", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{machine()}, {args.threads} threads, {args.device}, "
          f"torch {torch.__version__}, float32")  # fmt: skip
    print("| computation | links | batch | operations (kernels), levels | without | ratio "
          "| ms, levels | without | ratio | error, levels | without |")  # fmt: skip
    print("|---|" + "---|" * 10)
    with torch.no_grad():
        missed = [
            line
            for links in args.links
            for batch in args.batches
            for line in report(links, batch, args.passes, args.device)
        ]
        print(
            "\n| chain | links | sweep | scan in float32 | scan in float64 |\n|---|---|---|---|---|"
        )
        for links in args.links:
            report_accuracy(links)
    sys.exit("\n".join(missed) or None)


if __name__ == "__main__":
    main()
