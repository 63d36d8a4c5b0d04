"""Move a quadruped's body sideways in MuJoCo with whole-body control.

Each control step solves one quadratic program: the center of mass follows a reference, the posture is held,
feet push inside their friction cones, motors stay within their limits. Needs pip install ".[identify]".
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from command_line import parse_options, save_figure
from mujoco_arm import mujoco

import torchsko as ts
from torchsko.control import Contact, com_objective, posture_objective, whole_body_control

FEET = [f"{side}_foot" for side in ("front_right", "front_left", "hind_right", "hind_left")]
WIDTH, TURNS, GAINS = 0.04, 1.0, (200.0, 28.0)  # m; per second; 1/s^2, 1/s
STANCE = torch.tensor([0.0, -0.8, 1.6], dtype=torch.float64).repeat(4)  # rad


def on_the_ground(dog):
    """MuJoCo model of the robot on a floor, with a small ball for each foot."""
    with tempfile.TemporaryDirectory() as folder:
        ts.save(dog, Path(folder) / "dog.xml")
        spec = mujoco.MjSpec.from_file(str(Path(folder) / "dog.xml"))
    spec.option.timestep = 1e-3
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[5, 5, 0.1])
    for k in map(dog.frame_index, FEET):
        ball = {"type": mujoco.mjtGeom.mjGEOM_SPHERE, "size": [0.005, 0, 0], "mass": 0.0}
        at = dog.frame_position[k].tolist()
        spec.body(dog.body_names[dog.frame_body[k]]).add_geom(pos=at, friction=[0.8, 0, 0], **ball)
    return spec.compile()


def sway(dog, model, rate, seconds):
    """Lateral position and its reference [m], commanded normal forces, and their sum in MuJoCo [N]."""
    data, there, log = mujoco.MjData(model), ts.conventions("mujoco", dog), []
    start = torch.cat([dog.neutral()[:7], STANCE])
    lift = 0.005 - ts.frame_pose(dog, start, FEET).position[:, 2].mean()
    start = start + lift * (torch.arange(len(start)) == 2)
    center, contacts = ts.center_of_mass(dog, start), [Contact(foot) for foot in FEET]
    data.qpos[:] = there.q_to(start).numpy()
    for k in range(round(rate * seconds)):
        at, w = torch.from_numpy(data.qpos.copy()), 2 * np.pi * TURNS
        q, qd = there.q_from(at), there.qd_from(at, torch.from_numpy(data.qvel.copy()))
        rates = (1 - np.cos(w * k / rate), w * np.sin(w * k / rate), w * w * np.cos(w * k / rate))
        way, v, a = torch.tensor([[0.0, WIDTH / 2 * x, 0.0] for x in rates], dtype=q.dtype)
        asked = [com_objective(dog, q, qd, center + way, gains=GAINS, velocity=v, acceleration=a)]
        asked.append(posture_objective(dog, q, qd, start, gains=GAINS, weight=1e-4))
        out = whole_body_control(dog, q, qd, asked, contacts, iterations=12)
        data.qfrc_applied[:] = there.tau_to(q, out.tau).numpy()
        mujoco.mj_step(model, data, round(1 / rate / model.opt.timestep))
        side, felt = ts.center_of_mass(dog, q)[1] - center[1], data.qfrc_constraint[2]
        log.append(torch.stack([side, way[1], *out.forces[:, 2], torch.tensor(felt)]))
    return torch.stack(log)


def main():
    args = parse_options(__doc__, rate=(250, "of control [Hz]"), seconds=2.0)
    dog = ts.load(ts.robots.quadruped, floating_base=True)
    log = sway(dog, on_the_ground(dog), args.rate, args.seconds)
    print(f"center of mass: {1e3 * (log[:, 0] - log[:, 1]).abs().max():.2f} mm largest error")
    time, (fig, axes) = torch.arange(len(log)) / args.rate, plt.subplots(1, 2, figsize=(10, 4))
    axes[0].plot(time, 1e3 * log[:, 0], label="center of mass")
    axes[0].plot(time, 1e3 * log[:, 1], "k--", label="reference")
    axes[0].set(xlabel="time [s]", ylabel="lateral position [mm]")
    axes[1].plot(time, log[:, 2:6], label=[foot.replace("_", " ") for foot in FEET])
    axes[1].plot(time, log[:, 2:6].sum(-1), "k", label="sum")
    axes[1].plot(time, log[:, 6], "0.5", ls=":", label="sum in MuJoCo")
    axes[1].set(xlabel="time [s]", ylabel="forces on the feet [N]")
    for each, place in zip(axes, ("upper center", "center right"), strict=True):
        each.legend(frameon=False, loc=place, fontsize="small")
    fig.tight_layout()
    save_figure(fig, args.out / "whole_body.png")


if __name__ == "__main__":
    main()
