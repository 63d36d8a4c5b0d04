"""Stiffness and damping of a flexible arm, identified from the motion of its tip.

The arm falls from rest, and a camera measures its tip with an error of a tenth of a millimeter. Gradients
through the rollouts of all motions at once find the stiffness and damping of each mode of both links.
"""

import torch

import torchsko as ts

NOISE, STEPS, DT = 1e-4, 100, 5e-3
"""Error of the measured tip [m], number of steps, and time step [s]."""


def arm(upper: float, lower: float, ratio: float) -> ts.Mechanism:
    """Two links in a vertical plane with these bending stiffnesses [N m^2] and damping ratio."""
    builder = ts.MechanismBuilder("arm")
    for name, EI, parent in (("upper", upper, None), ("lower", lower, "upper/tip")):
        link = ts.FlexibleBody.beam(length=0.8, density=0.6, EI_y=EI, shapes=(2, 0))
        builder.flexible_link(name, link.damped(ratio))
        builder.joint(f"{name}_joint", "revolute", parent=parent, child=name, axis=(0, 1, 0))
    return builder.build()


truth, nominal = arm(1.5, 0.8, 0.05), arm(3.0, 3.0, 0.02)
g = torch.Generator().manual_seed(0)
q = torch.zeros(8, truth.num_dof, dtype=torch.float64)
for name in ("upper_joint", "lower_joint"):
    q[:, truth.dof_slice(name)] = 3 * torch.rand(8, 1, generator=g, dtype=q.dtype) - 1.5
start = ts.State(q, torch.zeros_like(q))


def tip(mech: ts.Mechanism | ts.Dynamics) -> torch.Tensor:
    """Positions of the tip of the arm along all motions, `[8, steps + 1, 3]` [m]."""
    run = ts.rollout(mech, start, steps=STEPS, dt=DT, method="rk4")
    return ts.frame_pose(truth, run.q, "lower/tip").position


measured = tip(truth)
measured = measured + NOISE * torch.randn(measured.shape, generator=g, dtype=q.dtype)
fields = [
    f"{link}_modes.modal_{x}" for x in ("stiffness", "damping") for link in ("upper", "lower")
]
layer = ts.Dynamics(nominal, {field: ts.learn.Positive() for field in fields}, fused=True)
optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
for iteration in range(151):
    optimizer.zero_grad()
    error = (tip(layer) - measured).square().mean().sqrt()
    error.backward()
    optimizer.step()
    schedule.step()
    if iteration % 30 == 0:
        print(f"iteration {iteration:3d}: error of the tip {1e3 * error.item():6.3f} mm")

print("ratio to the true value    nominal  identified")
for x in ("stiffness", "damping"):
    robots = (truth, nominal, layer.mechanism())
    true, first, last = (getattr(robot, f"modal_{x}").diagonal().detach() for robot in robots)
    modes = [name for name in truth.coordinate_names if "modes" in name]
    for name, a, b in zip(modes, first / true, last / true, strict=True):
        print(f"{x:9s} of {name:16s} {a:8.3f} {b:9.3f}")
