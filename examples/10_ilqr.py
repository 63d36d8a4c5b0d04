"""Bring the hands of many arms to many points at once: iterative LQR on kernels.

Each arm has one second to bring its hand from a random configuration to a random point and stop, within its
torque limits. Step lengths, regularization and convergence are separate for each arm. Needs pip install
".[plot]".
"""

import time

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

HAND, DT = "flange", 0.02  # s


def running(mech, q, qd, u, target):
    """Residuals of a step: torque in excess of gravity, velocity."""
    return DT**0.5 * torch.cat([0.1 * (u - ts.gravity_force(mech, q)), 0.5 * qd], -1)


def final(mech, q, qd, target):
    """Residuals at the end: distance of the hand to the target, velocity."""
    return torch.cat([30.0 * (ts.frame_pose(mech, q, HAND).position - target), 3.0 * qd], -1)


def main():
    args = parse_options(__doc__, arms=512, steps=50, eager=False)
    arm = ts.load(ts.robots.panda)
    none = torch.zeros_like(arm.friction)
    arm = arm.replace(friction=none, damping=none + 0.1, armature=none + 0.1)
    fuse, bounds = None if args.eager else ts.fuse, (-arm.effort_limit, arm.effort_limit)
    reach = ts.control.Phase(arm, args.steps, DT, running, final)
    problem = ts.control.optimal_control([reach], goals={"target": (3,)}, bounds=bounds, fuse=fuse)
    g = torch.Generator().manual_seed(0)
    (q, _), (there, _) = (arm.random_state(args.arms, generator=g) for _ in range(2))
    target = ts.frame_pose(arm, there, HAND).position
    u = ts.gravity_force(arm, q)[:, None].expand(-1, args.steps, -1)
    first = (q[:1], 0 * q[:1], u[:1], target[:1])
    print("Building kernels of the dynamics, costs and their derivatives ...", flush=True)
    start = time.perf_counter()
    ts.control.ilqr(problem, *first, max_iterations=1)
    print(f"  {time.perf_counter() - start:.0f} s (stored on disk for the next run)")
    print(f"Solving {args.arms} problems ...", flush=True)
    start = time.perf_counter()
    found = ts.control.ilqr(problem, q, torch.zeros_like(q), u, target)
    spent = time.perf_counter() - start
    way = (ts.frame_pose(arm, found.q, HAND).position - target[:, None]).norm(dim=-1)
    used = (found.u.abs() / arm.effort_limit).amax((1, 2))
    done = found.converged
    print(
        f"{args.arms} arms, {args.steps} steps: {1e3 * spent / args.arms:.2f} ms each, "
        f"converged {int(done.sum())}, "
        f"iterations median {found.iterations.double().median():.0f}, most {found.iterations.max()}"
    )
    print(
        f"hand to target: median {1e3 * way[:, -1].median():.1f} mm, 9 of 10 below "
        f"{1e3 * way[:, -1].quantile(0.9):.0f} mm; arms at the limit of a torque: {int((used == 1).sum())}"
    )

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6))
    left.plot(DT * torch.arange(args.steps + 1), way[:100].T, lw=0.5, color="C0")
    left.set(
        xlabel="time [s]", ylabel="hand to target [m]", title="100 of the arms", ylim=(0, None)
    )
    middle.hist(found.iterations.tolist(), bins=40)
    middle.set(xlabel="iterations to a gradient of 1e-6", ylabel="arms", yscale="log")
    right.hist(used.tolist(), bins=40)
    right.set(xlabel="largest torque, of its limit", ylabel="arms")
    figure.tight_layout()
    save_figure(figure, args.out / "ilqr.png")


if __name__ == "__main__":
    main()
