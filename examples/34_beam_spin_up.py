"""Spin-up of a flexible beam, with and without the foreshortening of its second-order shapes.

The hub turns from rest to a rate above the first frequency of the beam. Without second-order shapes the
centrifugal force makes the beam unstable (Kane, Ryan, Banerjee, Journal of Guidance 10(2), 1987).
"""

import argparse
import math
from pathlib import Path

import torch

import torchsko as ts

RATE, RISE, TIME, DT = 4.0, 8.0, 10.0, 0.025
"""Final rate of the hub [rad/s], time until it is reached, duration and time step [s]."""

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

beam = ts.FlexibleBody.beam(length=1.0, density=1.0, EI_z=1.0, shapes=(0, 2))
builder = ts.MechanismBuilder("beam on a hub").flexible_link("beam", beam)
mech = builder.joint("hub", "revolute", child="beam").build(gravity=(0, 0, 0))

# Two robots in one batch, the second without second-order shapes.
parameters = mech.joint_parameters.clone()
for joint in mech.tree_joint_names:
    if joint != "hub":
        parameters[mech.parameter_slice(joint, "second_order")] = 0
both = mech.replace(joint_parameters=torch.stack([mech.joint_parameters, parameters]))


def hub_acceleration(t: float) -> float:
    """Of a smooth rise from zero to the final rate [rad/s^2]."""
    return RATE / RISE * (1 - math.cos(2 * math.pi * t / RISE)) if t < RISE else 0.0


def rate(t: float, q: torch.Tensor, qd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of q and qd, with the motion of the hub prescribed."""
    qdd = torch.zeros_like(qd)
    qdd[:, mech.dof_slice("hub")] = hub_acceleration(t)
    return qd, ts.hybrid_dynamics(both, q, qd, torch.zeros_like(qd), qdd, ["hub"])[0]


q, qd = mech.neutral().repeat(2, 1), torch.zeros(2, mech.num_dof, dtype=torch.float64)
times, tips = [0.0], [q[:, 1:].sum(-1)]
for k in range(round(TIME / DT)):
    t = k * DT
    a = rate(t, q, qd)
    b = rate(t + DT / 2, q + DT / 2 * a[0], qd + DT / 2 * a[1])
    c = rate(t + DT / 2, q + DT / 2 * b[0], qd + DT / 2 * b[1])
    d = rate(t + DT, q + DT * c[0], qd + DT * c[1])
    q = q + DT / 6 * (a[0] + 2 * b[0] + 2 * c[0] + d[0])
    qd = qd + DT / 6 * (a[1] + 2 * b[1] + 2 * c[1] + d[1])
    times.append(t + DT)
    tips.append(q[:, 1:].sum(-1))  # the shapes are 1 at the tip
tips = torch.stack(tips)

largest = tips.abs().amax(0)
print(f"largest deflection of the tip with second-order shapes    {float(largest[0]):10.4f} m")
print(f"largest deflection of the tip without second-order shapes {float(largest[1]):10.4f} m")

try:
    import matplotlib.pyplot as plt
except ImportError:
    print("no figure: matplotlib is not installed")
else:
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for name, tip in zip(("with", "without"), tips.T, strict=True):
        axes.plot(times, tip, label=f"{name} second-order shapes")
    axes.set(xlabel="time [s]", ylabel="deflection of the tip [m]", ylim=(-0.5, 0.1))
    axes.legend()
    figure.savefig(out / "beam_spin_up.png", dpi=150)
    print(f"figure: {out / 'beam_spin_up.png'}")
