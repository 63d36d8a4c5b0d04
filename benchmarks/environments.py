"""Tasks of Gymnasium beside Gymnasium: errors of one step, speed on one core, and the start of training.

Usage: python benchmarks/environments.py [--tasks Hopper-v5 ...] [--batch 1024] [--passes 5] [--slot 1]
(> benchmarks/results/environments.txt)

The error is the largest difference of observations and rewards over 200 random steps of 4 environments, each
one step after both had the same state; the solver of MuJoCo iterates to rounding. The speed is in steps of an
environment per second of processor time, and with a gradient over 8 steps, in float64 and float32, beside
``SyncVectorEnv`` of Gymnasium with 16 environments. Actions are random. Ratios are medians over the passes of
one interleaved run, with the extremes in brackets. The last lines are processor seconds from the start of a
process to the end of the first update of SHAC, of ``environment_steps.py``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import torch
from environment_steps import first_updates
from report import origin
from timing import interleaved, ratio

import torchsko as ts
from torchsko.envs import Draws

TASKS = (
    *("InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Reacher-v5", "Swimmer-v5", "Hopper-v5"),
    *("Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "HumanoidStandup-v5"),
)
HORIZON = 8
"""Steps of a rollout with a gradient."""

NUM_PEERS = 16
"""Environments of Gymnasium."""

SETTLING_STEPS = 30
"""Steps before the measurement, after which some environments have fallen."""


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


def own_step(
    name: str, dtype: torch.dtype, batch: int, *, gradient: bool = False
) -> Callable[[], object]:
    """A step of torchsko, or a rollout with a gradient to the actions."""
    env = ts.envs.make(name, batch, dtype=dtype)
    state = env.reset(random_ages=True)
    kind = {"dtype": dtype, "generator": torch.Generator().manual_seed(0)}

    def advance(requires_grad: bool) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal state
        action = env.action_high * (2 * torch.rand(batch, env.action_size, **kind) - 1)
        action.requires_grad_(requires_grad)
        state, found = env.step(state, action)
        return action, found.reward.sum()

    def rollout() -> None:
        nonlocal state
        actions, rewards = zip(*(advance(True) for _ in range(HORIZON)), strict=True)
        torch.autograd.grad(sum(rewards), actions)
        state = ts.envs.detached(state)

    for _ in range(SETTLING_STEPS):
        advance(False)
    if gradient:
        rollout()  # builds the kernel
        return rollout
    return lambda: advance(False)


def peer_step(name: str) -> Callable[[], object]:
    """A step of Gymnasium's vector environment."""
    envs = gymnasium.make_vec(name, num_envs=NUM_PEERS, vectorization_mode="sync")
    envs.reset(seed=0)
    return lambda: envs.step(envs.action_space.sample())


def row(name: str, batch: int, passes: int, slot: float) -> str:
    """A row of the table."""
    error, flags = parity(name)
    calls = {
        "peer": (NUM_PEERS, peer_step(name)),
        "float64": (batch, own_step(name, torch.float64, batch)),
        "float32": (batch, own_step(name, torch.float32, batch)),
    }
    for dtype in (torch.float64, torch.float32):
        calls[f"gradient {dtype}"] = (batch * HORIZON, own_step(name, dtype, batch, gradient=True))
    seconds = interleaved({x: y[1] for x, y in calls.items()}, passes, slot, time.process_time)
    each = {x: [y / calls[x][0] for y in found] for x, found in seconds.items()}
    rates = {x: f"{1 / statistics.median(found):,.0f}" for x, found in each.items()}
    cells = [f"{rates[x]} ({ratio(each['peer'], each[x])})" for x in list(calls)[1:]]
    return f"| {name} | {error:.1e} | {flags} | {rates['peer']} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--slot", type=float, default=1.0, help="seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(origin(1))
    print(
        "\n| task | error | flags equal | Gymnasium [1/s] | float64 | float32 | gradient, float64 "
        "| gradient, float32 |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for name in options.tasks:
        print(row(name, options.batch, options.passes, options.slot), flush=True)
    print("\n| train to first update [s] | cold | warm |\n| --- | --- | --- |")
    for name in ("Hopper-v5", "Ant-v5"):
        (cold, _), (warm, _) = first_updates(name, Path(__file__).resolve().parents[1])
        print(f"| {name} | {cold:.1f} | {warm:.1f} |", flush=True)


if __name__ == "__main__":
    main()
