"""Control the Panda's hand as a spring and a damper: MuJoCo pushes it aside and releases it.

Inverse kinematics finds the initial configuration. The position of the hand is the first task, its rotation
the second; the remaining motion of the arm is damped. Needs pip install ".[identify]".
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from command_line import parse_options, save_figure
from mujoco_arm import mujoco, mujoco_model

import torchsko as ts

RATE, SECONDS = 1000, 4  # Hz, s
PUSH = np.array([0.0, 20.0, -10.0])  # N, from 1 s to 2.5 s
STIFFNESS, DAMPING = (50.0, 400.0), (8.0, 60.0)  # of rotation and of position
HAND = "flange"
DOWN = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))
PLACE = torch.tensor([0.5, 0.1, 0.4], dtype=torch.float64)


def law(mech, q, qd):
    """Joint forces of two tasks in priority."""
    tasks = [
        ts.control.Task(HAND, (None, PLACE), STIFFNESS, DAMPING),
        ts.control.Task(HAND, (DOWN, None), STIFFNESS, DAMPING),
    ]
    return ts.control.impedance(mech, q, qd, tasks, posture=-5.0 * qd, singular="nan")


def pushed(arm, model, start):
    """Displacement of the hand from its target at every step [m]."""
    data, control, way = mujoco.MjData(model), ts.fuse(law, arm), []
    data.qpos[:] = start.numpy()
    body = model.body("link7").id
    for k in range(SECONDS * RATE):
        q, qd = (torch.from_numpy(x.copy()) for x in (data.qpos, data.qvel))
        at = ts.frame_pose(arm, q, HAND).position
        way.append(at - PLACE)
        data.qfrc_applied[:] = control(q, qd).numpy()
        force = PUSH if 1.0 <= k / RATE < 2.5 else 0 * PUSH
        mujoco.mj_applyFT(model, data, force, 0 * PUSH, at.numpy(), body, data.qfrc_applied)
        mujoco.mj_step(model, data, round(1 / RATE / model.opt.timestep))
    return torch.stack(way)


def main():
    args = parse_options(__doc__)
    arm = ts.load(ts.robots.panda)
    arm = arm.replace(damping=0 * arm.damping, friction=0 * arm.friction)
    goals = [ts.control.FrameGoal(HAND, (DOWN, PLACE))]
    again = {"restarts": 8, "generator": torch.Generator()}
    result = ts.inverse_kinematics(arm, arm.middle(), goals, limits=True, **again)
    print(f"start: converged {bool(result.converged)}, residual {result.residual.norm():.1e}")
    way = pushed(arm, mujoco_model(ts.robots.panda, arm), result.q)
    asked = torch.from_numpy(PUSH) / STIFFNESS[1]
    held, after = way[round(2.4 * RATE)], way[-1]
    print(
        f"pushed: {1e3 * held.norm():.1f} mm aside; force over stiffness is {1e3 * asked.norm():.1f} mm"
    )
    print(f"released: {1e3 * after.norm():.2f} mm from the target")
    fig, axes = plt.subplots(figsize=(8, 4))
    time = torch.arange(len(way)) / RATE
    for k, name in enumerate("xyz"):
        axes.plot(time, 1e3 * way[:, k], f"C{k}", label=name)
        axes.hlines(1e3 * asked[k], 1.0, 2.5, f"C{k}", "dashed", lw=1)
    axes.set(xlabel="time [s]", ylabel="displacement of the hand [mm]")
    axes.legend(frameon=False, title="dashed: F / K")
    save_figure(fig, args.out / "impedance.png", bbox_inches="tight")


if __name__ == "__main__":
    main()
