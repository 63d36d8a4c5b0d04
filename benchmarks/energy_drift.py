"""Energy of a free chain of ten bodies over 1e5 steps, beside MuJoCo's Euler and RK4.

Usage: python benchmarks/energy_drift.py [--steps 100000] [--dt 2e-3]
No gravity, no losses, no force: the energy of the start is that of every state. Printed are the largest
error and that at the end, as shares of it, at equal step and then at equal cost: each of our methods again
with the step at which its time for the same motion is that of MuJoCo's method of its kind. One sample, one
thread, float64; whole rollouts are kernels.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from cases import Robot, canonical_urdf
from robots import chain
from torch import Tensor

import torchsko as ts

LINKS, SPEED, STATES = 10, 0.5, 200
THEIRS = {"Euler": "EULER", "RK4": "RK4"}
OURS = {"semi_implicit_euler": "Euler", "implicit": "Euler", "rk4": "RK4", "newmark": "RK4"}
"""Our methods, and the one of MuJoCo whose cost each is given."""


def free_chain() -> Robot:
    """Ten bodies, the first of them free, without gravity."""
    mech = ts.load(chain(LINKS - 1), floating_base=True)
    return Robot("free chain", canonical_urdf(mech), floating_base=True)


def start(mech: ts.Mechanism) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    q, _ = mech.random_state(generator=g)
    return q, SPEED * torch.randn(mech.num_dof, generator=g, dtype=q.dtype)


def ours(fast: ts.FusedMechanism, method: str, steps: int, dt: float) -> tuple[Tensor, float]:
    """Energy along the motion [J], and the seconds that it took."""
    mech = fast.mechanism()
    q, qd = start(mech)
    tau = torch.zeros(1, mech.num_dof, dtype=q.dtype)
    every = max(1, steps // STATES)
    ts.rollout(fast, q, qd, tau, 2 * every, dt, method, every=every)  # built
    began = time.perf_counter()
    qs, qds = ts.rollout(fast, q, qd, tau, steps, dt, method, every=every, check=False)
    return ts.kinetic_energy(mech, qs, qds), time.perf_counter() - began


def theirs(
    robot: Robot, mech: ts.Mechanism, name: str, steps: int, dt: float
) -> tuple[Tensor, float]:
    """The same of MuJoCo."""
    import mujoco
    from mujoco import rollout

    model = mujoco.MjModel.from_xml_path(str(robot.path_with_joint))
    model.opt.timestep, model.opt.gravity = dt, 0
    model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{THEIRS[name]}")
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    names = [model.joint(k).name for k in range(model.njnt)]
    there = ts.conventions("mujoco", mech, joint_names=names)
    q, qd = start(mech)
    state = torch.cat([torch.zeros(1, dtype=q.dtype), there.q_to(q), there.qd_to(q, qd)])
    data = mujoco.MjData(model)
    began = time.perf_counter()
    states, _ = rollout.rollout(model, data, state[None].numpy(), nstep=steps)
    spent = time.perf_counter() - began
    thin = torch.from_numpy(states)[0, steps // STATES - 1 :: max(1, steps // STATES), 1:]
    thin = torch.cat([state[None, 1:], thin])
    found = there.q_from(thin[:, : model.nq])
    return ts.kinetic_energy(mech, found, there.qd_from(found, thin[:, model.nq :])), spent


def row(name: str, step: float, found: tuple[Tensor, float]) -> None:
    energy, spent = found
    error = energy / energy[0] - 1
    if not error.isfinite().all():
        said = "left the finite numbers"
    else:
        said = f"largest {error.abs().max():9.2e}   at the end {error[-1]:+9.1e}"
    print(f"  {name:28} {1e3 * step:7.3f} ms  {said}   {spent:7.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--dt", type=float, default=2e-3)
    parser.add_argument("--methods", nargs="+", choices=OURS, default=list(OURS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    robot = free_chain()
    mech = robot.mech.replace(gravity=torch.zeros(3, dtype=torch.float64))
    fast = ts.fuse(mech)
    print(
        f"{args.steps} steps of {1e3 * args.dt:g} ms, {mech.num_bodies} bodies, {mech.num_dof} dofs"
    )
    costs: dict[str, float] = {}
    run: Callable[[str, int, float], tuple[Tensor, float]]
    run = lambda name, steps, dt: theirs(robot, mech, name, steps, dt)  # noqa: E731
    for name in THEIRS:
        found = run(name, args.steps, args.dt)
        costs[name] = found[1]
        row(f"MuJoCo's {name}", args.dt, found)
    for name in args.methods:
        found = ours(fast, name, args.steps, args.dt)
        row(name, args.dt, found)
        more = costs[OURS[name]] / found[1]
        found = ours(fast, name, round(more * args.steps), args.dt / more)
        row(f"{name}, cost of {OURS[name]}", args.dt / more, found)


if __name__ == "__main__":
    main()
