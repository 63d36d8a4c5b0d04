"""Velocity error of quadrupeds that follow commands in MuJoCo, against minutes of one core, by SHAC.

    OMP_NUM_THREADS=1 python benchmarks/quadruped_commands.py --task QuadrupedFlat --seeds 1 --minutes 10

Minutes are processor time, with the building of kernels and their compilers, and without the evaluations. An
evaluation is 16 episodes of 10 s in ``mj_step``, without noise, each with one random command. Errors are
distances of velocities to the command in the axes of the body, over the time after the first second.
"""

import argparse
import resource
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

import torchsko as ts
from torchsko.envs.blocks import base_velocity
from torchsko.envs.learning.processes import Processes
from torchsko.envs.learning.run_folder import save_policy
from torchsko.envs.learning.training import Run

POINTS = 10
STARTS = 16
"""Evaluations of a run, and episodes of an evaluation."""

MEASURES = ("vx", "vy", "yaw", "speed", "travel")


def measuring(task, measure):
    """A task whose reward is a measure, with one command an episode."""

    @dataclass(frozen=True)
    class Measured(type(task)):
        def reward(self, world, step):
            omega, v = base_velocity(world, step.after, self.base)
            command = step.memory["command"]
            error = torch.stack([v[0], v[1], omega[2]]) - command
            moved = step.after.q[:2].norm() - step.before.q[:2].norm()
            late = step.after.t > 1.0
            options = {"speed": error[:2].norm() * late, "travel": moved}
            options |= {name: error[k] * late for k, name in enumerate(("vx", "vy", "yaw"))}
            return options[measure]

    options = {name: getattr(task, name) for name in (x.name for x in fields(task))}
    return Measured(**{**options, "command_time": float("inf"), "episode_length": 500})


def in_mujoco(env, policy, seed, measures=MEASURES):
    """Mean measures of episodes in MuJoCo and the number that ended early."""
    found, fallen = {}, 0
    for measure in measures:
        judge = replace(env, task=measuring(env.task, measure))
        (result,) = ts.envs.evaluate_in_mujoco(judge, policy, STARTS, seed)
        late = result.length - 1.0 / env.dt
        mean = result.total if measure == "travel" else result.total / late
        found[measure] = mean.abs().mean().item()
        fallen = int((result.length < judge.episode_length).sum())
    return found, fallen


@torch.no_grad()
def here(env, policy, seed, steps=250):
    """Mean distance of the velocity to the command in torchsko, and the number of falls."""
    state, errors, falls = env.reset(seed=seed), [], 0
    for _ in range(steps):
        state, transition = env.step(state, policy(state.observation))
        falls += int(transition.terminated.sum())
        _, v = base_velocity(env.world, state.physics, env.task.base)
        error = (v[:, :2] - state.memory["command"][:, :2]).norm(dim=-1)
        errors.append(error[state.age > 50].mean())
    return torch.stack(errors).nanmean().item(), falls


def one_run(args, seed, folder):
    """Train, and print errors at the evaluations."""

    def clock():
        used = (resource.getrusage(x) for x in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(x.ru_utime + x.ru_stime for x in used)

    began = clock()
    dtype = getattr(torch, args.dtype)
    env = ts.envs.make(args.task, args.num_envs, seed=seed, dtype=dtype, **eval(args.task_options))
    options = {"horizon": 24, "log_std": -1.5, **eval(args.options)}
    run = Run.begin(ts.envs.SHAC(**options).learner(env, seed, Processes()))
    points, budget = 0, 60 * args.minutes
    while points < POINTS:
        run.seconds = clock() - began
        if run.seconds < (points + 1) * budget / POINTS:
            run.advance(min(1.0, run.seconds / budget))
            continue
        points, paused = points + 1, clock()
        policy = run.learner.policy
        error, falls = here(env, policy, seed)
        row = {name: round(x, 4) for name, x in run.rows[-1].items()}
        print(
            f"{run.seconds / 60:.2f} min: error {error:.3f} m/s here, {falls} falls; {row}",
            flush=True,
        )
        save_policy(folder / f"{args.task}-{seed}.pt", policy)
        began += clock() - paused
    print(in_mujoco(env, run.learner.policy, seed), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="QuadrupedFlat")
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--options", default="{}")
    parser.add_argument("--task-options", default="{}")
    parser.add_argument("--out", type=Path, default=Path("quadrupeds"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        one_run(args, seed, args.out)


if __name__ == "__main__":
    main()
