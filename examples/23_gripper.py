"""A gripper closes on a box and lifts it, for sixteen friction coefficients at once.

The fingertips are spheres, servos close the fingers with a limited force, and touch sensors measure it. A box
of weight m g is lifted if the friction coefficient exceeds m g / (2 f). Needs pip install ".[mjcf,plot]".
"""

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

FINGER = """<body pos="0 {y} 0"><joint name="{name}" type="slide" axis="0 {axis} 0" damping="5"/>
  <geom name="{name}" size="0.02" mass="0.1" condim="4" conaffinity="2" contype="0"/>
  <site name="{name}_tip" size="0.03"/></body>"""
TEXT = """<mujoco><option cone="elliptic" timestep="0.004" impratio="10"/><worldbody>
  <geom type="plane" size="2 2 1" contype="2" conaffinity="0"/>
  <body name="box" pos="0 0 0.0499"><freejoint/>
    <geom name="box" type="box" size="0.04 0.03 0.05" mass="0.2" contype="2" conaffinity="2"
      friction="1e-4"/>
  </body>
  <body pos="0 0 0.05"><joint name="lift" type="slide" axis="0 0 1" damping="5"/>
    <geom size="0.02" pos="0 0 0.2" mass="0.5" contype="0" conaffinity="0"/>{fingers}</body></worldbody>
  <actuator><position joint="lift" kp="600" kv="40"/><position joint="left" kp="200" forcerange="-4 4"/>
    <position joint="right" kp="200" forcerange="-4 4"/></actuator>
  <sensor><touch name="left" site="left_tip"/><touch name="right" site="right_tip"/></sensor></mujoco>"""


def main():
    args = parse_options(__doc__)
    places = (("left", 0.06, -1), ("right", -0.06, 1))
    fingers = "".join(FINGER.format(name=n, y=y, axis=axis) for n, y, axis in places)
    robot = ts.load(TEXT.format(fingers=fingers))
    contact = ts.ContactModel.of(robot)
    at_tips = torch.tensor([["left" in p or "right" in p] for p in contact.pair_names])

    def one_step(mech, q, qd, ctrl, friction):
        sliding = torch.where(at_tips, friction[..., None, None], contact.friction[:, :2])
        sliding = torch.cat([sliding, contact.friction[:, 2:].expand(*sliding.shape[:-1], 3)], -1)
        surfaces = contact.replace(friction=sliding)
        after = ts.step(mech, ts.State(q, qd), ctrl, contact=surfaces)
        tips = ts.sensors(mech, ts.State(q, qd), ctrl, qdd=after.warmstart, contact=surfaces)
        return after.q, after.qd, torch.cat(tuple(tips.values()), -1)

    print("Building the kernel of a step ...", flush=True)
    shapes = {"q": (10,), "qd": (9,), "ctrl": (3,), "friction": ()}
    fast = ts.fuse(one_step, robot, shapes=shapes)
    friction = torch.linspace(0.1, 0.6, 16, dtype=torch.float64)
    q, qd = robot.file_metadata.initial.repeat(16, 1), torch.zeros(16, 9).double()
    heights, forces = [], []
    ctrl = torch.full((300, 3), 0.05, dtype=torch.float64)  # m, closes the fingers
    ctrl[:, 0] = 0.15 * torch.linspace(-0.7, 1.3, 300).clamp(0, 1)  # lifts them
    for targets in ctrl:
        q, qd, tips = fast(q, qd, targets.repeat(16, 1), friction)
        heights.append(q[:, 2])
        forces.append(tips)
    heights, forces = torch.stack(heights), torch.stack(forces)
    lifted = heights[-1] > 0.15
    grip = forces[-1, lifted].mean()
    print(f"grip force {grip:.3f} N, lifted {int(lifted.sum())} of 16 boxes")
    print(f"smallest friction that lifts {friction[lifted].min():.3f}")
    print(f"friction needed at rest {0.2 * 9.81 / (2 * grip):.3f}")
    t = contact.options.timestep * torch.arange(len(ctrl))
    figure, axes = plt.subplots(2, 1, figsize=(7, 6), sharex=True, layout="constrained")
    axes[0].plot(t, heights)
    axes[0].set(ylabel="height of the box [m]")
    axes[1].plot(t, forces[:, -1])
    axes[1].set(xlabel="time [s]", ylabel="touch sensors [N]")
    save_figure(figure, args.out / "gripper.png", dpi=120)


if __name__ == "__main__":
    main()
