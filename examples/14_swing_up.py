"""Swing up a double pendulum with motors that are too weak to lift it, by gradients through the rollout.

128 random torque series are improved at once: one kernel simulates all of them, another computes all
gradients. The figure shows the best motion as a film strip. Needs pip install ".[plot]".
"""

import time

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

DT = 0.02  # s
LIMIT = torch.tensor([6.0, 3.0]).double()  # N m; held out straight, the pendulum weighs 9.8 N m


def double_pendulum():
    """Two rods of a kilogram and half a meter, hanging at q = 0."""
    builder, inertia = ts.MechanismBuilder("pendulum"), torch.eye(3).mul(0.02).tolist()
    for name, parent, height in (("first", None, 0.0), ("second", "first rod", -0.5)):
        builder.link(f"{name} rod", mass=1.0, com=(0, 0, -0.25), inertia=inertia)
        joint = {"child": f"{name} rod", "position": (0, 0, height), "axis": (0, 1, 0)}
        builder.joint(name, "revolute", parent=parent, damping=0.02, **joint)
    return builder.build()


def main():
    args = parse_options(
        __doc__, iterations=900, steps=200, guesses=128, eager=(False, "no kernels")
    )
    mech = double_pendulum()
    plant = mech if args.eager else ts.fuse(mech)
    zero, up = torch.zeros(2).double(), torch.tensor([torch.pi, 0.0]).double()

    # Smooth initial guesses: linear interpolation of a few random values.
    g = torch.Generator().manual_seed(0)
    knots = torch.randn(args.guesses, 2, 12, generator=g).double()
    u = torch.nn.functional.interpolate(knots, args.steps, mode="linear").mT.clone()
    u.requires_grad_()
    optimizer = torch.optim.Adam([u], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.iterations)

    def simulate():
        tau = LIMIT * torch.tanh(u)
        return tau, *ts.rollout(
            plant, ts.State(zero, zero), tau, steps=args.steps, dt=DT, method="rk4"
        )[:2]

    start, losses = time.perf_counter(), []
    for iteration in range(args.iterations):
        tau, q, qd = simulate()
        # 1 - cos ignores whole turns; the loss is the mean over the last quarter of a second.
        error = (1 - torch.cos(q - up)).sum(-1) + 0.05 * qd.square().sum(-1)
        loss = error[:, -12:].mean(-1) + 1e-5 * u.square().mean((-1, -2))
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if iteration % 100 == 0:
            print(f"iteration {iteration}: best loss {loss.min():.2e}", flush=True)
    best = int(losses[-1].argmin())
    tau, q, qd = (x[best].detach() for x in simulate())
    energy = ts.kinetic_energy(mech, q[-1], qd[-1]) + ts.potential_energy(mech, q[-1])
    off = torch.rad2deg(torch.remainder(q[-1] - up + torch.pi, 2 * torch.pi) - torch.pi)
    spent, weight = time.perf_counter() - start, ts.potential_energy(mech, up)
    print(f"{args.guesses} guesses, {args.iterations} iterations: {spent:.1f} s;", end=" ")
    print("torques up to", " and ".join(f"{x:.2f}" for x in tau.abs().amax(0)), "N m")
    print(f"best: {off[0]:.2f} and {off[1]:.2f} degrees from upright at the end, speeds", end=" ")
    print(f"{qd[-1, 0]:.3f} and {qd[-1, 1]:.3f} rad/s, energy", end=" ")
    print(f"{energy:.2f} J at the end, {weight:.2f} J upright")

    figure = plt.figure(figsize=(12, 6))
    grid = figure.add_gridspec(2, 2, height_ratios=[1, 2])
    strip, middle, right = (figure.add_subplot(x) for x in (grid[0, :], grid[1, 0], grid[1, 1]))
    angle = torch.stack([q[:, 0], q.sum(-1)], -1)
    rods = -0.5 * torch.stack([angle.sin(), angle.cos()], -1)
    frames = torch.linspace(0, len(q) - 1, 15).round().long().tolist()
    for column, k in enumerate(frames):
        ends = torch.cat([torch.zeros(1, 2), rods[k].cumsum(0)]) + torch.tensor([2.2 * column, 0.0])
        strip.plot(*ends.T, "o-", color="C0", ms=3)
        strip.text(2.2 * column, -1.35, f"{DT * k:.2f} s", ha="center", fontsize=7)
    strip.set(aspect="equal", ylim=(-1.5, 1.1), title="the best motion")
    strip.axis("off")
    t = DT * torch.arange(len(q))
    for k, name in enumerate(("first", "second")):
        middle.plot(t, q[:, k], label=f"{name} angle [rad]")
        middle.step(t[:-1], tau[:, k], label=f"{name} torque [N m]", lw=0.8, where="post")
    middle.margins(y=0.2)  # space for the legend above the curves
    middle.set(xlabel="time [s]")
    middle.legend(fontsize=7, loc="upper center", ncols=2)
    losses = torch.stack(losses)
    right.semilogy(losses, lw=0.5, color="0.6")
    right.semilogy(losses[:, best], color="C3")
    right.set(xlabel="iteration", title="loss of each guess; the best in red")
    figure.tight_layout()
    save_figure(figure, args.out / "swing_up.png")


if __name__ == "__main__":
    main()
