"""Draw a figure eight with the Panda's hand in MuJoCo, in joint space and in operational space.

In joint space, inverse kinematics computes a joint path that computed torque follows. In operational space
the hand is the task, and no joint path is needed. Needs pip install ".[identify]".
"""

import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from command_line import parse_options, save_figure
from mujoco_arm import mujoco, mujoco_model

import torchsko as ts

HAND, RATE, PATH = "flange", 1000, 100  # Hz: of control, and of the poses on the joints' path
DOWN = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))
MIDDLE = torch.tensor([0.5, 0.0, 0.45], dtype=torch.float64)
SIZES, TURNS = torch.tensor([0.0, 0.2, 0.1], dtype=torch.float64), torch.tensor([0.0, 1.0, 2.0])
SPEED = 0.5 * math.pi * TURNS.double()  # rad/s


def eight(t):
    """Position of the hand, [omega; v] and its rate, at times `[n]` or one time."""
    t = torch.as_tensor(t, dtype=torch.float64)[..., None]
    v = SIZES * SPEED * (SPEED * t).cos()
    a = -SIZES * SPEED**2 * (SPEED * t).sin()
    return MIDDLE + SIZES * (SPEED * t).sin(), *(torch.cat([0 * x, x], -1) for x in (v, a))


def joint_path(arm, fast, seconds):
    """Joint angles at every pose of the path; each solution starts from the one before."""
    goals = [ts.control.FrameGoal(HAND, (DOWN, eight(0.0)[0]))]
    again = {"restarts": 16, "generator": torch.Generator().manual_seed(0)}
    found = ts.inverse_kinematics(fast, arm.middle(), goals, limits=True, **again)
    path = [found.q]
    for k in range(1, round(seconds * PATH) + 1):
        goals = [ts.control.FrameGoal(HAND, (DOWN, eight(k / PATH)[0]))]
        path.append(ts.inverse_kinematics(fast, path[-1], goals, limits=True).q)
    return torch.stack(path), bool(found.converged)


def joints(mech, q, qd, x, v, a):
    return ts.control.computed_torque(mech, q, qd, x, v, a, stiffness=900.0, damping=60.0)


def hand(mech, q, qd, place, twist, rate):
    task = ts.control.Task(HAND, (DOWN, place), (20.0, 900.0), (1.5, 60.0), twist, rate)
    return ts.control.impedance(mech, q, qd, [task], posture=-5.0 * qd, singular="nan")


def track(law, targets, arm, model, start):
    """Positions of the hand at every step."""
    names = [*"xva"] if law is joints else ["place", "twist", "rate"]
    shapes = {name: x.shape[1:] for name, x in zip(names, targets, strict=True)}
    data, there, control = mujoco.MjData(model), [], ts.fuse(law, arm, shapes=shapes)
    data.qpos[:], data.qvel[:] = start[0].numpy(), start[1].numpy()
    for target in zip(*targets, strict=True):
        q, qd = (torch.from_numpy(x.copy()) for x in (data.qpos, data.qvel))
        there.append(ts.frame_pose(arm, q, HAND).position)
        data.qfrc_applied[:] = control(q, qd, *target).numpy()
        mujoco.mj_step(model, data, round(1 / RATE / model.opt.timestep))
    return torch.stack(there)


def main():
    args, arm = parse_options(__doc__, seconds=4.0), ts.load(ts.robots.panda)
    arm = arm.replace(damping=0 * arm.damping, friction=0 * arm.friction)
    path, found = joint_path(arm, ts.fuse(arm), args.seconds)
    print(f"joint path: {len(path)} poses, first one converged: {found}")
    time = np.arange(round(args.seconds * RATE)) / RATE
    rates, knots, of_joints = path.numpy(), np.arange(len(path)) / PATH, []
    for _ in range(3):  # angles; rates and accelerations by finite differences
        each = [np.interp(time, knots, x) for x in rates.T]
        of_joints.append(torch.from_numpy(np.stack(each, -1)))
        rates = np.gradient(rates, 1 / PATH, axis=0)
    targets, start = {joints: of_joints, hand: eight(time)}, [x[0] for x in of_joints[:2]]
    model = mujoco_model(ts.robots.panda, arm)
    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.plot(*eight(time)[0][:, 1:].T, "k--", lw=3, alpha=0.3, label="reference")
    for law, asked in targets.items():
        there = track(law, asked, arm, model, start)
        off = 1e3 * (there - eight(time)[0]).norm(dim=-1)
        print(f"{law.__name__}: hand {off.square().mean().sqrt():.3f} mm error (root mean square)")
        left.plot(*there[:, 1:].T, label=law.__name__)
        right.semilogy(time[1:], off[1:])
    left.set(xlabel="y [m]", ylabel="z [m]", aspect="equal", xticks=[-0.2, 0.0, 0.2])
    left.legend(frameon=False, loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.25))
    right.set(xlabel="time [s]", ylabel="error of the hand [mm]")
    save_figure(fig, args.out / "along_a_curve.png")


if __name__ == "__main__":
    main()
