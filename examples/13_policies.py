"""Controls by gradients through rollouts: a swing-up by torques alone, and two policies that learn.

A double pendulum is swung up by a series of torques; small networks learn to balance a pole on a cart and to
bring a two-link arm to any target, over many starts at once. Needs pip install ".[plot]" in a clone.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import torchsko as ts

DT = 0.02  # s


class Policy(torch.nn.Module):
    """A network from the miss and the state to joint forces; it remembers the target of its sample."""

    def __init__(self, target, force):
        super().__init__()
        self.target, self.force = target, force
        layers = torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
        self.network = torch.nn.Sequential(*layers).double()

    def start(self, q, qd):
        """What is remembered."""
        return self.target

    def act(self, t, dt, q, qd, target):
        """Joint forces, and what is remembered then."""
        return self.force * self.network(torch.cat([q - target, qd, q], -1)), target


def two_links(first):
    """A rod of a kilogram and half a metre, on a joint like it or on a cart."""
    builder, turning = ts.MechanismBuilder(first), torch.eye(3).mul(0.02).tolist()
    cart, axis = first == "prismatic", (0.0, 1.0, 0.0)
    builder.link("one", mass=1.0, com=(0, 0, 0 if cart else -0.25), inertia=turning)
    builder.joint("first", first, child="one", axis=(1, 0, 0) if cart else axis, damping=0.1)
    builder.link("two", mass=1.0, com=(0, 0, -0.25), inertia=turning)
    place = (0, 0, 0 if cart else -0.5)
    joint = {"child": "two", "parent": "one", "position": place, "axis": axis}
    builder.joint("second", "revolute", damping=0.1, **joint)
    return builder.build()


def descend(name, parameters, loss, iterations):
    optimiser, found = torch.optim.Adam(parameters, lr=0.02), []
    for _ in range(iterations):
        optimiser.zero_grad()
        found.append(loss())
        found[-1].backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
    found = [x.item() for x in found]
    print(f"{name}: loss {found[0]:.3g} at first, {min(found):.3g} after {iterations} iterations")
    plt.semilogy(found, label=name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in (("iterations", 300), ("steps", 100), ("batch", 64)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--eager", action="store_true", help="no kernels")
    parser.add_argument("--out", type=Path, default=Path(), help="an existing folder")
    args = parser.parse_args()
    torch.manual_seed(0)
    arm, cart = (two_links(first) for first in ("revolute", "prismatic"))
    fast = {mech: mech if args.eager else ts.fuse(mech) for mech in (arm, cart)}
    tau, zero = torch.zeros(args.steps, 2).double().requires_grad_(), torch.zeros(2).double()
    up = torch.tensor([torch.pi, 0.0]).double()
    goals = 2 * torch.rand(args.batch, 2).double() - 1
    upright, near = up.flip(0).expand(args.batch, 2), up.flip(0) + 0.2 * goals
    push, reach = Policy(upright, torch.tensor([10.0, 0.0]).double()), Policy(goals, 5.0)

    def swung():
        q, qd = ts.rollout(fast[arm], zero, zero, 10 * tau, args.steps, DT)
        return (q[-1] - up).square().sum() + 0.1 * qd[-1].square().sum()

    def missed(mech, start, policy):
        kernels = None if args.eager else True
        q, _ = ts.rollout(fast[mech], start, 0 * start, policy, args.steps, DT, fused=kernels)
        return (q - policy.target[:, None]).square().mean()

    balance, reaching = (lambda: missed(cart, near, push)), (lambda: missed(arm, 0 * goals, reach))
    descend("swing-up of a double pendulum", [tau], swung, args.iterations)
    descend("balance of a pole on a cart", [*push.parameters()], balance, args.iterations)
    descend("reaching of any target", [*reach.parameters()], reaching, args.iterations)
    plt.gca().set(xlabel="iteration", ylabel="loss")
    plt.legend()
    plt.savefig(args.out / "policies.png")


if __name__ == "__main__":
    main()
