"""Energy of a free chain of ten bodies over 1e5 steps, beside MuJoCo's Euler and RK4.

Usage: python benchmarks/energy_drift.py [--steps 100000] [--dt 2e-3] [--starts 8] [--implicit]
No gravity, no losses, no force: the energy of the start is that of every state. First it is seen that both
move the chain alike from the same start as long as rounding allows: the chain is chaotic, so later on the
same method from a start that differs in the last digit moves otherwise, and has another drift. Printed
are therefore, over several starts, the median of the largest error with its quartiles, and that of the error
at the end, as shares of the energy: at equal step, and at equal cost, each of our methods again with the step
at which its time for the same motion is that of MuJoCo's method of its kind. One sample at a time, one
thread, float64, seconds of the processor; whole rollouts are kernels. --implicit adds the midpoint rule and
the variational method, whose kernels take minutes to build.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from cases import Robot, canonical_urdf
from report import origin
from robots import chain
from torch import Tensor

import torchsko as ts

LINKS, SPEED, STATES = 10, 0.5, 200
THEIRS = {"Euler": "EULER", "RK4": "RK4"}
OURS = {"semi_implicit_euler": "Euler", "implicit": "Euler", "rk4": "RK4", "newmark": "RK4"}
"""Our methods, and the one of MuJoCo whose cost each is given."""

IMPLICIT: dict[str, tuple[Any, str]] = {
    "midpoint": (ts.integrators.ImplicitMidpoint(2), "RK4"),
    "variational": (ts.integrators.Variational(2), "RK4"),
}

Found = list[tuple[Tensor, float]]
"""Of every start the energy along the motion [J], and the seconds that it took."""


def free_chain() -> Robot:
    """Ten bodies, the first of them free, without gravity."""
    mech = ts.load(chain(LINKS - 1), floating_base=True)
    return Robot("free chain", canonical_urdf(mech), floating_base=True)


def start(mech: ts.Mechanism, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, _ = mech.random_state(generator=g)
    return q, SPEED * torch.randn(mech.num_dof, generator=g, dtype=q.dtype)


def still(t: float, q: Tensor, qd: Tensor) -> Tensor:
    return 0 * qd


def moved(
    fast: ts.fused.FusedMechanism, seed: int, method: str, steps: int, dt: float, every: int = 1
) -> tuple[Tensor, Tensor]:
    """Our states from a start."""
    given = {"method": method, "control": None}
    if method in IMPLICIT:
        given = {"method": IMPLICIT[method][0], "control": still, "fused": True}
    states = start(fast.mechanism(), seed)
    return ts.rollout(
        fast, ts.State(*states), steps=steps, dt=dt, every=every, nonfinite="ignore", **given
    )[:2]  # type: ignore


def ours(fast: ts.fused.FusedMechanism, method: str, starts: int, steps: int, dt: float) -> Found:
    every, found = max(1, steps // STATES), []
    moved(fast, 0, method, 2 * every, dt, every)  # built
    for seed in range(starts):
        began = time.process_time()
        states = moved(fast, seed, method, steps, dt, every)
        spent = time.process_time() - began
        found.append((ts.kinetic_energy(fast.mechanism(), *states), spent))
    return found


class Peer:
    """MuJoCo's model of the chain."""

    def __init__(self, robot: Robot, mech: ts.Mechanism, name: str, dt: float) -> None:
        import mujoco
        from mujoco import rollout

        self.model = model = mujoco.MjModel.from_xml_path(str(robot.path_with_joint))
        model.opt.timestep, model.opt.gravity = dt, 0
        model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{THEIRS[name]}")
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
        # A motion that leaves the finite numbers would start anew, at rest.
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self.mech, self.data, self.rollout = mech, mujoco.MjData(model), rollout
        names = [model.joint(k).name for k in range(model.njnt)]
        self.there = ts.conventions("mujoco", mech, joint_names=names)

    def run(self, seed: int, steps: int, every: int) -> tuple[Tensor, Tensor, float]:
        """States from a start, the start included, and the seconds that they took."""
        q, qd = start(self.mech, seed)
        both = self.there.q_to(q), self.there.qd_to(q, qd)
        state = torch.cat([torch.zeros(1, dtype=q.dtype), *both])[None]
        began = time.process_time()
        states, _ = self.rollout.rollout(self.model, self.data, state.numpy(), nstep=steps)
        spent = time.process_time() - began
        thin = torch.cat([state, torch.from_numpy(states)[0, every - 1 :: every]])[:, 1:]
        q = self.there.q_from(thin[:, : self.model.nq])
        return q, self.there.qd_from(q, thin[:, self.model.nq :]), spent


def theirs(peer: Peer, starts: int, steps: int) -> Found:
    found = []
    for seed in range(starts):
        *states, spent = peer.run(seed, steps, max(1, steps // STATES))
        found.append((ts.kinetic_energy(peer.mech, *states), spent))
    return found


def alike(fast: ts.fused.FusedMechanism, peer: Peer, method: str, name: str, dt: float) -> None:
    """Print how far apart two methods are after some steps from one start."""
    marks = (10, 100, 1000, 10_000)
    _, mine = moved(fast, 0, method, marks[-1], dt)
    _, other, _ = peer.run(0, marks[-1], 1)
    gap = (mine - other).abs().amax(-1) / other.abs().max()
    said = ", ".join(f"{gap[k]:.1g} after {k}" for k in marks)
    print(f"  {method} and MuJoCo's {name}, velocities differ by {said} steps", flush=True)


def row(name: str, step: float, found: Found) -> float:
    """Print a line of the table; the seconds of a motion."""
    error = torch.stack([energy / energy[0] - 1 for energy, _ in found])
    lost = int((~error.isfinite().all(1)).sum())
    low, middle, high = error.abs().amax(1).nan_to_num(torch.inf).quantile(QUARTILES).tolist()
    end, spent = error[:, -1].median(), sum(spent for _, spent in found) / len(found)
    print(
        f"  {name:32} {1e3 * step:7.3f} ms  largest {middle:8.2e} [{low:.1e}, {high:.1e}]   at the end "
        f"{end:+9.1e}   {spent:6.2f} s" + (f"   {lost} left the finite numbers" if lost else ""),
        flush=True,
    )
    return spent


QUARTILES = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--dt", type=float, default=2e-3)
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--implicit", action="store_true", help="implicit methods of order 2, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(origin(1))
    robot = free_chain()
    mech = robot.mech.replace(gravity=torch.zeros(3, dtype=torch.float64))
    fast, steps, dt = ts.fuse(mech), args.steps, args.dt
    peers = {name: Peer(robot, mech, name, dt) for name in THEIRS}
    print(
        f"{steps} steps of {1e3 * dt:g} ms, {args.starts} starts, {mech.num_bodies} bodies, "
        f"{mech.num_dof} dofs"
    )
    for method, name in (("semi_implicit_euler", "Euler"), ("rk4", "RK4")):
        alike(fast, peers[name], method, name, dt)
    costs = {}
    for name, peer in peers.items():
        costs[name] = row(f"MuJoCo's {name}", dt, theirs(peer, args.starts, steps))
    kinds = OURS | ({name: kind for name, (_, kind) in IMPLICIT.items()} if args.implicit else {})
    for method, kind in kinds.items():
        spent = row(method, dt, ours(fast, method, args.starts, steps, dt))
        more = costs[kind] / spent
        found = ours(fast, method, args.starts, round(more * steps), dt / more)
        row(f"{method}, cost of {kind}", dt / more, found)


if __name__ == "__main__":
    main()
