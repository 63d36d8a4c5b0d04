"""Inverse kinematics of a humanoid with several goals: build and call, least processor time.

Usage: python benchmarks/inverse_kinematics_goals.py [--starts 256] [--calls 20]

TALOS (example-robot-data, with Pinocchio) keeps two feet and its center of mass over them, and reaches with
a hand: goals of one priority, then with a posture of a later priority. Starts are 0.2 rad and m away.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pinocchio as pin
import torch
from report import origin
from timing import processor_time

import torchsko as ts
from torchsko.control import CenterOfMassGoal, FrameGoal, Goal, PostureGoal

DATA = Path(pin.__file__).parents[4] / "share" / "example-robot-data" / "robots" / "talos_data"
FEET, HAND = ("left_sole_link", "right_sole_link"), "gripper_left_base_link"


def problem(starts: int) -> tuple[ts.Mechanism, torch.Tensor, list[Goal], PostureGoal]:
    """The robot, initial guesses, goals of the same priority, and a posture."""
    robot, states = (DATA / x for x in ("robots/talos_reduced.urdf", "srdf/talos.srdf"))
    mech, g = ts.load(robot, floating_base=True, srdf=states), torch.Generator().manual_seed(0)
    q = mech.keyframes["half_sitting"].q
    away = 0.2 * torch.randn(starts, mech.num_dof, generator=g, dtype=q.dtype)
    reach = torch.tensor([0.1, 0.05, 0.1], dtype=q.dtype)
    reach = reach + 0.03 * torch.randn(starts, 3, generator=g, dtype=q.dtype)
    over = torch.tensor([1.0, 1.0, 0.0], dtype=q.dtype)
    goals: list[Goal] = [FrameGoal(foot, ts.frame_pose(mech, q, foot)) for foot in FEET]
    goals.append(CenterOfMassGoal(ts.center_of_mass(mech, q), over))
    goals.append(FrameGoal(HAND, ts.frame_pose(mech, q, HAND).position + reach))
    return mech, ts.integrate(mech, q, away), goals, PostureGoal(q, 0.1, priority=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=256)
    parser.add_argument("--calls", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    mech, start, goals, posture = problem(args.starts)
    print(origin(1))
    print("| goals | reached | iterations | feet off by | build, s | call, ms |")
    print("|---|---|---|---|---|---|")
    for name, chosen in (
        ("feet, center, hand", goals),
        ("and a later posture", [*goals, posture]),
    ):
        fast, begin = ts.fuse(mech), processor_time()
        found = ts.inverse_kinematics(fast, start, chosen)
        build, best = processor_time() - begin, float("inf")
        for _ in range(args.calls):
            begin = time.process_time()
            found = ts.inverse_kinematics(fast, start, chosen)
            best = min(best, time.process_time() - begin)
        rows = found.residual[:, :18]
        row = f"| {name} | {(rows.norm(dim=1) < 1e-6).double().mean():.0%}"
        row += f" | {found.iterations.double().mean():.1f} | {rows[:, :12].abs().max():.0e}"
        print(row + f" | {build:.1f} | {1e3 * best:.1f} |")


if __name__ == "__main__":
    main()
