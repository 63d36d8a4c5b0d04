"""A quadruped follows commands of velocity, trained by SHAC, and tested in MuJoCo.

The same from a shell: python -m torchsko train QuadrupedFlat --out DIR --dtype float32 --minutes 4. Needs
pip install ".[envs,view]".
"""

from math import inf

import matplotlib.pyplot as plt
import torch
from command_line import parse_options, save_figure

import torchsko as ts

COMMANDS = torch.tensor([[0.0, 0, 0], [0.8, 0, 0], [-0.5, 0, 0], [0, 0.3, 0], [0.5, 0, 0.8]])
"""Forward and sideward velocity [m/s], and turning rate [rad/s]."""


def velocities(policy, seconds=4.0):
    """Velocities in the axes of the body, like the commands, `[steps, commands, 3]`."""
    env = ts.envs.make(
        "QuadrupedFlat", len(COMMANDS), dtype=torch.float32, autoreset="off", command_time=inf
    )
    state, found = env.reset(), []
    state = state._replace(memory=state.memory | {"command": COMMANDS})
    with torch.no_grad():
        for _ in range(round(seconds / env.dt)):
            state, transition = env.step(state, policy(state.observation))
            seen = transition.observation  # begins with the velocity, and 0.3 times the rate
            found.append(torch.cat([seen[:, :2], seen[:, 5:6] / 0.3], -1))
    return torch.stack(found), env.dt


def main():
    args = parse_options(__doc__, minutes=4.0, updates=(0, "instead of minutes"), envs=64, seed=1)
    limit = {"updates": args.updates} if args.updates else {"minutes": args.minutes}
    policy = ts.envs.train(
        "QuadrupedFlat", out=args.out / "quadruped", seed=args.seed, num_envs=args.envs,
        dtype=torch.float32, resume=True, evaluate=False, **limit,
    )  # fmt: skip
    env = ts.envs.make("QuadrupedFlat", num_envs=8, dtype=torch.float32)
    here, (there,) = (
        test(env, policy, 8) for test in (ts.envs.evaluate, ts.envs.evaluate_in_mujoco)
    )
    found, dt = velocities(policy)
    error = (found[len(found) // 2 :].mean(0) - COMMANDS).abs().mean(0)
    print(f"return {here.total.mean():.0f} here, {there.total.mean():.0f} in MuJoCo")
    print(f"errors {error[0]:.3f} and {error[1]:.3f} m/s, {error[2]:.3f} rad/s")
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
    for axis, k, name in zip(axes, range(3), ("forward", "sideward", "turning"), strict=True):
        t = dt * torch.arange(len(found))
        for j, command in enumerate(COMMANDS):
            axis.plot(t, found[:, j, k], color=f"C{j}")
            axis.axhline(command[k], color=f"C{j}", ls=":")
        axis.set(xlabel="time [s]", ylabel=name)
    save_figure(figure, args.out / "quadruped_commands.png")


if __name__ == "__main__":
    main()
