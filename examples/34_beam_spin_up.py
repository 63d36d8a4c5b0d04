"""Spin-up of a flexible beam, with and without the foreshortening of its second-order shapes.

The hub turns from rest to a rate above the first frequency of the beam. Without second-order shapes the
centrifugal force makes the beam unstable (Kane, Ryan, Banerjee, Journal of Guidance 10(2), 1987). The figure
needs pip install ".[plot]".
"""

import math

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

RATE, RISE, TIME, DT = 4.0, 8.0, 10.0, 0.025
"""Final rate of the hub [rad/s], time until it is reached, duration and time step [s]."""

args = parse_options(__doc__)
beam = ts.FlexibleBody.beam(length=1.0, density=1.0, EI_z=1.0, shapes=(0, 2))
builder = ts.MechanismBuilder("beam on a hub").flexible_link("beam", beam)
mech = builder.joint("hub", "revolute", child="beam").build(gravity=(0, 0, 0))

# Two robots in one batch, the second without second-order shapes.
parameters = mech.joint_parameters.clone()
for joint in mech.tree_joint_names:
    if joint != "hub":
        parameters[mech.parameter_slice(joint, "second_order")] = 0
both = mech.replace(joint_parameters=torch.stack([mech.joint_parameters, parameters]))


def rate(t: float, x: torch.Tensor) -> torch.Tensor:
    """Of the state (q, qd), `[2, 2, num_dof]`, with a prescribed smooth rise of the rate of the hub."""
    q, qd = x
    qdd = torch.zeros_like(qd)
    if t < RISE:
        qdd[:, mech.dof_slice("hub")] = RATE / RISE * (1 - math.cos(2 * math.pi * t / RISE))
    return torch.stack([qd, ts.hybrid_dynamics(both, q, qd, torch.zeros_like(qd), qdd, ["hub"])[0]])


x, times, tips = torch.zeros(2, 2, mech.num_dof).double(), [0.0], [torch.zeros(2).double()]
for k in range(round(TIME / DT)):
    t = k * DT
    a = rate(t, x)
    b = rate(t + DT / 2, x + DT / 2 * a)
    c = rate(t + DT / 2, x + DT / 2 * b)
    x = x + DT / 6 * (a + 2 * b + 2 * c + rate(t + DT, x + DT * c))
    times.append(t + DT)
    tips.append(x[0, :, 1:].sum(-1))  # the shapes are 1 at the tip
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, tip in zip(("with", "without"), torch.stack(tips).T, strict=True):
    print(f"largest deflection of the tip {name:7s} second-order shapes {tip.abs().max():10.4f} m")
    axes.plot(times, tip, label=f"{name} second-order shapes")
axes.set(xlabel="time [s]", ylabel="deflection of the tip [m]", ylim=(-0.5, 0.1))
axes.legend()
save_figure(figure, args.out / "beam_spin_up.png")
