"""Train two policies by gradients through rollouts: balance a pole on a cart, and reach any target.

Small networks, with new random starts or targets in each iteration. All steps are one kernel, their
gradient is another, and the weights are inputs of both. The result is tested on new samples, for twice the
time. Needs pip install ".[plot]".
"""

import time

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

DT = 0.02  # s
FORCE = {"balance": torch.tensor([20.0, 0.0]).double(), "reaching": 8.0}  # N, N m


def two_links(first):
    """A rod of 1 kg and 0.5 m, on another rod or on a cart."""
    builder, turning = ts.MechanismBuilder(first), torch.eye(3).mul(0.02).tolist()
    cart, axis = first == "prismatic", (0.0, 1.0, 0.0)
    builder.link("one", mass=1.0, com=(0, 0, 0 if cart else -0.25), inertia=turning)
    builder.joint("first", first, child="one", axis=(1, 0, 0) if cart else axis, damping=0.1)
    builder.link("two", mass=1.0, com=(0, 0, 0.25 if cart else -0.25), inertia=turning)
    joint = {"child": "two", "parent": "one", "position": (0, 0, 0 if cart else -0.5), "axis": axis}
    return builder.joint("second", "revolute", damping=0.1, **joint).build()


class Policy(torch.nn.Module, ts.actuators.Controller):
    """A network from the error and the state to joint forces; its memory is the target of its sample."""

    def __init__(self, force):
        super().__init__()
        self.target, self.force = None, force
        layers = torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2), torch.nn.Tanh()
        self.network = torch.nn.Sequential(*layers).double()

    def initial_memory(self, q, qd):
        """What is remembered."""
        return self.target

    def act(self, t, dt, q, qd, target):
        """Joint forces and the new memory."""
        return self.force * self.network(torch.cat([q - target, qd, q], -1)), target


def target_error(name, mech, policy, batch, steps, fused):
    """Distance of the joints from their target, `[batch, steps + 1]`."""
    some, none = 2 * torch.rand(batch, 2).double() - 1, torch.zeros(batch, 2).double()
    policy.target, start = (none, 0.5 * some) if name == "balance" else (some, none)
    qs = ts.rollout(
        mech, ts.State(start, none), policy, steps=steps, dt=DT, method="implicit", fused=fused
    ).q
    return (qs - policy.target[:, None]).norm(dim=-1)


def main():
    args = parse_options(__doc__, iterations=400, steps=100, batch=128, eager=(False, "no kernels"))
    torch.manual_seed(0)
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    for (name, force), first, axis in zip(
        FORCE.items(), ("prismatic", "revolute"), axes[1:], strict=True
    ):
        mech, policy = two_links(first), Policy(force)
        setup = (name, mech if args.eager else ts.fuse(mech), policy, args.batch)
        fused, began, rewards = None if args.eager else True, time.perf_counter(), []
        before = target_error(*setup, 2 * args.steps, fused)[:, -1].median()
        optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
        for _ in range(args.iterations):
            optimizer.zero_grad()
            loss = target_error(*setup, args.steps, fused).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            rewards.append(-loss.item())
        after = target_error(*setup, 2 * args.steps, fused).detach()
        print(
            f"{name}: reward {rewards[0]:.3f} at first, {rewards[-1]:.3f} after {args.iterations} iterations "
            f"({time.perf_counter() - began:.0f} s); {2 * DT * args.steps:g} s from new starts, "
            f"error: median "
            f"{before:.3g} untrained, {after[:, -1].median():.3g} trained, worst {after[:, -1].max():.3g}"
        )
        axes[0].plot(rewards, label=name)
        axis.plot(DT * torch.arange(after.shape[1]), after[:40].T, lw=0.6, color="C0")
        axis.set(xlabel="time [s]", title=f"{name}: error of 40 new samples", ylim=(0, 1.5))
    axes[0].set(xlabel="iteration", title="reward: negative mean error", ylim=(-2, 0))
    axes[0].legend()
    figure.tight_layout()
    save_figure(figure, args.out / "policies.png")


if __name__ == "__main__":
    main()
