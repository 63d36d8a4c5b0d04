"""Tasks of Gymnasium beside Gymnasium: errors of one step and speed on one core.

Usage: python benchmarks/environments.py [--tasks Hopper-v5 ...] [--batch 1024] [--seconds 5]
(> benchmarks/results/environments.txt)

The error is the largest difference of observations and rewards over 200 random steps of 4 environments, each
one step after both had the same state; the solver of MuJoCo iterates to rounding. The speed is in steps of an
environment per second of processor time, in float64 and float32, and with a gradient over 8 steps, beside
``SyncVectorEnv`` of Gymnasium with 16 environments. Actions are random.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import gymnasium
import mujoco
import numpy as np
import torch
from report import origin

import torchsko as ts
from torchsko.envs import Draws

TASKS = (
    *("InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Reacher-v5", "Swimmer-v5", "Hopper-v5"),
    *("Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "HumanoidStandup-v5"),
)
HORIZON = 8
"""Steps of a rollout with a gradient."""


def physics_of(env: ts.envs.Environment, peers: list) -> ts.State:
    """The states of environments of Gymnasium."""
    qpos, qvel = (
        torch.tensor(np.array([getattr(peer.data, x) for peer in peers])) for x in ("qpos", "qvel")
    )
    q = env.world.mujoco.q_from(qpos)
    return ts.State(q, env.world.mujoco.qd_from(q, qvel), q.new_zeros(len(peers), 0))


def parity(name: str, steps: int = 200) -> tuple[float, bool]:
    """Largest difference after one step, and whether all flags are equal."""
    env = ts.envs.make(name, 4, autoreset="off")
    peers = [gymnasium.make(name).unwrapped for _ in range(4)]
    for seed, peer in enumerate(peers):
        peer.model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        peer.model.opt.tolerance, peer.model.opt.iterations = 0.0, 100
        peer.model.opt.ls_tolerance = 1e-12
        peer.reset(seed=seed)
    state = env.reset()._replace(physics=physics_of(env, peers))
    rows = [ts.State(*(x[k] for x in state.physics)) for k in range(4)]
    memories = [env.task.memory(env.world, x, Draws(None, x.q)) for x in rows]
    state = state._replace(memory={x: torch.stack([m[x] for m in memories]) for x in state.memory})
    rng, worst, flags = np.random.default_rng(0), 0.0, True
    for _ in range(steps):
        action = rng.uniform(-1, 1, (4, env.action_size)) * env.action_high.numpy()
        state, found = env.step(state, torch.tensor(action))
        theirs = [peer.step(x) for peer, x in zip(peers, action, strict=True)]
        observation, reward, ended = (np.array(x) for x in list(zip(*theirs, strict=True))[:3])
        pairs = (found.observation, observation), (found.reward, reward)
        worst = max(worst, *(np.abs(x.numpy() - y).max() for x, y in pairs))
        flags &= bool((found.terminated.numpy() == ended).all())
        state = state._replace(physics=physics_of(env, peers))
    return worst, flags


def rate(step: Callable[[], object], steps: int, seconds: float) -> float:
    """Environment steps per second of processor time."""
    for _ in range(3):
        step()
    start, count = time.process_time(), 0
    while time.process_time() - start < seconds:
        step()
        count += 1
    return count * steps / (time.process_time() - start)


def own_rate(name: str, dtype: torch.dtype, batch: int, seconds: float, gradient: bool) -> float:
    """Speed of torchsko, with or without a gradient to the actions."""
    env = ts.envs.make(name, batch, dtype=dtype)
    state = env.reset(random_ages=True)
    kind = {"dtype": dtype, "generator": torch.Generator().manual_seed(0)}

    def step() -> None:
        nonlocal state
        for _ in range(HORIZON if gradient else 1):
            action = env.action_high * (2 * torch.rand(batch, env.action_size, **kind) - 1)
            actions.append(action.requires_grad_(gradient))
            state, found = env.step(state, actions[-1])
            rewards.append(found.reward.sum())
        if gradient:
            torch.autograd.grad(sum(rewards), actions)
        state = ts.envs.detached(state)
        actions.clear()
        rewards.clear()

    actions: list[torch.Tensor] = []
    rewards: list[torch.Tensor] = []
    return rate(step, batch * (HORIZON if gradient else 1), seconds)


def peer_rate(name: str, seconds: float, batch: int = 16) -> float:
    """Speed of Gymnasium's vector environment on one core."""
    envs = gymnasium.make_vec(name, num_envs=batch, vectorization_mode="sync")
    envs.reset(seed=0)
    return rate(lambda: envs.step(envs.action_space.sample()), batch, seconds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(origin(1))
    print(
        "\n| task | error | flags equal | Gymnasium [1/s] | float64 | float32 | gradient, float64 |"
        "\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for name in options.tasks:
        error, flags = parity(name)
        peer = peer_rate(name, options.seconds)
        cases = ((torch.float64, False), (torch.float32, False), (torch.float64, True))
        own = [own_rate(name, kind, options.batch, options.seconds, x) for kind, x in cases]
        ratios = " | ".join(f"{x:,.0f} ({x / peer:.1f}x)" for x in own)
        print(f"| {name} | {error:.1e} | {flags} | {peer:,.0f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
