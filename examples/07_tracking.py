"""Laws of control track a sway of the Panda in MuJoCo, which carries a tool that they do not know of.

Feedback with gravity compensated, computed torque, and adaptive control, which learns the tool while it
moves. Needs pip install ".[identify]" in a clone.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from mujoco_arm import mujoco, mujoco_model

import torchsko as ts

TOOL, RATE = 1.0, 1000  # kg, 0.15 m beyond the flange; Hz
SIZES = torch.tensor([0.6, 0.4, 0.5, 0.5, 0.6, 0.5, 0.8], dtype=torch.float64)  # rad
SPEEDS = torch.tensor([1.0, 1.3, 0.8, 1.1, 1.7, 1.4, 2.0], dtype=torch.float64)  # rad/s
STIFF = torch.tensor([600.0, 600.0, 300.0, 300.0, 60.0, 60.0, 10.0], dtype=torch.float64)  # N m/rad


def feedback(mech, phi, q, qd, x, v, a):
    gains = {"stiffness": STIFF, "damping": 0.05 * STIFF}
    return ts.control.pd_with_gravity(mech, q, qd, x, **gains), 0 * phi


def computed(mech, phi, q, qd, x, v, a):
    gains = {"stiffness": 400.0, "damping": 40.0}
    return ts.control.computed_torque(mech, q, qd, x, v, a, **gains), 0 * phi


def adaptive(mech, phi, q, qd, x, v, a):
    gains = {"slope": 10.0, "gain": 0.02 * STIFF, "adaptation": 1.0}
    return ts.control.adaptive_control(mech, phi, q, qd, x, v, a, **gains)


def sway(middle, t):
    """Angles, rates and accelerations at a time."""
    x = SIZES * (SPEEDS * t).sin()
    return middle + x, SIZES * SPEEDS * (SPEEDS * t).cos(), -(SPEEDS**2) * x


def track(law, arm, model, seconds):
    """Errors of all joints at every step."""
    data, phi, middle = mujoco.MjData(model), ts.inertial_parameters(arm), arm.middle()
    data.qpos[:], data.qvel[:] = (x.numpy() for x in sway(middle, 0.0)[:2])
    shapes = {"phi": tuple(phi.shape)} | dict.fromkeys("xva", (arm.num_dof,))
    control, errors = ts.fuse(law, arm, shapes=shapes), []
    for k in range(seconds * RATE):
        q, qd = (torch.from_numpy(x.copy()) for x in (data.qpos, data.qvel))
        target = sway(middle, k / RATE)
        tau, rate = control(phi, q, qd, *target)
        phi = phi + rate / RATE
        errors.append(target[0] - q)
        data.qfrc_applied[:] = tau.numpy()
        mujoco.mj_step(model, data, round(1 / RATE / model.opt.timestep))
    return torch.stack(errors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(), help="folder")
    args, arm = parser.parse_args(), ts.load(ts.robots.panda)
    args.out.mkdir(parents=True, exist_ok=True)
    arm = arm.replace(damping=0 * arm.damping, friction=0 * arm.friction)
    tool = ts.MechanismBuilder("tool").link("ball", mass=TOOL, com=(0.0, 0.0, 0.15))
    with_tool = arm.append(tool.build(floating_base=True), arm.frame_names[-1])
    model, (fig, axes) = mujoco_model(ts.robots.panda, with_tool), plt.subplots(figsize=(8, 4))
    for law in (feedback, computed, adaptive):
        size = track(law, arm, model, args.seconds).square().mean(-1).sqrt().rad2deg()
        axes.semilogy(torch.arange(1, len(size)) / RATE, size[1:], label=law.__name__)
        first, last = (x.square().mean().sqrt() for x in size.chunk(4)[::3])
        print(f"{law.__name__}: error {first:.3f} deg in the first quarter, {last:.3f} in the last")
    axes.set(xlabel="time [s]", ylabel="error, rms over joints [deg]", ylim=(3e-3, None))
    axes.legend(frameon=False)
    fig.savefig(args.out / "tracking.png", dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
