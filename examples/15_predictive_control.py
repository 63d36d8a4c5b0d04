"""Model predictive control: the hand of an arm moves between corners, and the arm is pushed.

Every 20 ms one iteration of LQR plans half a second ahead, from the measured state and the shifted last
plan; the states of the plan need not be consistent with it (multiple shooting). The arm carries a load that
the model lacks. Needs pip install ".[plot]".
"""

import time

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

HAND, DT = "flange", 0.02  # s


def running(mech, q, qd, u, target):
    """Residuals of a step: torque in excess of gravity, velocity, distance to the target."""
    miss = ts.frame_pose(mech, q, HAND).position - target
    return DT**0.5 * torch.cat([0.03 * (u - ts.gravity_force(mech, q)), 0.2 * qd, 10 * miss], -1)


def final(mech, q, qd, target):
    """Residuals at the end of the plan."""
    return torch.cat([10 * (ts.frame_pose(mech, q, HAND).position - target), 0.5 * qd], -1)


def shifted(x):
    """A plan shifted by one step; the last row is repeated."""
    return torch.cat([x[1:], x[-1:]])


def main():
    args = parse_options(
        __doc__, seconds=6.0, horizon=(25, "steps of a plan"), eager=(False, "no kernels")
    )
    arm = ts.load(ts.robots.panda)
    none = torch.zeros_like(arm.friction)
    arm = arm.replace(friction=none, damping=none + 0.5, armature=none + 0.1)
    load = 0.7 * (torch.arange(arm.num_bodies) == arm.body_index("link7"))
    real = arm.replace(mass=arm.mass + load)  # kg
    problem = ts.control.optimal_control(
        [ts.control.Phase(arm, args.horizon, DT, running, final)],
        goals={"target": (3,)},
        bounds=(-arm.effort_limit, arm.effort_limit),
        fuse=None if args.eager else ts.fuse,
    )
    q, qd = torch.tensor([0.0, 0.3, 0.0, -1.8, 0.0, 2.1, 0.0]).double(), torch.zeros(7).double()
    corners = torch.tensor(
        [[0.5, y, z] for y, z in ((-0.2, 0.6), (0.2, 0.6), (0.2, 0.3), (-0.2, 0.3))]
    )
    u = ts.gravity_force(arm, q).expand(args.horizon, -1)
    states = tuple(x.expand(args.horizon + 1, -1) for x in (q, qd))
    ts.control.ilqr(
        problem, q, qd, u, corners[0].double(), states=states, max_iterations=1
    )  # builds
    count, solves, way, aims = round(args.seconds / DT), [], [], []
    for k in range(count):
        aim = corners[4 * k // count].double()
        began = time.perf_counter()
        plan = ts.control.ilqr(problem, q, qd, u, aim, states=states, max_iterations=1)
        solves.append(1e3 * (time.perf_counter() - began))
        push = 30.0 * (torch.arange(7) == 3) * (0.6 < k / count < 0.63)  # N m
        qs, qds, *_ = ts.rollout(
            real, ts.State(q, qd), plan.u[0] + push, steps=4, dt=DT / 4, fused=False
        )
        q, qd = qs[-1], qds[-1]
        u, states = shifted(plan.u), (shifted(plan.q), shifted(plan.qd))
        way.append(ts.frame_pose(real, q, HAND).position)
        aims.append(aim)
    way, aims = torch.stack(way), torch.stack(aims)
    miss = 100 * (way - aims).norm(dim=-1)
    ends = miss[count // 4 - 1 :: count // 4]
    solves = torch.tensor(solves)
    print(
        f"one plan of {args.horizon} steps: median {solves.median():.1f} ms, worst {solves.max():.1f} ms"
    )
    print(
        "distance of the hand from its corner before each change [cm]:",
        " ".join(f"{x:.2f}" for x in ends),
    )

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6))
    left.plot(*way[:, 1:].T, lw=1)
    left.plot(*corners[:, 1:].T, "C3s", ms=5)
    left.set(aspect="equal", xlabel="y [m]", ylabel="z [m]", title="path of the hand")
    t = DT * torch.arange(count)
    middle.plot(t, miss)
    middle.axvspan(0.6 * args.seconds, 0.63 * args.seconds, color="0.85", label="pushed")
    middle.set(xlabel="time [s]", ylabel="distance to the corner [cm]")
    middle.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.25, 1.0))
    right.plot(t, solves, lw=0.8)
    right.set(xlabel="time [s]", ylabel="one plan [ms]", ylim=(0, None))
    figure.tight_layout()
    save_figure(figure, args.out / "predictive_control.png")


if __name__ == "__main__":
    main()
