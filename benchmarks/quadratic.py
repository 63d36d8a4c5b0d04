"""Programs of whole-body control: our interior point method, ADMM in torch, and proxsuite where installed.

Usage: python benchmarks/quadratic.py [--batch 64] [--humanoid]
A quadruped stands on four feet at random velocities, and is asked for accelerations of its center of mass
and posture. All solve the same programs; residuals are the largest violation of a condition of optimality.
ADMM is OSQP's iteration, one factorization for all of its steps, at the best of five penalties. Processor
seconds, with one thread; proxsuite takes the programs one by one. The whole law is timed as a kernel, too;
with --humanoid nothing else is, of a robot on its soles.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from cases import floating_humanoid
from report import origin
from timing import build_time
from torch import Tensor

import torchsko as ts
from torchsko.control import Contact, SurfaceContact, com_objective, posture_objective
from torchsko.control.qp import QuadraticProgram, solve_qp
from torchsko.control.task_space import whole_body

FEET = [f"{side}_foot" for side in ("front_right", "front_left", "hind_right", "hind_left")]
ON_FEET = [Contact(foot) for foot in FEET]
STANCE = torch.tensor([0.0, -0.8, 1.6], dtype=torch.float64).repeat(4)
STEPS, PENALTIES = 1000, (1e-3, 1e-2, 1e-1, 1.0, 10.0)
BOUNDS = (1e-2, 1e-4, 1e-6)


def robot() -> ts.Mechanism:
    return ts.load(ts.robots.quadruped, floating_base=True)


def states(batch: int) -> tuple[Tensor, Tensor]:
    """On its feet, at random velocities."""
    dog, g = robot(), torch.Generator().manual_seed(0)
    q = torch.cat([dog.neutral()[:7], STANCE]).expand(batch, -1)
    return q, 0.3 * torch.randn(batch, dog.num_dof, generator=g, dtype=q.dtype)


def law(
    mech: ts.Mechanism, q: Tensor, qd: Tensor, contacts: Sequence[Contact]
) -> tuple[Tensor, Tensor]:
    """Joint forces, and the residual."""
    asked = [com_objective(mech, q, qd, ts.center_of_mass(mech, q) + 0.02)]
    asked.append(posture_objective(mech, q, qd, q, weight=1e-4))
    found = whole_body.whole_body_control(mech, q, qd, asked, contacts, iterations=15)
    return found.tau, found.residual


def soles() -> list[Contact]:
    """Of a humanoid's feet."""
    frames = ("leg_left_6_link", "leg_right_6_link")
    return [SurfaceContact(frame, half_lengths=(0.1, 0.05)) for frame in frames]


def standing_humanoid(batch: int) -> tuple[Tensor, Tensor]:
    """At random velocities."""
    mech, g = floating_humanoid().mech, torch.Generator().manual_seed(0)
    qd = 0.1 * torch.randn(batch, mech.num_dof, generator=g, dtype=mech.dtype)
    return mech.neutral().expand(batch, -1), qd


def programs(batch: int) -> QuadraticProgram:
    """Quadratic programs of whole-body control."""
    caught: list[QuadraticProgram] = []
    solve = whole_body.solve_qp
    whole_body.solve_qp = lambda program, **kw: caught.append(program) or solve(program, **kw)
    law(robot(), *states(batch), ON_FEET)
    whole_body.solve_qp = solve
    p = caught[0]
    num_two_sided = p.h.shape[-1] - p.G.shape[-2]
    return p._replace(G=torch.cat([p.G, -p.G[..., :num_two_sided, :]], -2))


def tell_of_kernel(
    batch: int,
    mech: ts.Mechanism,
    states: Callable[[int], tuple[Tensor, Tensor]],
    contacts: list[Contact],
) -> None:
    """Time of the whole law, what its program is made of included, as it is and as a kernel."""
    fast = ts.fuse(lambda mech, q, qd: law(mech, q, qd, contacts), mech)
    built = build_time(lambda: fast(*states(1)))
    print(
        f"  the whole law as a kernel, 15 iterations: built in {built:.0f} s, with an empty cache"
    )
    for count in (batch, 1):
        at, taken = states(count), {}
        for name, run in (("as it is", lambda *x: law(mech, *x, contacts)), ("kernel", fast)):
            run(*at)
            repeats = 3 if name == "as it is" else 300
            start = time.process_time()
            for _ in range(repeats):
                found = run(*at)
            taken[name] = 1e6 * (time.process_time() - start) / repeats / count
            print(
                f"    {count} at once, {name}: {taken[name]:.3g} us each, residual {found[1].max():.0e}"
            )
        print(f"    {taken['as it is'] / taken['kernel']:.0f} times as fast")


def residual(p: QuadraticProgram, x: Tensor, y: Tensor, z: Tensor) -> float:
    """The largest violation, over all programs."""
    times = lambda M, v: (M @ v[..., None])[..., 0]  # noqa: E731
    bounded = p.h.isfinite()  # what bounds nothing has no multiplier
    off, z = torch.where(bounded, times(p.G, x) - p.h, 0.0), torch.where(bounded, z, 0.0)
    parts = [times(p.P, x) + p.p + times(p.A.mT, y) + times(p.G.mT, z)]
    parts += [
        times(p.A, x) - p.b,
        off.clamp(min=0),
        z.clamp(max=0),
        torch.minimum(z.abs(), off.abs()),
    ]
    return max(float(part.abs().max()) for part in parts)


def admm(p: QuadraticProgram, rho: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """OSQP's iteration, equalities a thousand times as stiff: x and multipliers after every step."""
    m, e = p.G.shape[-2], p.A.shape[-2]
    batch = p.P.shape[:-2]
    C = torch.cat([x.expand(*batch, *x.shape[-2:]) for x in (p.A, p.G)], -2)
    upper = torch.cat([x.expand(*batch, x.shape[-1]) for x in (p.b, p.h)], -1)
    lower = torch.cat([upper[..., :e], torch.full((*batch, m), -torch.inf, dtype=C.dtype)], -1)
    stiff = torch.cat([torch.full((e,), 1e3 * rho), torch.full((m,), rho)]).to(C.dtype)
    sigma = 1e-6 * torch.eye(p.P.shape[-1], dtype=C.dtype)
    factor = torch.linalg.cholesky(p.P + sigma + C.mT @ (stiff[:, None] * C))
    x, z = torch.zeros_like(p.p), torch.zeros_like(upper)
    y = torch.zeros_like(upper)
    for _ in range(STEPS):
        right = 1e-6 * x - p.p + (C.mT @ (stiff * z - y)[..., None])[..., 0]
        x = torch.cholesky_solve(right[..., None], factor)[..., 0]
        ahead = (C @ x[..., None])[..., 0]
        z = torch.minimum(torch.maximum(ahead + y / stiff, lower), upper)
        y = y + stiff * (ahead - z)
        yield x, y[..., :e], y[..., e:]


def steps_of_admm(p: QuadraticProgram, rho: float) -> list[float]:
    """Steps until every program is solved, to each of `BOUNDS`; inf where `STEPS` do not do."""
    needed = [math.inf] * len(BOUNDS)
    for k, found in enumerate(admm(p, rho)):
        if k % 25 == 24:
            left = residual(p, *found)
            needed = [min(x, k + 1) if left < b else x for x, b in zip(needed, BOUNDS, strict=True)]
            if math.isfinite(max(needed)):
                break
    return needed


def proxsuite_solves(p: QuadraticProgram) -> Any:
    """Solver of the programs one by one, or None."""
    try:
        from proxsuite import proxqp
    except ImportError:
        return None
    rows = [
        x.expand(*p.p.shape[:-1], *x.shape[-k:]).numpy() for x, k in zip(p, (2, 1) * 3, strict=True)
    ]
    n, e, m = (x.shape[-1] for x in (p.p, p.b, p.h))

    def run() -> np.ndarray:
        found = []
        for P, c, A, b, G, h in zip(*rows, strict=True):
            qp = proxqp.dense.QP(n, e, m)
            qp.settings.eps_abs = 1e-9
            qp.init(P, c, A, b, G, np.full(m, -1e20), np.minimum(h, 1e20))
            qp.solve()
            found.append(qp.results.x.copy())
        return np.stack(found)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--humanoid", action="store_true", help="its law as a kernel, no more")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(origin(1))
    if args.humanoid:
        tell_of_kernel(args.batch, floating_humanoid().mech, standing_humanoid, soles())
        return
    p = programs(args.batch)
    n, e, m = (x.shape[-1] for x in (p.p, p.b, p.h))
    print(f"{args.batch} programs of {n} unknowns, {e} equalities, {m} bounds")
    for steps in (5, 10, 15, 20):
        start = time.process_time()
        found = solve_qp(p, iterations=steps)
        taken = 1e6 * (time.process_time() - start) / args.batch
        left = residual(p, found.x, found.equality_multipliers, found.inequality_multipliers)
        print(
            f"  interior point, {steps:2} iterations: residual {left:.0e}, {taken:.0f} us a program"
        )
    found = {rho: steps_of_admm(p, rho) for rho in PENALTIES}
    for k, bound in enumerate(BOUNDS):
        rho = min(found, key=lambda rho: found[rho][k])
        steps = found[rho][k]
        said = (
            f"{steps} iterations, penalty {rho:g}"
            if steps < math.inf
            else f"more than {STEPS} iterations"
        )
        print(f"  ADMM to a residual of {bound:.0e}: {said}")
    tell_of_kernel(args.batch, robot(), states, ON_FEET)
    run = proxsuite_solves(p)
    if run is None:
        print("  proxsuite is not installed (pip install proxsuite): left out")
        return
    start = time.process_time()
    x = torch.from_numpy(run())
    taken = 1e6 * (time.process_time() - start) / args.batch
    met = ((p.A @ x[..., None])[..., 0] - p.b).abs().amax(-1) < 1e-6
    off = float((x - solve_qp(p).x)[met].abs().max())
    print(
        f"  proxsuite: {taken:.0f} us a program, equalities met in {int(met.sum())} of {args.batch},"
    )
    print(f"  where it is off ours by {off:.0e} at most")


if __name__ == "__main__":
    main()
