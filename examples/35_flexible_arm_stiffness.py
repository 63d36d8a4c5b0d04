"""Stiffness and damping of a flexible arm, identified from the motion of its tip.

The arm falls from rest, and a camera measures its tip to a tenth of a millimeter. Gradients through the
rollouts of all motions at once find the stiffness and damping of each mode of both links.
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
g, q = torch.Generator().manual_seed(0), torch.zeros(8, truth.num_dof, dtype=torch.float64)
for name in ("upper_joint", "lower_joint"):
    q[:, truth.dof_slice(name)] = 3 * torch.rand(8, 1, generator=g, dtype=q.dtype) - 1.5


def tip(mech: ts.Mechanism | ts.Dynamics) -> torch.Tensor:
    """Positions of the tip of the arm along all motions, `[8, steps + 1, 3]` [m]."""
    run = ts.rollout(mech, ts.State(q, 0 * q), steps=STEPS, dt=DT, method="rk4")
    return ts.frame_pose(truth, run.q, "lower/tip").position


measured = tip(truth) + NOISE * torch.randn(8, STEPS + 1, 3, generator=g, dtype=q.dtype)
fields = ("modal_stiffness", "modal_damping")
names = [f"{link}_modes.{field}" for link in ("upper", "lower") for field in fields]
layer = ts.Dynamics(nominal, {name: ts.learn.Positive() for name in names}, fused=True)
optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=80, line_search_fn="strong_wolfe")


def loss() -> torch.Tensor:
    """Mean square error of the tip, relative to the noise, with its gradient."""
    optimizer.zero_grad()
    error = ((tip(layer) - measured) / NOISE).square().mean()
    error.backward()
    return error.detach()


first, _, last = loss(), optimizer.step(loss), loss()
errors = " mm, ".join(f"{1e3 * NOISE * x**0.5:.3f}" for x in (first, last))
print(f"error of the tip: {errors} mm\nratio to the true value    nominal  identified")
modes = [name for name in truth.coordinate_names if "modes" in name]
for field in fields:
    robots = (truth, nominal, layer.mechanism())
    true, first, last = (getattr(robot, field).diagonal().detach() for robot in robots)
    for name, a, b in zip(modes, first / true, last / true, strict=True):
        print(f"{field[6:]:9s} of {name:16s} {a:8.3f} {b:9.3f}")
