"""Tune one controller for 1024 different arms by gradient descent through their rollouts.

The arms differ in masses, inertias and damping. One PD controller with gravity compensation of the nominal
arm moves all of them to a goal; the gradient of the mean squared error through the whole motion tunes its
gains. The figure shows the joint errors before and after. Needs pip install ".[plot]".
"""

import time

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

DT = 0.005  # s


def randomize(arm, count, generator):
    """`count` robots with other masses, inertias and damping, in one mechanism."""
    options = {"generator": generator, "dtype": arm.dtype}
    scale = 0.8 + 0.4 * torch.rand(count, arm.num_bodies, **options)
    return arm.replace(
        mass=scale * arm.mass,
        inertia=scale[..., None, None] * arm.inertia,
        damping=0.1 + 0.2 * torch.rand(count, arm.num_dof, **options),
        friction=torch.zeros_like(arm.friction),
        armature=torch.full_like(arm.armature, 0.1),  # inertia of the motors [kg m^2]
    )


def main():
    args = parse_options(__doc__, arms=1024, steps=200, iterations=30)
    arm = ts.load(ts.robots.panda)
    arms = randomize(arm, args.arms, torch.Generator().manual_seed(0))
    arms = ts.fuse(arms, inputs=("mass", "inertia", "damping"))  # they differ between samples
    goal, zero = (arm.lower + arm.upper) / 2, torch.zeros_like(arm.lower)
    hold = ts.inverse_dynamics(arm, goal, zero, zero)  # gravity compensation of the nominal arm
    q = (goal + 0.3).expand(args.arms, -1)

    stiffness = torch.tensor([60.0, 60.0, 30.0, 30.0, 5.0, 5.0, 1.0], dtype=arm.dtype)
    log_gains = torch.stack([stiffness, stiffness / 10]).log().requires_grad_()

    def control(t, q, qd):
        return hold - log_gains[0].exp() * (q - goal) - log_gains[1].exp() * qd

    def joint_errors():
        qs = ts.rollout(arms, ts.State(q, 0 * q), control, steps=args.steps, dt=DT, fused=True).q
        return (qs - goal).square().mean(-1).sqrt()  # [arms, steps + 1] rad

    print("Building the kernels of the rollout and of its gradient ...", flush=True)
    start = time.perf_counter()
    joint_errors().square().mean().backward()
    print(f"  {time.perf_counter() - start:.1f} s (stored on disk for the next run)")

    before = joint_errors().detach()
    optimizer = torch.optim.Adam([log_gains], lr=0.1)
    start = time.perf_counter()
    for iteration in range(args.iterations):
        optimizer.zero_grad()
        loss = joint_errors().square().mean()
        loss.backward()
        optimizer.step()
        if iteration % 5 == 0 or iteration == args.iterations - 1:
            print(f"  iteration {iteration:2}: mean squared error {loss:.5f} rad^2", flush=True)
    rate = args.arms * args.steps * args.iterations / (time.perf_counter() - start)
    print(f"{rate / 1e3:.0f} thousand steps per second, gradients included")
    after = joint_errors().detach()
    for name, gain in zip(("stiffness", "damping"), log_gains.detach().exp(), strict=True):
        print(f"  {name:9}", " ".join(f"{g:7.1f}" for g in gain))

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    t = DT * torch.arange(args.steps + 1)
    for name, error in (("before", before), ("after", after)):
        rms = error.square().mean(-1).sqrt()
        print(f"joint error, rms over the motion, {name} tuning:", end=" ")
        print(f"median {rms.median():.3f}, largest {rms.max():.3f} rad")
        low, median, high = error.quantile(torch.tensor([0.01, 0.5, 0.99], dtype=arm.dtype), 0)
        axes[0].plot(t, median, label=f"{name} tuning")
        axes[0].fill_between(t, low, high, alpha=0.3)
        axes[1].hist(rms.tolist(), bins=40, alpha=0.6)
    axes[0].set(xlabel="time [s]", ylabel="joint error [rad]", title="median and 98 % of the arms")
    axes[1].set(xlabel="rms joint error over the motion [rad]", ylabel="arms")
    axes[0].legend()
    figure.tight_layout()
    save_figure(figure, args.out / "rollouts.png")


if __name__ == "__main__":
    main()
