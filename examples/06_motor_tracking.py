"""Track a reference with motors: feedback alone, and with feed-forward torque (Isobe and Yagi, Fig. 8).

The feed-forward follows a change of the connectivity of the links by changing two tensors. Needs pip
install ".[plot]".
"""

import math

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

LENGTH, ROD = [0.142, 0.142, 0.180, 0.142, 0.142], [0.102, 0.102, 0.130, 0.102, 0.102]  # m, kg
TIP = [0.534, 2 * 0.534, 0.1, 0.534, 0.0]  # kg: the motors of the next links, or the branch's mass
TREE, CUT = [-1, 0, 1, 1, 3], [-1, 0, 1, 1, -1]  # parents of the links of NAMES
CASES = {"links 3 and 5 on link 2, 4 on 3": TREE, "cut: link 4 on the far end": CUT}
NAMES = ["link 1", "link 2", "link 5 (branch)", "link 3", "link 4"]
MOTOR, GAINS = (
    ts.actuators.Motor(3.84e-4, 1.5e-4, 1.5e-4),
    ts.actuators.PID(15.0, 0.80, 0.10),
)  # Table I
REFERENCE = torch.tensor([0.5, 0.4, 0.6, -0.4, 0.3], dtype=torch.float64)  # rad
COLORS = {"feedback alone": "C1", "with feed-forward": "C0"}


def links(parents):
    """Rods in the horizontal plane, each attached to the tip of its parent; the far end is at 0.4 m."""
    builder = ts.MechanismBuilder("links")
    for k, (p, length, rod, tip) in enumerate(zip(parents, LENGTH, ROD, TIP, strict=True)):
        mass, com = rod + tip, length * (rod / 2 + tip) / (rod + tip)
        about = rod * (length**2 / 12 + (length / 2 - com) ** 2) + tip * (length - com) ** 2
        inertia = [[0, 0, 0], [0, about, 0], [0, 0, about]]
        builder.link(NAMES[k], mass=mass, com=(com, 0, 0), inertia=inertia)
        at, parent = (LENGTH[p], NAMES[p]) if p >= 0 else (0.4 * (k > 0), None)
        builder.joint(f"joint {k}", "revolute", child=NAMES[k], parent=parent, position=(at, 0, 0))
    return builder.build()


def sway(t):
    """Reference angles, rates and accelerations: forth and back in 2 s, at rest at both ends."""
    c, s, w = math.cos(math.pi * t), math.sin(math.pi * t), math.pi
    return REFERENCE * (1 - c) / 2, REFERENCE * w * s / 2, REFERENCE * w**2 * c / 2


def track(model, parents, steps, dt):
    """Joint angles with feedback alone and with feed-forward, `[2, steps + 1, 5]`."""
    plant = links(parents)
    model = model.replace(joint_position=plant.joint_position)  # a new connectivity: two tensors
    share = torch.tensor([[0.0], [1.0]], dtype=torch.float64)  # without and with feed-forward
    control = ts.actuators.MotorControl(model, sway, MOTOR, GAINS, share, torch.tensor(parents))
    plant = MOTOR.on(plant.replace(mass=1.05 * plant.mass, inertia=1.05 * plant.inertia))
    return ts.rollout(plant, ts.State(*REFERENCE.new_zeros(2, 2, 5)), control, steps=steps, dt=dt).q


def main():
    args = parse_options(__doc__, steps=(1000, "control steps in 2 s"))
    time = torch.linspace(0, 2, args.steps + 1, dtype=torch.float64)
    target, model = torch.stack([sway(t)[0] for t in time.tolist()]), links(TREE)
    fig, axes = plt.subplots(
        2, 2, sharex=True, sharey="row", figsize=(9, 5.5), layout="constrained"
    )
    for (title, parents), (top, bottom) in zip(CASES.items(), axes.T, strict=True):
        found = track(model, parents, args.steps, 2 / args.steps)
        for (name, color), q in zip(COLORS.items(), found, strict=True):
            error = (target - q).rad2deg()
            top.plot(time, q[:, 0].rad2deg(), color, label=name)
            bottom.plot(time, error[:, 0], color)
            print(f"{title}; {name}: largest error of any joint {error.abs().max():.2f} deg")
        top.plot(time, target[:, 0].rad2deg(), "k--", lw=1, label="target")
        top.set(title=title, ylabel="angle of joint 1 [deg]")
        bottom.set(xlabel="time [s]", ylabel="error of joint 1 [deg]")
        top.label_outer(), bottom.label_outer()
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    save_figure(fig, args.out / "motor_tracking.png")


if __name__ == "__main__":
    main()
