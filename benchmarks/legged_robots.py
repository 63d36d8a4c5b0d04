"""Robots with legs in MuJoCo after minutes of one core, by SHAC: velocity errors, distances, times to a fall.

    OMP_NUM_THREADS=1 python benchmarks/legged_robots.py QuadrupedFlat --seeds 1 2 3 --minutes 4

Minutes are processor time, with the building of kernels and their compilers, and without evaluations. The
best policy is judged in ``mj_step`` by 16 episodes without noise:

- Tasks with commands: one random command in 10 s. Errors of the velocity in the axes of the body, after the
  first second: those of its mean over an episode, and the mean distance to the command.
- QuadrupedRough: a command of 0.9 m/s ahead for 6.5 s, on another ground each time. Distances from the start.
- Humanoid-v5: 1000 steps of 0.015 s in Gymnasium's environment. Times to a fall. Training rewards an upright
  trunk at rest, observes positions and velocities, and integrates by Euler's method.
"""

import argparse
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from timing import processor_time

import torchsko as ts
from torchsko.envs.blocks import base_velocity, projected_gravity
from torchsko.envs.learning.processes import Processes
from torchsko.envs.learning.run_folder import save_policy
from torchsko.envs.learning.training import Run
from torchsko.envs.tasks.commanded_walk import CommandedWalk
from torchsko.envs.tasks.humanoid import Humanoid

STARTS = 16
"""Episodes of an evaluation."""


@dataclass(frozen=True)
class Standing(Humanoid):
    """Humanoid-v5 with a smooth reward for standing."""

    def memory(self, world, state, draw):
        """Nothing: the reward and the observation are those of the state."""
        return {}

    def advance(self, world, state, memory, action):
        """One control step."""
        return world.step(state, action), memory

    def reward(self, world, step):
        """A number of at most 2, for a trunk at rest."""
        after = step.after
        omega, v = base_velocity(world, after, "torso")
        tilt = projected_gravity(world, after, "torso")[:2].square().sum()
        height = (after.q[2] - 1.3).square()
        rest = v.square().sum() + 0.1 * omega.square().sum() + 1e-3 * after.qd[6:].square().sum()
        return 2.0 - 2.0 * tilt - 10.0 * height - 0.2 * rest - 0.02 * step.action.square().sum()


def standing():
    """The task with a quarter of the work in each step."""
    seen = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
    return Standing(
        integrator="Euler",
        **{f"include_{x}_in_observation": False for x in seen},
    )


def copied(kind, task, **changes):
    """A task of another kind with the same options."""
    return kind(**{x.name: getattr(task, x.name) for x in fields(task)} | changes)


def errors(task, measure):
    """A task whose reward is an error of the velocity, with one command in an episode."""

    @dataclass(frozen=True)
    class Errors(type(task)):
        def reward(self, world, step):
            omega, v = base_velocity(world, step.after, self.base)
            error = torch.stack([v[0], v[1], omega[2]]) - step.memory["command"]
            kinds = {"vx": error[0], "vy": error[1], "yaw": error[2], "distance": error[:2].norm()}
            return kinds[measure] * (step.after.t > 1.0)

    return copied(Errors, task, command_time=float("inf"), episode_length=500)


def ahead(task):
    """A task whose reward is the distance from the start, with a command ahead."""

    @dataclass(frozen=True)
    class Ahead(type(task)):
        def disturbances(self, draw):
            drawn = super().disturbances(draw)
            return drawn | {"command": 0 * drawn["command"] + torch.tensor([0.9, 0.0, 0.0])}

        def reward(self, world, step):
            return step.after.q[:2].norm() - step.before.q[:2].norm()

    return copied(Ahead, task, episode_length=325)


def in_mujoco(env, policy, seed):
    """A line about episodes in MuJoCo."""

    def episodes(task):
        return ts.envs.evaluate_in_mujoco(replace(env, task=task), policy, STARTS, seed)[0]

    if isinstance(env.task, Humanoid):
        found = episodes(replace(env.task, episode_length=1000, integrator=None))
        times = env.dt * found.length
        return f"stands {times.mean():.1f} s, least {times.min():.1f} s"
    if env.task.name == "QuadrupedRough":
        found = episodes(ahead(env.task))
        return f"distance {found.total.mean():.2f} m, least {found.total.min():.2f} m"
    means, falls = [], 0
    for measure in ("vx", "vy", "yaw", "distance"):
        task = errors(env.task, measure)
        found = episodes(task)
        mean = (found.total / (found.length - 1.0 / env.dt)).abs()
        means.append(f"{measure} {mean.mean():.3f} (largest {mean.max():.3f})")
        falls = int((found.length < task.episode_length).sum())
    return f"errors {', '.join(means)}; {falls} falls"


def one_run(args, seed):
    """Train and judge a policy."""
    began = processor_time()
    name = standing() if args.task == "Humanoid-v5" else args.task
    env = ts.envs.make(name, args.num_envs, seed=seed, dtype=torch.float32)
    run = Run.begin(ts.envs.SHAC(**CommandedWalk.shac_options).learner(env, seed, Processes()))
    budget, printed = 60 * args.minutes, 0.0
    while (seconds := processor_time() - began) < budget:
        run.seconds = seconds
        run.advance(seconds / budget)
        if seconds - printed > 20:
            printed, row = seconds, run.rows[-1]
            line = ", ".join(
                f"{x} {row[x]:.3g}"
                for x in ("update", "reward", "length", "diverged", "gradient_norm", "value_loss")
            )
            print(f"{seconds / 60:.2f} min: {line}", flush=True)
            save_policy(args.out / f"{args.task}-{seed}.pt", run.learner.policy)
    run.keep_best()
    policy = run.best_policy()
    save_policy(args.out / f"{args.task}-{seed}.pt", policy)
    found = in_mujoco(env, policy, seed)
    print(
        f"| {args.task} | {seed} | {args.minutes:g} min | {run.number} updates | {found} |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("legged_robots"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        one_run(args, seed)


if __name__ == "__main__":
    main()
