"""Inverse kinematics beside Python loops over Pinocchio's kinematics and over mink.

Usage: python benchmarks/inverse_kinematics.py [--batch 4096] [--threads 1] [--passes 3] [--mink 64]
(> benchmarks/results/inverse_kinematics.md)

Poses of the Panda's flange at random configurations within limits, from one random start each, float64:
all do steps of Levenberg and Marquardt, at most 50, down to the same error; Pinocchio's loop does the same
ones as ours. The loops end with each sample. Contestants run interleaved, after a first call of each. Seconds
are the processor's, so that a busy machine disturbs less; with one thread they are those of a clock on a
quiet one. mink (pip install mink daqp) solves some of the poses, and its time counts as often as they are
fewer; pyroki has no release on PyPI.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pinocchio as pin
import torch
from report import origin
from torch import Tensor

import torchsko as ts
from torchsko.control.ik.levenberg_marquardt import HIGHER, LOWER, START
from torchsko.spatial.rotation import matrix_to_quaternion

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


def mink_loop(goal: ts.Pose, start: Tensor, frame: str, limits: bool) -> Call | None:
    """The same by mink's quadratic programs, down to the same error; None where it is not installed."""
    try:
        import mink
        import mujoco
    except ImportError:
        return None
    arm, spec = ts.load(ts.robots.panda), mujoco.MjSpec.from_file(str(ts.robots.panda))
    k = arm.frame_index(frame)
    quat = matrix_to_quaternion(arm.frame_rotation[k]).tolist()
    carrier = spec.body(arm.body_names[arm.frame_body[k]])
    carrier.add_site(name="tip", pos=arm.frame_position[k].tolist(), quat=quat)
    robot = mink.Configuration(spec.compile())
    task = mink.FrameTask("tip", "site", position_cost=1.0, orientation_cost=1.0, lm_damping=1.0)
    within: Any = None if limits else []

    def one(q: np.ndarray, R: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, bool]:
        robot.update(q)
        turned = mink.SO3.from_matrix(R)
        task.set_target(mink.SE3.from_rotation_and_translation(turned, r))
        for _ in range(STEPS):
            rates = mink.solve_ik(robot, [task], 1.0, "daqp", damping=0.0, limits=within)
            robot.integrate_inplace(rates, 1.0)
            if np.linalg.norm(task.compute_error(robot)) <= TOLERANCE:
                return robot.q.copy(), True
        return robot.q.copy(), False

    def run() -> tuple[Tensor, Tensor]:
        each = zip(start.numpy(), goal.rotation.numpy(), goal.position.numpy(), strict=True)
        q, converged = zip(*(one(*sample) for sample in each), strict=True)
        return torch.from_numpy(np.stack(q)), torch.tensor(converged)

    return run


def processor_seconds(calls: dict[str, Call], passes: int, slot: float) -> dict[str, list[float]]:
    """Of each contestant its median in every pass: of as many calls as fill a slot, one at least."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(passes):
        for name, call in calls.items():
            each: list[float] = []
            while not each or sum(each) < slot:
                start = time.process_time()
                call()
                each.append(time.process_time() - start)
            found[name].append(statistics.median(each))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1, help="of torchsko; the loops have one")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--slot", type=float, default=0.5, help="seconds of a contestant in a pass")
    parser.add_argument("--mink", type=int, default=64, help="poses that mink solves")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    arm, g = ts.load(ts.robots.panda), torch.Generator().manual_seed(0)
    frame, fast = arm.frame_names[-1], ts.fuse(arm)
    q, start = (arm.random_state(args.batch, generator=g)[0] for _ in range(2))
    goal = ts.frame_pose(arm, q, frame)
    some = min(args.mink, args.batch)

    def ours(mech: ts.Mechanism | ts.fused.FusedMechanism, **options: object) -> Call:
        def run() -> tuple[Tensor, Tensor]:
            goals = [ts.control.FrameGoal(frame, goal)]
            found = ts.inverse_kinematics(
                mech, start, goals, max_iterations=STEPS, tolerance=TOLERANCE, **options
            )
            return found.q, found.converged

        return run

    def mink(limits: bool) -> Call | None:
        part = ts.frame_pose(arm, q[:some], frame)
        return mink_loop(part, start[:some], frame, limits)

    again, within = {"generator": g}, {"limits": True, "generator": g}
    loop = "Pinocchio, Python loop"
    given: dict[str, Call | None] = {
        loop: pinocchio_loop(*goal, start, frame),
        f"mink, Python loop ({some} poses)": mink(limits=False),
        "torchsko, eager": ours(arm),
        "torchsko, fused": ours(fast),
        "torchsko, fused, 8 restarts": ours(fast, restarts=8, **again),
        f"within limits: mink ({some} poses)": mink(limits=True),
        "within limits: torchsko, fused": ours(fast, **within),
        "within limits: 8 restarts": ours(fast, restarts=8, **within),
        "within limits: 32 restarts": ours(fast, restarts=32, **within),
    }
    calls = {name: call for name, call in given.items() if call is not None}
    print(origin(args.threads))
    print(f"{args.batch} reachable poses of the Panda, one start each")
    print("processor seconds, median of passes\n")
    print("| contestant | reached | worst pose off by | seconds | us a pose | the loop takes |")
    print("|---|---|---|---|---|---|")
    reached = {name: call() for name, call in calls.items()}
    seconds = processor_seconds(calls, args.passes, args.slot)
    for name, (found, converged) in reached.items():
        n = len(converged)
        there = ts.frame_pose(arm, found[converged], frame)
        off = max(
            float((a - b[:n][converged]).abs().max()) for a, b in zip(there, goal, strict=True)
        )
        scale = args.batch / n
        ratios = [x / (scale * y) for x, y in zip(seconds[loop], seconds[name], strict=True)]
        taken = scale * statistics.median(seconds[name])
        digits = max(0, 2 - math.floor(math.log10(taken)))
        row = [name, f"{converged.double().mean():.2%}", f"{off:.1e}", f"{taken:.{digits}f}"]
        row += [f"{1e6 * taken / args.batch:.0f}", f"{statistics.median(ratios):.3g}x"]
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
