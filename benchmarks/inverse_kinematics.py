"""Inverse kinematics beside a Python loop over Pinocchio's kinematics.

Usage: python benchmarks/inverse_kinematics.py [--batch 4096] [--threads 1] [--passes 3]
Poses of the Panda's flange at random configurations within limits, from one random start each, float64:
both do the same steps of Levenberg and Marquardt, at most 50, down to the same error. The loop ends with each
sample, ours with the batch. Contestants run interleaved; a ratio is the median over passes of the ratio
within a pass, with its extremes. Joint limits count in the last table only.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import numpy as np
import pinocchio as pin
import torch
from timing import interleaved, ratio
from torch import Tensor

import torchsko as ts
from torchsko.control.inverse_kinematics import HIGHER, LOWER, START

LOOP, EAGER, FUSED = "Pinocchio, Python loop", "torchsko, eager", "torchsko, fused kinematics"
STEPS, TOLERANCE = 50, 1.5e-8
Call = Callable[[], tuple[Tensor, Tensor]]


def pinocchio_loop(rotation: Tensor, position: Tensor, start: Tensor, frame: str) -> Call:
    """Every sample down to its own end: configurations, and whether each converged."""
    model = pin.buildModelFromUrdf(str(ts.robots.panda))
    data, at = model.createData(), model.getFrameId(frame, pin.FrameType.BODY)
    goals = [pin.SE3(R, r) for R, r in zip(rotation.numpy(), position.numpy(), strict=True)]
    identity = np.eye(6)

    def error(q: np.ndarray, goal: pin.SE3) -> np.ndarray:
        pin.framesForwardKinematics(model, data, q)
        off = data.oMf[at].actInv(goal)
        return np.concatenate([off.translation, pin.log3(off.rotation)])

    def one(q: np.ndarray, goal: pin.SE3) -> tuple[np.ndarray, bool]:
        e, damping = error(q, goal), START
        cost = e @ e
        J = pin.computeFrameJacobian(model, data, q, at, pin.LOCAL)
        for _ in range(STEPS):
            step = J.T @ np.linalg.solve(J @ J.T + (damping * cost + 1e-14) * identity, e)
            there = pin.integrate(model, q, step)
            e_there = error(there, goal)
            cost_there = e_there @ e_there
            if cost_there < cost:
                q, e, cost, damping = there, e_there, cost_there, damping * LOWER
                if cost <= TOLERANCE**2:
                    return q, True
                J = pin.computeFrameJacobian(model, data, q, at, pin.LOCAL)
            else:
                damping *= HIGHER
        return q, False

    def run() -> tuple[Tensor, Tensor]:
        pairs = [one(q, goal) for q, goal in zip(start.numpy(), goals, strict=True)]
        q, converged = zip(*pairs, strict=True)
        return torch.from_numpy(np.stack(q)), torch.tensor(converged)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1, help="of torchsko; the loop has one")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--slot", type=float, default=0.5, help="seconds of a contestant in a pass")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    arm, g = ts.load(ts.robots.panda), torch.Generator().manual_seed(0)
    frame, fast = arm.frame_names[-1], ts.fuse(arm)
    q, start = (arm.random_state(args.batch, generator=g)[0] for _ in range(2))
    goal = ts.frame_pose(arm, q, frame)

    def ours(mech: ts.Mechanism | ts.FusedMechanism, **options: object) -> Call:
        def run() -> tuple[Tensor, Tensor]:
            found = ts.inverse_kinematics(
                mech, {frame: goal}, start, max_iterations=STEPS, tolerance=TOLERANCE, **options
            )
            return found.q, found.converged

        return run

    calls = {
        LOOP: pinocchio_loop(*goal, start, frame),
        EAGER: ours(arm),
        FUSED: ours(fast),
    }
    print(f"{args.batch} reachable poses of the Panda, one start each, {args.threads} thread(s)")
    for name, call in calls.items():
        found, converged = call()
        pose = ts.frame_pose(arm, found[converged], frame)
        off = max(float((a - b[converged]).abs().max()) for a, b in zip(pose, goal, strict=True))
        rate = converged.double().mean()
        print(f"  {name:28} {rate:7.2%} reached, worst entry of their poses off by {off:.1e}")
    seconds = interleaved(calls, args.passes, args.slot)
    for name, passes in seconds.items():
        print(f"  {name:28} {statistics.median(passes):7.3f} s")
    for name in (EAGER, FUSED):
        print(f"  {name} against the loop: {ratio(seconds[LOOP], seconds[name])}")
    print("Within joint limits, fused kinematics")
    for restarts in (0, 2, 8):
        _, converged = ours(fast, limits=True, restarts=restarts, generator=g)()
        print(f"  {restarts} restarts: {converged.double().mean():7.2%} reached")


if __name__ == "__main__":
    main()
