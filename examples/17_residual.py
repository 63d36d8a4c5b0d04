"""Learn an unmodeled force: a rigid model plus a network, against a network alone.

A cable pulls at three joints of a Panda, and the library has no term for it. A network of the torque that a
fit leaves and a network for the whole torque use the same log. Both are tested on motions like it and on
faster ones.
Needs pip install ".[identify]".
"""

from itertools import pairwise

import torch
from command_line import parse_options, save_figure

import torchsko as ts
from torchsko.identification.friction import Offset, SmoothCoulomb, Viscous
from torchsko.utils.optional_dependencies import require

TERMS = [Viscous(), SmoothCoulomb(0.05), Offset()]
RATE = 250.0


def measured(robot, seed, seconds, faster=1.0, noise=0.05):
    """States of a random motion, and the torques of robot, friction and cable."""
    g = torch.Generator().manual_seed(seed)
    motion = ts.identification.exciting_trajectory(
        robot, period=60.0, harmonics=24, limit_fraction=0.5, generator=g
    )
    t = torch.arange(int(seconds * RATE), dtype=robot.dtype) / RATE
    q, qd, qdd = motion(faster * t)
    qd, qdd = faster * qd, faster**2 * qdd
    tau = ts.inverse_dynamics(robot, q, qd, qdd) + 0.5 * qd + 0.4 * (qd / 0.05).tanh()
    tau = tau + 1.5 * (2 * q.roll(1, -1)).tanh()  # the cable couples each joint to the next one
    return t, (q, qd, qdd), tau + noise * torch.randn(tau.shape, generator=g, dtype=tau.dtype)


def network(states, target, steps):
    """A network of states that is trained on a target, `[samples, joints]`."""
    x, size = torch.cat(states, -1), target.std(0)
    middle, spread = x.mean(0), x.std(0)
    sizes = (x.shape[1], 64, 64, target.shape[1])
    layers = [torch.nn.Linear(a, b, dtype=x.dtype) for a, b in pairwise(sizes)]
    net = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (net((x - middle) / spread) - target / size).square().mean().backward()
        optimizer.step()
    return lambda *s: (size * net((torch.cat(s, -1) - middle) / spread)).detach()


def main():
    args = parse_options(
        __doc__, seconds=(60.0, "of the log"), steps=(800, "training steps of each network")
    )
    torch.manual_seed(0)
    panda = ts.load(ts.robots.panda)
    names = panda.joint_names
    robot = panda.lock({names[k]: 0.0 for k in (0, 2, 4, 6)})
    nominal = robot.replace(mass=1.15 * robot.mass, com=robot.com + 0.01)
    t, states, tau = measured(robot, 0, args.seconds)
    log = ts.identification.Log(t.numpy(), *(x.numpy() for x in (states[0], tau, states[1])))
    rigid = ts.identification.identify(nominal, log, joint_terms=TERMS, cutoff=5.0)
    left = network(states, tau - rigid.inverse_dynamics(*states), args.steps)
    models = {
        "rigid": rigid.inverse_dynamics,
        "rigid + network": lambda *s: rigid.inverse_dynamics(*s) + left(*s),
        "network alone": network(states, tau, args.steps),
    }
    speeds, rows = (1.0, 1.5, 2.0), {}
    print("torque error over the standard deviation of the torque, on unseen motions\n")
    print(" " * 16 + "".join(f"{f'{x:g} x speed':>12}" for x in speeds))
    for name, model in models.items():
        rows[name] = []
        for faster in speeds:
            _, s, force = measured(robot, 1, 20.0, faster, noise=0.0)
            error = (model(*s) - force).square().mean(0).sqrt() / force.std(0)
            rows[name].append(float(error.mean()))
        print(f"{name:16}" + "".join(f"{x:12.3f}" for x in rows[name]))
    plt = require("matplotlib.figure", "identify")
    figure = plt.Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    for name, errors in rows.items():
        ax.semilogy(speeds, errors, "o-", label=name)
    ax.set_xlabel("speed relative to the log")
    ax.set_ylabel("torque error / standard deviation")
    ax.legend()
    save_figure(figure, args.out / "residual.png", dpi=110)


if __name__ == "__main__":
    main()
