"""Many arms reach for many points at once: iterative LQR on kernels, and a loop of model predictive control.

Each arm starts somewhere and has a second to bring its hand to a point, at rest. Then one of them tracks a
point that jumps, solving anew at every step. Needs pip install ".[plot]" in a clone.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import torchsko as ts

HAND, DT = "flange", 0.02  # s


def running(mech, q, qd, u, target):
    """Residuals of a step: torques beyond gravity's, speeds."""
    return DT**0.5 * torch.cat([0.1 * (u - ts.gravity_force(mech, q)), 0.5 * qd], -1)


def final(mech, q, qd, target):
    """Residuals at the end: how far the hand is from the target, speeds."""
    return torch.cat([30.0 * (ts.frame_pose(mech, q, HAND).position - target), 3.0 * qd], -1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--loop", type=int, default=60, help="steps of the control loop")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(), help="an existing folder")
    args = parser.parse_args()
    arm = ts.load(ts.robots.panda)
    none = torch.zeros_like(arm.friction)
    arm = arm.replace(friction=none, damping=none + 0.1, armature=none + 0.1)
    fuse, bounds = None if args.eager else ts.fuse, (-arm.effort_limit, arm.effort_limit)
    problem = ts.control.optimal_control(
        arm, running, final, DT, goals={"target": (3,)}, bounds=bounds, fuse=fuse
    )
    g = torch.Generator().manual_seed(0)
    (q, _), (there, _) = (arm.random_state(args.arms, generator=g) for _ in range(2))
    target = ts.frame_pose(arm, there, HAND).position
    u = ts.gravity_force(arm, q)[:, None].expand(-1, args.steps, -1)
    first = (q[:1], 0 * q[:1], u[:1], target[:1])
    ts.control.ilqr(problem, *first, max_iterations=1)  # builds the kernels
    began = time.perf_counter()
    found = ts.control.ilqr(problem, q, torch.zeros_like(q), u, target)
    spent = time.perf_counter() - began
    miss = (ts.frame_pose(arm, found.q[:, -1], HAND).position - target).norm(dim=-1)
    print(
        f"{args.arms} arms, {args.steps} steps: {1e3 * spent / args.arms:.2f} ms each, "
        f"converged {int(found.converged.sum())}, median miss {1e3 * miss.median():.1f} mm"
    )

    state, guess, way, seconds = (q[:1], 0 * q[:1]), found.u[:1], [], []
    for k in range(args.loop):
        aim = target[:1] if k < args.loop // 2 else target[1:2]
        began = time.perf_counter()
        plan = ts.control.ilqr(problem, *state, guess, aim, max_iterations=2)
        seconds.append(time.perf_counter() - began)
        state, guess = (plan.q[:, 1], plan.qd[:, 1]), plan.u.roll(-1, 1)
        way.append((ts.frame_pose(arm, state[0], HAND).position - aim).norm().item())
    print(f"control loop: {1e3 * sorted(seconds)[args.loop // 2]:.1f} ms a step (median)")

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
    paths = ts.frame_pose(arm, found.q[:20], HAND).position
    left.plot(DT * torch.arange(args.steps + 1), (paths - target[:20, None]).norm(dim=-1).T)
    left.set(xlabel="time [s]", ylabel="hand to target [m]", title="20 of the arms")
    right.plot(DT * torch.arange(args.loop), way)
    right.set(xlabel="time [s]", title="control loop: the target jumps")
    figure.tight_layout()
    figure.savefig(args.out / "ilqr.png")


if __name__ == "__main__":
    main()
