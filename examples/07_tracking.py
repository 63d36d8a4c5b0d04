"""Compare three control laws on a Panda in MuJoCo, with an exact model and with an unknown tool.

PD with gravity compensation ignores inertia and Coriolis forces, so it lags behind the motion. Computed
torque cancels them with the model: it is exact without the tool, and its error with the tool is the tool's
weight over its stiffness. Adaptive control estimates the tool while it moves. Needs pip install
".[identify]".
"""

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure
from mujoco_arm import mujoco, mujoco_model

import torchsko as ts

TOOL, RATE = 1.0, 1000  # kg, 0.15 m beyond the flange; Hz
AMPLITUDES = torch.tensor([0.6, 0.4, 0.5, 0.5, 0.6, 0.5, 0.8], dtype=torch.float64)  # rad
FREQUENCIES = torch.tensor([1.0, 1.3, 0.8, 1.1, 1.7, 1.4, 2.0], dtype=torch.float64)  # rad/s
STIFFNESS = torch.tensor(
    [600.0, 600.0, 300.0, 300.0, 60.0, 60.0, 10.0], dtype=torch.float64
)  # N m/rad


def pd_control(mech, phi, q, qd, x, v, a):
    gains = {"stiffness": STIFFNESS, "damping": 0.05 * STIFFNESS}
    return ts.control.pd_with_gravity(mech, q, qd, x, **gains), 0 * phi


def computed_torque(mech, phi, q, qd, x, v, a):
    gains = {"stiffness": 1600.0, "damping": 80.0}  # 1/s^2, 1/s
    return ts.control.computed_torque(mech, q, qd, x, v, a, **gains), 0 * phi


def adaptive_control(mech, phi, q, qd, x, v, a):
    gains = {"slope": 10.0, "gain": 0.02 * STIFFNESS, "adaptation": 1.0}
    return ts.control.adaptive_control(mech, q, qd, phi, x, v, a, **gains)


def reference(middle, t):
    """Reference angles, rates and accelerations at a time."""
    x = AMPLITUDES * (FREQUENCIES * t).sin()
    return middle + x, AMPLITUDES * FREQUENCIES * (FREQUENCIES * t).cos(), -(FREQUENCIES**2) * x


def track(law, arm, model, seconds):
    """Tracking errors of all joints at every step, `[steps, 7]` [rad]."""
    data, phi, middle = mujoco.MjData(model), ts.inertial_parameters(arm), arm.middle()
    data.qpos[:], data.qvel[:] = (x.numpy() for x in reference(middle, 0.0)[:2])
    shapes = {"phi": tuple(phi.shape)} | dict.fromkeys("xva", (arm.num_dof,))
    control, errors = ts.fuse(law, arm, shapes=shapes), []
    for k in range(seconds * RATE):
        q, qd = (torch.from_numpy(x.copy()) for x in (data.qpos, data.qvel))
        target = reference(middle, k / RATE)
        tau, rate = control(phi, q, qd, *target)
        phi = phi + rate / RATE
        errors.append(target[0] - q)
        data.qfrc_applied[:] = tau.numpy()
        mujoco.mj_step(model, data, round(1 / RATE / model.opt.timestep))
    return torch.stack(errors)


def main():
    args, arm = parse_options(__doc__, seconds=16), ts.load(ts.robots.panda)
    arm = arm.replace(damping=0 * arm.damping, friction=0 * arm.friction)
    tool = ts.MechanismBuilder("tool").link("ball", mass=TOOL, com=(0.0, 0.0, 0.15))
    with_tool = arm.append(tool.build(floating_base=True), arm.frame_names[-1])
    figure, panels = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    print("tracking error, rms over joints, in the first and in the last quarter [deg]")
    for title, plant, axes in zip(
        ("exact model", "unknown tool"), (arm, with_tool), panels, strict=True
    ):
        model = mujoco_model(ts.robots.panda, plant)
        for law in (pd_control, computed_torque, adaptive_control):
            error = track(law, arm, model, args.seconds).square().mean(-1).sqrt().rad2deg()
            axes.semilogy(torch.arange(1, len(error)) / RATE, error[1:], label=law.__name__)
            first, last = (x.square().mean().sqrt() for x in error.chunk(4)[::3])
            print(f"  {title}, {law.__name__}: {first:.4f} {last:.4f}", flush=True)
        axes.set(xlabel="time [s]", title=title, ylim=(1e-5, None))
    panels[0].set_ylabel("error, rms over joints [deg]")
    panels[1].legend(frameon=False)
    save_figure(figure, args.out / "tracking.png", bbox_inches="tight")


if __name__ == "__main__":
    main()
