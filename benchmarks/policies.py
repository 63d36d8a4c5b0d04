"""Return of policies in MuJoCo against minutes of one core, by SHAC and PPO.

    OMP_NUM_THREADS=1 python benchmarks/policies.py --algorithms shac --seeds 1 2 3 --minutes 2 --out DIR
    OMP_NUM_THREADS=1 python benchmarks/policies.py --algorithms ppo --seeds 1 --minutes 10 --out DIR
    python benchmarks/policies.py --seeds --out DIR  # table and picture of the runs in DIR

A run ends at a budget of processor time, which its learning rates depend on. The budget includes kernels at
the first calls and the evaluations of checkpoints. A point of a curve is the policy of a run that ends there,
at the time after the evaluation that chooses it: episodes without noise, from other starts, in ``mj_step`` by
Gymnasium, and here. These, and the choice before the end, are left out of the budget.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch
from report import origin

import torchsko as ts
from torchsko.envs.learning.processes import Processes
from torchsko.envs.learning.run_folder import save_policy
from torchsko.envs.learning.training import ALGORITHMS, Run

TASKS = ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5")
POINTS = 10
"""Evaluations of a run."""


def one_run(task, algorithm, seed, minutes, path):
    """Train, and write time and return in MuJoCo at the evaluations."""
    began = time.process_time()
    env = ts.envs.make(task, num_envs=64, seed=seed, dtype=torch.float32)
    options = env.task.shac_options if algorithm == "shac" else {}
    run = Run.begin(ALGORITHMS[algorithm](**options).learner(env, seed, Processes()))
    points, budget = [], 60 * minutes
    while len(points) < POINTS:
        run.seconds = time.process_time() - began
        if run.seconds < (len(points) + 1) * budget / POINTS:
            run.advance(min(1.0, run.seconds / budget))
            continue
        ended = replace(run)  # as if the run ended here
        ended.keep_best()
        seconds, policy = time.process_time() - began, ended.best_policy()
        starts = 10 if len(points) == POINTS - 1 else 3
        (there,) = ts.envs.evaluate_in_mujoco(env, policy, starts, seed)
        here = ts.envs.evaluate(env, policy, starts, seed=seed)
        points.append(
            {
                "minutes": seconds / 60, "updates": run.number, "mujoco": there.total.tolist(),
                "lengths": there.length.tolist(), "here": here.total.tolist(),
            }
        )  # fmt: skip
        print(
            f"{task} {algorithm} seed {seed}: {seconds / 60:.2f} min, {run.number} updates, return "
            f"{there.total.mean():.0f} (least {there.total.min():.0f}) in MuJoCo, "
            f"{here.total.mean():.0f} here, {run.state.num_diverged.sum()} diverged",
            flush=True,
        )
        save_policy(path.with_suffix(".pt"), policy)
        began = time.process_time() - run.seconds
    path.write_text(json.dumps(points))


def read(folder):
    """Points of finished runs by task, algorithm, minutes and seed."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        task, algorithm, minutes, seed = path.stem.rsplit("-", 3)
        found[task, algorithm, float(minutes), int(seed)] = json.loads(path.read_text())
    order = {task: k for k, task in enumerate(TASKS)}
    return dict(sorted(found.items(), key=lambda x: (order[x[0][0]], *x[0][1:])))


def mean(values):
    return sum(values) / len(values)


def table(runs):
    """The final policies; and PPO's return beside that of SHAC in a fifth of its time."""
    print(origin(1))
    print("task            algorithm  minutes  seed  mj_step: mean  least  shortest    here")
    for (task, algorithm, minutes, seed), points in runs.items():
        last = points[-1]
        print(
            f"{task:15s} {algorithm:9s}  {minutes:7.2f}  {seed:4d}  {mean(last['mujoco']):13.0f}  "
            f"{min(last['mujoco']):5.0f}  {min(last['lengths']):8d}  {mean(last['here']):6.0f}"
        )
    print("\nmeans over seeds: PPO, and SHAC in a fifth of the time, or up to 5 % more")
    for task in dict.fromkeys(task for task, *_ in runs):
        minutes = max((x[2] for x in runs if x[:2] == (task, "ppo")), default=0.0)
        ppo = [p[-1] for x, p in runs.items() if x[:3] == (task, "ppo", minutes)]
        shac = [
            max((x for x in p if x["minutes"] < 1.05 * minutes / 5), key=lambda x: x["minutes"])
            for x, p in runs.items()
            if x[:2] == (task, "shac") and minutes > 0
        ]
        if not shac:
            continue
        values = [[mean(x["mujoco"]) for x in points] for points in (ppo, shac)]
        spread = ", ".join(f"{x:.0f}" for x in values[1])
        print(
            f"{task:15s} PPO {mean(values[0]):6.0f} after {minutes:g} min ({len(ppo)} seeds); "
            f"SHAC {mean(values[1]):6.0f} after {minutes / 5:g} min (seeds: {spread})"
        )


def picture(runs, path):
    """Mean return in MuJoCo against minutes."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(task for task, *_ in runs))
    figure = Figure(figsize=(3 * len(tasks), 2.6), layout="constrained")
    axes = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axis, task in zip(axes, tasks, strict=True):
        for (name, algorithm, *_), points in runs.items():
            if name == task:
                color = {"shac": "C0", "ppo": "C1"}.get(algorithm, "C2")
                returns = [mean(x["mujoco"]) for x in points]
                axis.plot([x["minutes"] for x in points], returns, color=color, label=algorithm)
        axis.set(title=task, xlabel="minutes of one core")
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="return in mj_step")
    handles = {x.get_label(): x for axis in axes for x in axis.lines}
    axes[0].legend(handles.values(), handles.keys())
    figure.savefig(path, dpi=80)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--algorithms", nargs="+", default=("shac", "ppo"))
    parser.add_argument("--seeds", nargs="*", type=int, default=(1, 2, 3))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("policies"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for task in args.tasks:
            for algorithm in args.algorithms:
                path = args.out / f"{task}-{algorithm}-{args.minutes:g}-{seed}.json"
                if not path.exists():  # runs in the folder are not repeated
                    one_run(task, algorithm, seed, args.minutes, path)
    runs = read(args.out)
    table(runs)
    picture(runs, args.out / "policies.png")


if __name__ == "__main__":
    main()
