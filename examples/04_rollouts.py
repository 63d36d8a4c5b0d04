"""4096 different arms in one rollout, and a gradient through time to tune one controller for all."""

import argparse
import time

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
    args = parser.parse_args()
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
    began = time.perf_counter()
    with torch.no_grad():
        qs, _ = ts.rollout(arms, q, qd, controller(gains), steps=args.steps, dt=6e-3)
    spent = time.perf_counter() - began
    print(f"{args.arms} different arms, {args.steps} steps of 6 ms: {spent:.1f} s,", end=" ")
    print(f"{args.arms * args.steps / spent / 1e3:.0f} thousand steps a second")
    miss = (qs[:, -1] - goal).abs().amax(-1)
    print(
        f"largest joint error at the end [rad]: median {miss.median():.3f}, worst {miss.max():.3f}"
    )

    # Gradient through time, on 64 of the arms; segments of 10 steps bound the memory.
    few = randomised(arm, 64, generator)
    state = q[:1].expand(64, -1), torch.zeros(64, arm.num_dof)
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


if __name__ == "__main__":
    main()
