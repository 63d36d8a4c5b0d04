"""4096 different arms in one rollout, and a gradient through time to tune one controller for all.

Drawn are the errors of all arms before and after. Needs pip install ".[plot]" in a clone.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import torchsko as ts


def randomised(arm, count, generator):
    """`count` robots like `arm`: masses, inertias and joint friction differ, all in one mechanism."""
    like = {"generator": generator, "dtype": arm.dtype}
    scale = 0.8 + 0.4 * torch.rand(count, arm.num_bodies, **like)
    return arm.replace(
        mass=scale * arm.mass,
        inertia=scale[..., None, None] * arm.inertia,
        damping=0.1 + 0.2 * torch.rand(count, arm.num_dof, **like),
        friction=torch.zeros_like(arm.friction),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path(), help="folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    arm = ts.load(ts.robots.panda, dtype=torch.float32)
    arms = randomised(arm, args.arms, generator)
    goal = (arm.lower + arm.upper) / 2
    q, qd = (goal + 0.3).expand(args.arms, -1), torch.zeros(args.arms, arm.num_dof)
    hold = ts.inverse_dynamics(
        arm, goal, torch.zeros(7), torch.zeros(7)
    )  # the nominal arm's gravity

    def controller(gains):
        def torque(t, q, qd):
            return hold - gains[0].exp() * (q - goal) - gains[1].exp() * qd

        return torque

    stiffness = torch.tensor([60.0, 60, 30, 30, 5, 5, 1])
    gains = torch.stack([stiffness, stiffness / 10]).log()

    def missed(gains):
        """The joint error of every arm at every step, root of the mean square [rad]."""
        with torch.no_grad():
            qs, _ = ts.rollout(arms, q, qd, controller(gains), steps=args.steps, dt=6e-3)
        return (qs - goal).square().mean(-1).sqrt()

    began, before = time.perf_counter(), missed(gains)
    spent = time.perf_counter() - began
    print(f"{args.arms} different arms, {args.steps} steps of 6 ms: {spent:.1f} s,", end=" ")
    print(f"{args.arms * args.steps / spent / 1e3:.0f} thousand steps a second")

    # Gradient through time, on 64 of the arms; segments of 10 steps bound the memory.
    few, state = randomised(arm, 64, generator), (q[:1].expand(64, -1), torch.zeros(64, 7))
    gains = gains.requires_grad_()
    optimiser = torch.optim.Adam([gains], lr=0.3)
    print("\nTuning the gains of all joints by gradient descent through the rollout:")
    for iteration in range(6):
        qs, _ = ts.rollout(few, *state, controller(gains), steps=args.steps, dt=6e-3, checkpoint=10)
        loss = (qs - goal).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        print(f"  iteration {iteration}: mean squared error {loss.item():.4f}")
    for name, gain in zip(("stiffness", "damping"), gains.detach().exp(), strict=True):
        print(f"  {name:9}", " ".join(f"{g:7.1f}" for g in gain))

    after = missed(gains)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    for name, miss in (("before", before), ("after", after)):
        whole, t = miss.square().mean(-1).sqrt(), 6e-3 * torch.arange(args.steps + 1)
        print(f"joint error over the motion, {name} [rad]:", end=" ")
        print(f"median {whole.median():.3f}, worst {whole.max():.3f}")
        low, middle, high = miss.quantile(torch.tensor([0.01, 0.5, 0.99]), 0)
        axes[0].plot(t, middle, label=f"{name} tuning")
        axes[0].fill_between(t, low, high, alpha=0.3)
        axes[1].hist(whole.tolist(), bins=60, alpha=0.6)
    axes[0].set(xlabel="time [s]", ylabel="joint error [rad]", title="median, and 98 of 100")
    axes[1].set(xlabel="joint error over the motion [rad]", ylabel="arms")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(args.out / "rollouts.png", dpi=150)


if __name__ == "__main__":
    main()
