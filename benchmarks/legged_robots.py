"""Robots with legs in MuJoCo after minutes of one core, by SHAC: velocity errors, distances, times to a fall.

    OMP_NUM_THREADS=1 python benchmarks/legged_robots.py QuadrupedFlat --seeds 1 2 3 --minutes 4

Minutes are processor time, with the building of kernels and their compilers, and without evaluations. The
best policy is judged in ``mj_step`` by 24 episodes without noise:

- Tasks with commands: one random command in 10 s. Errors of the velocity in the axes of the body, after the
  first second: those of its mean over an episode, and the mean distance to the command, each of another 24
  episodes.
- QuadrupedRough: a command of 0.9 m/s ahead for 6.5 s, on another ground each time. Distances from the start.
- HumanoidWalk: a command of 0.5 m/s ahead for 10 s. Distances from the start, and times to a fall.
- Humanoid-v5: 1000 steps of 0.015 s in Gymnasium's environment. Times to a fall. Training rewards an upright
  trunk at rest, pushes it, starts with twice the noise, observes positions and velocities, and integrates by
  Euler's method.
"""

import argparse
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from report import origin
from timing import processor_time

import torchsko as ts
from torchsko.envs.blocks import base_velocity, projected_gravity, push
from torchsko.envs.learning.processes import Processes
from torchsko.envs.learning.run_folder import save_policy
from torchsko.envs.learning.training import Run
from torchsko.envs.tasks.commanded_walk import CommandedWalk
from torchsko.envs.tasks.humanoid import Humanoid

STARTS = 24
"""Episodes of an evaluation."""

MEASURES = ("vx", "vy", "yaw", "distance")
"""Errors of the velocity."""

AHEAD = {"QuadrupedRough": (0.9, 325), "HumanoidWalk": (0.5, 500)}
"""Tasks that are judged by distances: the command [m/s] and its control steps."""


@dataclass(frozen=True)
class Standing(Humanoid):
    """Humanoid-v5 with a smooth reward for standing, and a push of at most 3 N s each second on average."""

    def disturbances(self, draw):
        """The force of a push, and a number that determines whether it acts."""
        angle, size = draw.uniform(0.0, 2 * torch.pi), draw.uniform(0.0, 200.0)
        return {
            "push": size * torch.cat([angle.cos(), angle.sin(), 0 * angle]),
            "chance": draw.uniform(),
        }

    def memory(self, world, state, draw):
        """Nothing: the reward and the observation are those of the state."""
        return {}

    def advance(self, world, state, memory, action):
        """One control step."""
        random = world.disturbances
        force = random["push"] * (random["chance"] < world.dt)
        return world.step(state, action, push(world, state, "torso", force)), memory

    def reward(self, world, step):
        """A number of at most 2, for a trunk at rest."""
        after = step.after
        omega, v = base_velocity(world, after, "torso")
        tilt = projected_gravity(world, after, "torso")[:2].square().sum()
        height = (after.q[2] - 1.3).square()
        rest = v.square().sum() + 0.1 * omega.square().sum() + 1e-3 * after.qd[6:].square().sum()
        return 2.0 - 2.0 * tilt - 10.0 * height - 0.2 * rest - 0.02 * step.action.square().sum()


def standing():
    """The task with a quarter of the work in each step, and short episodes for more starts."""
    seen = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
    return Standing(
        integrator="Euler",
        reset_noise_scale=0.02,
        episode_length=300,
        **{f"include_{x}_in_observation": False for x in seen},
    )


def copied(kind, task, **changes):
    """A task of another kind with the same options."""
    return kind(**{x.name: getattr(task, x.name) for x in fields(task)} | changes)


def errors(task):
    """A task whose reward is one error of the velocity, with one command in an episode."""

    @dataclass(frozen=True)
    class Errors(type(task)):
        def parameters(self, world, draw):
            measure = (len(MEASURES) * draw.uniform()).floor()
            return {**super().parameters(world, draw), "measure": measure}

        def reward(self, world, step):
            omega, v = base_velocity(world, step.after, self.base)
            error = torch.cat([v[:2], omega[2:]]) - step.memory["command"]
            kinds = torch.cat([error, error[:2].norm()[None]])
            one = torch.arange(len(MEASURES)) == world.params["measure"]
            return (kinds * one).sum() * (step.after.t > 1.0)

    return copied(Errors, task, command_time=float("inf"), episode_length=500)


def ahead(task):
    """A task whose reward is the distance from the start, with a command ahead."""
    speed, steps = AHEAD[task.name]

    @dataclass(frozen=True)
    class Ahead(type(task)):
        def disturbances(self, draw):
            drawn = super().disturbances(draw)
            return drawn | {"command": 0 * drawn["command"] + torch.tensor([speed, 0.0, 0.0])}

        def reward(self, world, step):
            return step.after.q[:2].norm() - step.before.q[:2].norm()

    return copied(Ahead, task, episode_length=steps)


def in_mujoco(env, policy, seed):
    """A line about episodes in MuJoCo."""

    def episodes(env, starts=STARTS):
        return ts.envs.evaluate_in_mujoco(env, policy, starts, seed)[0]

    if isinstance(env.task, Humanoid):
        nominal = replace(env.task, integrator=None, reset_noise_scale=1e-2, episode_length=1000)
        times = env.dt * episodes(replace(env, task=nominal)).length
        stands = int((times >= 5.0).sum())
        return (
            f"{stands} of {STARTS} stand 5 s, mean {times.mean():.1f} s, least {times.min():.1f} s"
        )
    if env.task.name in AHEAD:
        found = episodes(replace(env, task=ahead(env.task)))
        times = env.dt * found.length
        return (
            f"distance {found.total.mean():.2f} m, least {found.total.min():.2f} m; "
            f"mean time {times.mean():.1f} s, least {times.min():.1f} s"
        )
    env = replace(env, task=errors(env.task))
    found = episodes(env, starts := len(MEASURES) * STARTS)
    measure = env.reset(starts, seed=seed).params["measure"].flatten()
    mean = (found.total / (found.length - 1.0 / env.dt)).abs()
    lines = []
    for k, name in enumerate(MEASURES):
        of_measure = mean[measure == k]
        lines.append(f"{name} {of_measure.mean():.3f} (largest {of_measure.max():.3f})")
    falls = int((found.length < env.episode_length).sum())
    return f"errors {', '.join(lines)}; {falls} of {len(mean)} fall"


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
    print(origin(1))
    for seed in args.seeds:
        one_run(args, seed)


if __name__ == "__main__":
    main()
