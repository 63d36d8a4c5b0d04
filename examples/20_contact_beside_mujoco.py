"""A box that falls, tumbles and slides to rest, in one kernel per step and beside MuJoCo.

Both simulate the same MJCF text. The figure shows the trajectories of both, their difference, and the reading
of an accelerometer. Needs pip install ".[mjcf,plot]".
"""

import matplotlib.pyplot as plt
import mujoco
import numpy as np
import torch
from command_line import parse_options, save_figure

import torchsko as ts

TEXT = """<mujoco><option cone="elliptic" timestep="0.004" tolerance="0" iterations="100"/>
  <worldbody><geom type="plane" size="5 5 1" friction="0.4"/>
  <body pos="0 0 0.4" euler="25 15 0"><freejoint/><geom type="box" size="0.12 0.08 0.05" mass="1"/>
  <site name="imu"/></body></worldbody><sensor><accelerometer name="acc" site="imu"/></sensor></mujoco>"""
QVEL = [1.5, 0.3, 0.0, 0.0, 3.0, 0.0]  # linear in the world [m/s], angular in the body [rad/s]


def simulate_mujoco(steps):
    """Positions of the box in MuJoCo, `[steps + 1, 7]`."""
    model = mujoco.MjModel.from_xml_string(TEXT)
    data, path = mujoco.MjData(model), []
    data.qvel[:] = QVEL
    for _ in range(steps + 1):
        path.append(data.qpos.copy())
        mujoco.mj_step(model, data)
    return torch.tensor(np.array(path))


def main():
    args = parse_options(__doc__, steps=300)
    box = ts.load(TEXT)
    contact, to_mujoco = ts.ContactModel.of(box), ts.conventions("mujoco", box)

    def one_step(mech, q, qd):
        after = ts.step(mech, ts.State(q, qd), contact=contact)
        readings = ts.sensors(mech, ts.State(q, qd), qdd=after.warmstart, contact=contact)
        return after.q, after.qd, readings["acc"]

    print("Building the kernel of a step with contact ...", flush=True)
    fast = ts.fuse(one_step, box, shapes={"q": (7,), "qd": (6,)})
    q = box.file_metadata.initial
    qd = to_mujoco.qd_from(q, torch.tensor(QVEL, dtype=torch.float64))
    path, shocks = [q], []
    for _ in range(args.steps):
        q, qd, shock = fast(q, qd)
        path.append(q)
        shocks.append(shock.norm())
    found, expected = to_mujoco.q_to(torch.stack(path)), simulate_mujoco(args.steps)
    error = (found - expected).abs().amax(-1)
    print(f"largest difference from MuJoCo in {args.steps} steps: {float(error.max()):.1e}")
    t = contact.options.timestep * torch.arange(args.steps + 1)
    figure, axes = plt.subplots(3, 1, figsize=(7, 7), sharex=True, layout="constrained")
    for k, name in enumerate("xyz"):
        (line,) = axes[0].plot(t, found[:, k], label=name)
        axes[0].plot(t[::10], expected[::10, k], "o", ms=3, color=line.get_color())
    axes[0].set(ylabel="position [m], dots: MuJoCo")
    axes[0].legend()
    axes[1].semilogy(t, error + 1e-17)
    axes[1].set(ylabel="difference")
    axes[2].plot(t[1:], torch.stack(shocks))
    axes[2].set(xlabel="time [s]", ylabel="accelerometer [m/s^2]")
    save_figure(figure, args.out / "contact_beside_mujoco.png", dpi=120)


if __name__ == "__main__":
    main()
