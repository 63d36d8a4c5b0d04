"""Training runs: updates until a limit, with a learning curve, checkpoints and a report."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchsko.envs.environment import EnvState, Transition, detached
from torchsko.envs.learning.evaluation import evaluate as returns_of
from torchsko.envs.learning.learner import Learner
from torchsko.envs.learning.policy import Policy
from torchsko.envs.learning.ppo import PPO
from torchsko.envs.learning.processes import Processes
from torchsko.envs.learning.report import write_report
from torchsko.envs.learning.run_folder import (
    CHECKPOINT,
    CURVE,
    POLICY,
    SETTINGS,
    read_settings,
    save_policy,
    write,
    write_curve,
    write_json,
)
from torchsko.envs.learning.shac import APG, SHAC
from torchsko.envs.registry import make
from torchsko.errors import RobotFileError, TorchskoError, unknown_name

ALGORITHMS: dict[str, type[SHAC | PPO]] = {kind.name: kind for kind in (SHAC, APG, PPO)}
"""Options of the algorithms by name."""

UPDATES_PER_CHECKPOINT = 100

BEST_SEED = 2_000_003
"""Added to the seed of a run for the starts of the evaluations of its checkpoints."""

SAVED = ("number", "seconds", "best_return", "best")
"""Fields of a `Run` that a checkpoint has as they are."""

SECONDS_PER_LINE = 2.0
"""Least time between two progress lines [s]."""


class Episodes(NamedTuple):
    """Returns of episodes of each environment.

    Attributes:
        reward: sum of rewards of the episode so far, `[n]`.
        length: its steps so far, `[n]`.
        is_whole: whether it began at age 0, bool `[n]`.
        last_return: return of the last whole episode, NaN before its end, `[n]`.
        last_length: its length, `[n]`.
    """

    reward: Tensor
    length: Tensor
    is_whole: Tensor
    last_return: Tensor
    last_length: Tensor

    @staticmethod
    def begin(state: EnvState) -> Episodes:
        """Episodes of a state, before their first step."""
        zero = torch.zeros_like(state.age, dtype=torch.float64)
        return Episodes(zero, zero, state.age == 0, zero / 0, zero / 0)

    def after(self, window: Transition) -> Episodes:
        """Episodes after a window of steps, `[h, n]`."""
        reward, length, whole, last_return, last_length = self
        for gain, done in zip(window.reward.detach(), window.done, strict=True):
            reward, length = reward + gain, length + 1
            last_return = torch.where(done & whole, reward, last_return)
            last_length = torch.where(done & whole, length, last_length)
            reward, length = (torch.where(done, 0.0, x) for x in (reward, length))
            whole = whole | done
        return Episodes(reward, length, whole, last_return, last_length)


@dataclass
class Run:
    """A training run in memory.

    Attributes:
        learner: the algorithm.
        state: of the environments of this process.
        episodes: of these environments.
        rows: the learning curve.
        number: updates done.
        seconds: time that they took [s].
        best_return: largest return of an evaluation without noise, at a checkpoint.
        best: weights of the policy there. Policies of high learning rates come and go.
    """

    learner: Learner
    state: EnvState
    episodes: Episodes
    rows: list[dict[str, float]]
    number: int = 0
    seconds: float = 0.0
    best_return: float = float("nan")
    best: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def begin(learner: Learner) -> Run:
        """A run before its first update."""
        state = learner.reset()
        return Run(learner, state, Episodes.begin(state), [])

    def advance(self, progress: float) -> None:
        """Do an update, and add a row to the learning curve; at checkpoints keep the best policy."""
        learner = self.learner
        update = learner.update(self.state, self.number, progress)
        transition = detached(update.window.transition)
        self.state, self.episodes = update.state, self.episodes.after(transition)
        self.number += 1
        known = self.episodes.last_return.isfinite()
        sums = [known.sum(), *(torch.where(known, x, 0.0).sum() for x in self.episodes[3:])]
        sums += [
            transition.reward.sum(),
            self.state.num_diverged.sum(),
            self.state.num_clipped.sum(),
        ]
        numbers = [*(x.to(torch.float64) for x in sums)]
        count, returns, lengths, reward, diverged, clipped = learner.processes.sum(
            torch.stack(numbers)
        ).tolist()
        count = count or float("nan")
        steps = learner.options.horizon * learner.env.num_envs
        row = {"update": self.number, "steps": self.number * steps, "seconds": self.seconds}
        row |= {"return": returns / count, "length": lengths / count, "reward": reward / steps}
        row |= {"diverged": diverged, "clipped": clipped}
        self.rows.append(row | {name: x.item() for name, x in update.measures.items()})
        if self.number % UPDATES_PER_CHECKPOINT == 0:
            self.keep_best()

    def keep_best(self) -> None:
        """Keep the weights of the policy if its return without noise is the largest so far."""
        learner = self.learner
        # The learning curve is that of older policies, by up to an episode.
        found = returns_of(learner.env, learner.policy, seed=learner.seed + BEST_SEED)
        mean = found.total.mean().item()
        if not mean <= self.best_return:
            weights = learner.policy.state_dict()
            self.best_return, self.best = mean, {k: x.clone() for k, x in weights.items()}

    def best_policy(self) -> Policy:
        """A policy with the weights of `keep_best`."""
        policy = deepcopy(self.learner.policy)
        policy.load_state_dict(self.best or policy.state_dict())
        return policy

    def save(self, folder: Path) -> None:
        """Write the checkpoint of all processes, the learning curve and the best policy."""
        whole = self.learner.processes.gather((self.state, tuple(self.episodes)))
        if self.learner.processes.rank == 0:
            content = {"state": whole[0], "episodes": whole[1], "rows": self.rows}
            content |= {name: getattr(self, name) for name in SAVED}
            content["learner"] = self.learner.state_dict()
            write(folder / CHECKPOINT, lambda new: torch.save(content, new))
            write_curve(folder / CURVE, self.rows)
            save_policy(folder / POLICY, self.best_policy())

    @staticmethod
    def load(folder: Path, learner: Learner) -> Run:
        """The run of a checkpoint, for any number of processes."""
        device = learner.env.mech.device
        content = torch.load(folder / CHECKPOINT, weights_only=True, map_location=device)
        learner.load_state_dict(content["learner"])
        mine = slice(learner.first, learner.first + learner.n)
        state, episodes = pytree.tree_map(
            lambda x: x[mine], (content["state"], content["episodes"])
        )
        run = Run(learner, state, Episodes(*episodes), content["rows"])
        return replace(run, **{name: content[name] for name in SAVED})


def train(
    task: str,
    algorithm: str = "shac",
    *,
    out: str | os.PathLike[str],
    updates: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    num_envs: int = 64,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    resume: bool = False,
    evaluate: bool = True,
    report: Callable[[str], object] | None = print,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> Policy:
    """Train a policy, and write a folder with the policy, its learning curve and its evaluation.

    The folder has ``policy.pt`` (`load_policy`), ``policy.ts`` (TorchScript), ``policy.npz`` with
    ``run_policy.py`` (NumPy and MuJoCo), ``policy.onnx`` (with the package onnx), ``curve.csv`` and ``.png``,
    ``rollout.gif`` and ``.html``, ``report.json`` and ``checkpoint.pt``. Files of packages that are not
    installed are left out, and named.

    With ``updates`` the curve is the same bit for bit in each run of a seed, also if it was interrupted. With
    ``minutes`` the learning rates depend on the time. Under torchrun the processes share the environments.

    Args:
        task: name of the task.
        algorithm: "shac", "apg" or "ppo".
        out: output folder.
        updates: number of updates.
        minutes: time limit; without ``updates`` and ``minutes`` 10 minutes.
        seed: of environments, weights and noise.
        num_envs: number of environments, of all processes.
        dtype: of the environment and the networks.
        device: of the environment and the networks.
        resume: continue the run in the folder.
        evaluate: write the files of the finished policy, and test it here and in MuJoCo.
        report: takes progress lines; None for none.
        clock: time [s] for ``minutes`` and the learning curve.
        **options: fields of the algorithm (`torchsko.envs.SHAC`) or of the task. Those of SHAC are by default
            `Task.shac_options`.

    Returns:
        The policy, a module from observations to actions: that of the checkpoint with the largest return.

    Raises:
        TorchskoError: on an unknown task, algorithm or option, with the most similar names.
        RobotFileError: when the folder has a run and ``resume`` is False, or one with other settings.
    """
    if algorithm not in ALGORITHMS:
        raise TorchskoError(*unknown_name("algorithm", algorithm, tuple(ALGORITHMS)))
    kind = ALGORITHMS[algorithm]
    names = {x.name for x in fields(kind)}
    of_algorithm = {name: x for name, x in options.items() if name in names}
    of_task = {name: x for name, x in options.items() if name not in names}
    env = make(task, num_envs, seed=seed, dtype=dtype, device=device, **of_task)
    suited = env.task.shac_options if kind is SHAC else {}
    choice = kind(**{**suited, **of_algorithm})
    folder, processes = Path(out), Processes.join(device)
    learner = choice.learner(env, seed, processes)
    settings = {
        "task": task, "algorithm": algorithm, "seed": seed, "num_envs": num_envs,
        "dtype": str(dtype).removeprefix("torch."), "task_options": of_task,
        "options": asdict(choice),
    }  # fmt: skip
    run = _open(folder, settings, learner, resume)
    limits = Limits(updates, 600.0 if updates is None and minutes is None else 60 * (minutes or 0))
    _advance(run, folder, limits, report if processes.rank == 0 else None, clock)
    if evaluate and processes.rank == 0:
        write_report(folder, env, run.best_policy(), run.rows, task, seed, report)
    processes.wait()
    return run.best_policy()


@dataclass(frozen=True)
class Limits:
    """End of a run.

    Attributes:
        updates: number of updates, or None.
        seconds: time limit [s]; 0 for none.
    """

    updates: int | None
    seconds: float

    def progress(self, number: int, seconds: float) -> float:
        """Share of the run that is done, from 0 to 1."""
        parts = [number / self.updates] if self.updates else []
        parts += [seconds / self.seconds] if self.seconds else []
        return min(1.0, max(parts, default=1.0))


def _open(folder: Path, settings: dict[str, Any], learner: Learner, resume: bool) -> Run:
    """The run of a folder, or a new one."""
    exists = (folder / CHECKPOINT).exists()
    if exists and not resume:
        raise RobotFileError(
            f"{folder} has a run already.",
            "It would be overwritten.",
            "Pass --resume (resume=True) to continue it, or another folder.",
        )
    if exists:
        of_run = read_settings(folder)
        known = json.loads(json.dumps(settings))  # lists in place of tuples
        if other := [name for name in known if of_run[name] != known[name]]:
            raise RobotFileError(
                f"the run in {folder} has another {other[0]}: {of_run[other[0]]}.",
                "A run continues with its own settings.",
                "Pass these, or another folder.",
            )
        return Run.load(folder, learner)
    folder.mkdir(parents=True, exist_ok=True)
    if learner.processes.rank == 0:
        write_json(folder / SETTINGS, settings)
    return Run.begin(learner)


def _advance(
    run: Run,
    folder: Path,
    limits: Limits,
    report: Callable[[str], object] | None,
    clock: Callable[[], float],
) -> None:
    """Do updates until a limit."""
    processes, began = run.learner.processes, clock() - run.seconds
    printed = began
    while True:
        # All processes take the time of the first one, so that they end together.
        mine = torch.tensor(clock() - began if processes.rank == 0 else 0.0, dtype=torch.float64)
        run.seconds = processes.sum(mine.to(run.state.age.device)).item()
        progress = limits.progress(run.number, run.seconds)
        if progress >= 1.0:
            break
        run.advance(progress)
        if run.number % UPDATES_PER_CHECKPOINT == 0:
            run.save(folder)
        if report is not None and clock() - printed > SECONDS_PER_LINE:
            printed = clock()
            report(progress_line(run, limits, printed - began))
    if run.rows:
        run.keep_best()
        run.save(folder)


def progress_line(run: Run, limits: Limits, seconds: float) -> str:
    """A line with the return, the speed and the time left."""
    row = run.rows[-1]
    past = max(
        (k for k in range(len(run.rows)) if run.rows[k]["seconds"] < seconds - 10), default=0
    )
    span = seconds - run.rows[past]["seconds"]
    steps = row["steps"] - run.rows[past]["steps"]
    speed = steps / span if span > 0 and steps else row["steps"] / max(seconds, 1e-9)
    progress = limits.progress(run.number, seconds)
    left = seconds * (1 - progress) / max(progress, 1e-9)
    value = (
        f"return {row['return']:10.1f}" if row["return"] == row["return"] else "return      (none)"
    )
    return (
        f"update {run.number:6d}  {value}  reward {row['reward']:8.3f}  {speed:8,.0f} steps/s  "
        f"{int(left // 60):3d} min {int(left % 60):2d} s left"
    )
