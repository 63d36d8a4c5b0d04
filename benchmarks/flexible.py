"""Steps of flexible two-link arms as kernels, beside the same arm with rigid links.

    python benchmarks/flexible.py [--batch 4096] [--passes 7]

Prints operations of functions of dynamics, and of the inertia of a link as a sum over its points and as a
polynomial in the modal coordinates; then, of interleaved runs, times and steps a second of `rollout` by
"semi_implicit_euler" with one and two threads, forward dynamics in eager mode, and a sweep over the modes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import torch
from report import origin
from timing import Passes, interleaved, ratio

import torchsko as ts
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

STEPS, DT = 50, 1e-4
TEN_MODES = {"10 modes, bending about y and z": (3, 2), "10 modes, planar": (5, 0)}
Polynomial = Counter[tuple[int, ...]]
"""Coefficients by monomial, the sorted indices of its factors."""

SWEEP = {2: (1, 0), 6: (2, 1), 10: (3, 2), 20: (5, 5)}
"""Shapes about y and z of each link, by the number of modes of the arm."""


def beam(shapes: tuple[int, int]) -> ts.FlexibleBody:
    """A link of 1 m and 0.5 kg."""
    return ts.FlexibleBody.beam(length=1.0, density=0.5, EI_y=20.0, EI_z=20.0, shapes=shapes)


def flexible_arm(shapes: tuple[int, int]) -> ts.Mechanism:
    """Two flexible links with parallel hinges."""
    link = beam(shapes)
    builder = ts.MechanismBuilder("arm").flexible_link("upper", link).flexible_link("lower", link)
    builder.joint("shoulder", "revolute", child="upper", axis=(0, 1, 0))
    builder.joint("elbow", "revolute", parent="upper/tip", child="lower", axis=(0, 1, 0))
    return builder.build()


def rigid_arm() -> ts.Mechanism:
    """The same arm without deformation."""
    builder = ts.MechanismBuilder("arm")
    about = 0.5 / 12
    for name in ("upper", "lower"):
        inertia = ((0.0, 0, 0), (0, about, 0), (0, 0, about))
        builder.link(name, mass=0.5, com=(0.5, 0, 0), inertia=inertia)
    builder.joint("shoulder", "revolute", child="upper", axis=(0, 1, 0))
    elbow = {"parent": "upper", "axis": (0, 1, 0), "position": (1, 0, 0)}
    return builder.joint("elbow", "revolute", child="lower", **elbow).build()


def operations(mech: ts.Mechanism, verb: str) -> int:
    """Operations of one sample of a traced function of dynamics."""
    sizes = {"q": mech.num_q, "qd": mech.num_dof, "x": mech.num_dof}
    count = 1 if verb == "mass_matrix" else 3
    ports = [Port(name, (size,)) for name, size in sizes.items()][:count]
    return trace(lambda *x: getattr(ts, verb)(mech, *x), ports).num_flops


def rollout_of(mech: ts.Mechanism, batch: int) -> Callable[[], object]:
    """A fused rollout of `STEPS` steps from rest."""
    fast, generator = ts.fuse(mech), torch.Generator().manual_seed(0)
    q = mech.random_state(batch, generator=generator)[0]
    start = ts.State(q, torch.zeros(batch, mech.num_dof, dtype=q.dtype))
    run = lambda: fast.rollout(start, steps=STEPS, dt=DT)  # noqa: E731
    assert run().q.isfinite().all()
    return run


def eager_dynamics(mech: ts.Mechanism, batch: int) -> Callable[[], object]:
    """Forward dynamics in eager mode."""
    q, qd = mech.random_state(batch, generator=torch.Generator().manual_seed(0))
    return lambda: ts.forward_dynamics(mech, q, qd, torch.zeros_like(qd))


def print_steps(seconds: dict[str, Passes], batch: int) -> None:
    """Nanoseconds and ratios to the rigid arm; steps a second."""
    for name, passes in seconds.items():
        step = statistics.median(passes) / STEPS / batch
        other = "" if name == "rigid" else f", {ratio(passes, seconds['rigid'])} the rigid time"
        print(f"  {name}: {1e9 * step:.3g} ns a step, {1 / step:.2g} steps/s{other}", flush=True)


def inertia_operations(body: ts.FlexibleBody) -> tuple[int, int]:
    """Operations of M(eta), `[n + 6, n + 6]`: as a sum over points, and as a polynomial.

    The polynomial takes a product and a sum for each of its terms, equal entries once, and a product for each
    monomial of degree two and more.
    """
    mech = ts.MechanismBuilder("body").flexible_link("body", body).build(floating_base=True)
    terms, monomials, known = 0, set(), set()
    for entry in _inertia_polynomials(body):
        powers = {m: c for m, c in entry.items() if m and abs(c) > 1e-12}
        key = tuple(sorted((m, round(c, 10)) for m, c in powers.items()))
        if key not in known:
            known.add(key)
            terms += len(powers)
            monomials |= {m for m in powers if len(m) > 1}
    return operations(mech, "mass_matrix"), 2 * terms + len(monomials)


def _inertia_polynomials(body: ts.FlexibleBody) -> list[Polynomial]:
    """Entries of the upper half of M."""
    n = len(body.modes)
    entries: list[Polynomial] = [Counter() for _ in range((n + 6) * (n + 7) // 2)]
    for i, mass in enumerate(body.masses):
        shapes, second = body.shapes[i], body.second_order[i]
        place: list[Polynomial] = [Counter({(): body.points[i][r]}) for r in range(3)]
        for r, j in product(range(3), range(n)):
            place[r][(j,)] += shapes[r, j]
            for k in range(n):
                place[r][tuple(sorted((j, k)))] += second[r, j, k] / 2
        for r in range(3):
            row: list[Polynomial] = []
            for j in range(n):
                row.append(Counter({(): shapes[r, j]}))
                row[-1].update({(k,): second[r, j, k] for k in range(n)})
            for axis in range(3):
                e = np.cross(np.eye(3)[axis], np.eye(3))[:, r]  # of e_axis x place
                row.append(Counter())
                for c in range(3):
                    for m, x in place[c].items():
                        row[-1][m] += e[c] * x
            row += [Counter({(): float(r == axis)}) for axis in range(3)]
            pairs = ((a, b) for a in range(n + 6) for b in range(a, n + 6))
            for entry, (a, b) in zip(entries, pairs, strict=True):
                for (m1, x), (m2, y) in product(row[a].items(), row[b].items()):
                    if x and y:
                        entry[tuple(sorted(m1 + m2))] += mass * x * y
    return entries


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--passes", type=int, default=7)
    options = parser.parse_args()
    print(origin(2))
    arms = {"rigid": rigid_arm()} | {name: flexible_arm(x) for name, x in TEN_MODES.items()}
    for name, mech in arms.items():
        counts = {
            verb: operations(mech, verb)
            for verb in ("inverse_dynamics", "forward_dynamics", "mass_matrix")
        }
        print(f"{name}: operations {counts}", flush=True)
    for name, shapes in TEN_MODES.items():
        by_points, polynomial = inertia_operations(beam(shapes))
        print(f"inertia of a link, {name}: {by_points} by points, {polynomial} as a polynomial")
    for dtype in (torch.float64, torch.float32):
        calls = {name: rollout_of(mech.to(dtype), options.batch) for name, mech in arms.items()}
        for threads, clock in ((1, time.process_time), (2, time.perf_counter)):
            torch.set_num_threads(threads)
            print(f"rollout, {dtype}, batch {options.batch}, {threads} threads, {clock.__name__}")
            print_steps(interleaved(calls, options.passes, 0.1, clock), options.batch)
    torch.set_num_threads(1)
    calls = {name: eager_dynamics(mech, options.batch) for name, mech in arms.items()}
    seconds = interleaved(calls, options.passes, 0.1, time.process_time)
    for name, passes in seconds.items():
        print(
            f"eager forward dynamics, {name}: {1e6 * statistics.median(passes) / options.batch:.3g} us, "
            f"{ratio(passes, seconds['rigid'])} the rigid time"
        )
    calls = {"rigid": rollout_of(arms["rigid"], options.batch)}
    calls |= {
        f"{modes} modes": rollout_of(flexible_arm(x), options.batch) for modes, x in SWEEP.items()
    }
    print(f"rollout, torch.float64, batch {options.batch}, 1 thread")
    print_steps(interleaved(calls, options.passes, 0.1, time.process_time), options.batch)


if __name__ == "__main__":
    main()
