"""A flexible beam turns by a right angle and stops without vibration, by trajectory optimization.

Gradients through the rollout find a torque of the hub after which hub and modes are at rest. A bang-bang
torque, which turns a rigid beam in the same time, leaves the flexible beam vibrating.
"""

import torch

import torchsko as ts

ANGLE, TIME, STEPS = torch.pi / 2, 1.5, 150
"""Angle of the slew [rad], its duration [s], and its number of time steps."""

DT, LENGTH, DENSITY, LOAD = TIME / STEPS, 1.0, 0.6, 0.2
"""Time step [s], length [m], mass per length [kg/m], and mass at the tip [kg]."""

beam = ts.FlexibleBody.beam(LENGTH, DENSITY, EI_z=4.0, shapes=(0, 2)).damped(0.002)
builder = ts.MechanismBuilder("slewing beam").flexible_link("beam", beam)
builder.link("load", mass=LOAD, inertia=(1e-3 * torch.eye(3)).tolist())
builder.joint("hub", "revolute", child="beam", axis=(0, 0, 1))
builder.joint("mount", "fixed", parent="beam/tip", child="load")
mech = builder.build(gravity=(0, 0, 0))
fast = ts.fuse(mech)
zero = torch.zeros(mech.num_dof, dtype=torch.float64)
goal = zero.clone()
goal[mech.dof_slice("hub")] = ANGLE


def slew(u: torch.Tensor, rest: int = 0) -> ts.Trajectory:
    """Motion under the torques u of the hub, `[STEPS]`, and `rest` steps without torque after them."""
    tau = torch.nn.functional.pad(u[:, None], (0, mech.num_dof - 1, 0, rest))
    start = ts.State(zero, zero)
    return ts.rollout(fast, start, tau, steps=STEPS + rest, dt=DT, method="rk4")


inertia = DENSITY * LENGTH**3 / 3 + LOAD * LENGTH**2
bang = torch.full((STEPS,), 4 * ANGLE * inertia / TIME**2, dtype=torch.float64)
bang[STEPS // 2 :] *= -1
u = bang.clone().requires_grad_()
optimizer = torch.optim.LBFGS([u], max_iter=200, history_size=50, line_search_fn="strong_wolfe")


def loss() -> torch.Tensor:
    """Effort, and distance from rest at the goal."""
    optimizer.zero_grad()
    run = slew(u)
    miss = torch.cat([run.q[-1] - goal, run.qd[-1]])
    total = 1e4 * miss.square().sum() + DT * u.square().sum()
    total.backward()
    return total.detach()


optimizer.step(loss)
for name, torque in (("bang-bang", bang), ("optimized", u.detach())):
    run = slew(torque, rest=STEPS)
    tip = ts.frame_pose(mech, run.q[STEPS:], "beam/tip").position
    off = 1e3 * (tip - tip.new_tensor([0.0, LENGTH, 0.0])).norm(dim=-1).max()
    energy = ts.total_energy(mech, run.q[STEPS], run.qd[STEPS])
    print(f"{name}: torque up to {torque.abs().max():.2f} N m, energy at the end {energy:.1e} J,")
    print(f"  tip up to {off:.3f} mm away from the goal in the {TIME} s after the slew")
