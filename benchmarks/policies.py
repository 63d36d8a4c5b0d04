"""Return of policies in MuJoCo against minutes of one core, by SHAC and PPO.

    OMP_NUM_THREADS=1 python benchmarks/policies.py --tasks Hopper-v5 --seeds 1 2 3 --minutes 5 --out DIR

Each run has a budget of processor time, which includes building kernels at the first calls and leaves out the
evaluations: episodes in ``mj_step`` without noise, by Gymnasium. Runs in DIR are not repeated; the table and
the picture show all of them.
"""

import argparse
import json
import time
from pathlib import Path

import torch

import torchsko as ts
from torchsko.envs.learning.processes import Processes
from torchsko.envs.learning.run_folder import save_policy
from torchsko.envs.learning.training import ALGORITHMS, Run

TASKS = ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5")
POINTS = 10
"""Evaluations of a run."""


def one_run(task, algorithm, seed, minutes, folder):
    """Train, and write time and return in MuJoCo at the evaluations."""
    began = time.process_time()
    env = ts.envs.make(task, num_envs=64, seed=seed)
    run = Run.begin(ALGORITHMS[algorithm]().learner(env, seed, Processes()))
    points, budget = [], 60 * minutes
    while len(points) < POINTS:
        run.seconds = time.process_time() - began
        if run.seconds < (len(points) + 1) * budget / POINTS:
            run.advance(min(1.0, run.seconds / budget))
            continue
        paused = time.process_time()
        starts = 10 if len(points) == POINTS - 1 else 3
        (found,) = ts.envs.evaluate_in_mujoco(env, run.learner.policy, starts, seed)
        here = ts.envs.evaluate(env, run.learner.policy, starts, seed=seed)
        points.append(
            {
                "minutes": run.seconds / 60, "updates": run.number, "mujoco": found.total.tolist(),
                "lengths": found.length.tolist(), "here": here.total.tolist(),
            }
        )  # fmt: skip
        print(
            f"{task} {algorithm} seed {seed}: {run.seconds / 60:.2f} min, {run.number} updates, return "
            f"{found.total.mean():.0f} (least {found.total.min():.0f}) in MuJoCo, "
            f"{here.total.mean():.0f} here, {run.state.num_diverged.sum()} diverged",
            flush=True,
        )
        began += time.process_time() - paused
        name = f"{task}-{algorithm}-{seed}"
        save_policy(folder / f"{name}.pt", run.learner.policy)
        (folder / f"{name}.json").write_text(json.dumps(points))


def read(folder):
    """Points of finished runs by task, algorithm and seed."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        task, algorithm, seed = path.stem.rsplit("-", 2)
        found[task, algorithm, int(seed)] = json.loads(path.read_text())
    return found


def picture(runs, path):
    """Mean return in MuJoCo against minutes."""
    import matplotlib.pyplot as plt

    tasks = sorted({task for task, *_ in runs})
    figure, axes = plt.subplots(1, len(tasks), figsize=(4 * len(tasks), 3.2), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for (name, algorithm, _), points in runs.items():
            if name == task:
                returns = [sum(x["mujoco"]) / len(x["mujoco"]) for x in points]
                color = {"shac": "C0", "ppo": "C1"}.get(algorithm, "C2")
                axis.plot([x["minutes"] for x in points], returns, color=color, label=algorithm)
        handles = {x.get_label(): x for x in axis.lines}
        axis.legend(handles.values(), handles.keys())
        axis.set(title=task, xlabel="minutes of one core", ylabel="return in mj_step")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--algorithms", nargs="+", default=("shac", "ppo"))
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("policies"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for task in args.tasks:
        for algorithm in args.algorithms:
            for seed in args.seeds:
                if not (args.out / f"{task}-{algorithm}-{seed}.json").exists():
                    one_run(task, algorithm, seed, args.minutes, args.out)
    runs = read(args.out)
    print(
        "| task | algorithm | seed | minutes | return in mj_step, mean (least) | shortest | here |"
    )
    print("|---|---|---|---|---|---|---|")
    for (task, algorithm, seed), points in runs.items():
        last = points[-1]
        here, there = (sum(last[x]) / len(last[x]) for x in ("here", "mujoco"))
        print(
            f"| {task} | {algorithm} | {seed} | {last['minutes']:.1f} | {there:.0f} "
            f"({min(last['mujoco']):.0f}) | {min(last['lengths'])} | {here:.0f} |"
        )
    picture(runs, args.out / "policies.png")


if __name__ == "__main__":
    main()
