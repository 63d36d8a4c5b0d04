"""Files of a finished run: the policy for other programs, pictures, and its evaluation."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchsko.envs.environment import Environment
from torchsko.envs.learning.evaluation import CHANGES, evaluate, evaluate_in_mujoco
from torchsko.envs.learning.export import save_numpy, save_onnx, save_torchscript
from torchsko.envs.learning.policy import Policy
from torchsko.envs.learning.run_folder import write, write_json
from torchsko.errors import MechanismError, MissingExtraError, RobotFileWarning
from torchsko.io.saving import save
from torchsko.utils.optional_dependencies import require
from torchsko.view.notebook import show
from torchsko.view.render import animate

TEST_SEED = 1_000_003
"""Added to the seed of a run for the starts of its evaluation."""

PICTURE_SECONDS = 6.0
"""Longest animation [s]."""

FRAME_RATE = 20.0
"""Largest number of frames per second of an animation."""


def write_report(
    folder: Path,
    env: Environment,
    policy: Policy,
    rows: Sequence[dict[str, float]],
    task: str,
    seed: int,
    report: Callable[[str], object] | None,
) -> dict[str, Any]:
    """Write the files of a finished run.

    Args:
        folder: of the run.
        env: the environment.
        policy: the policy.
        rows: the learning curve.
        task: name of the task.
        seed: of the run.
        report: takes lines of text; None for none.

    Returns:
        The content of ``report.json``.
    """
    say = report or (lambda line: None)
    found = evaluate(env, policy, seed=seed + TEST_SEED)
    here = found.summary()
    content: dict[str, Any] = {"task": task, "seed": seed, "return": here}
    if rows:
        content |= {"updates": rows[-1]["update"], "steps": rows[-1]["steps"]}
        content |= {"minutes": rows[-1]["seconds"] / 60}
    say(f"return {here['mean']:.1f} (least {here['min']:.1f}) of {len(found.total)} episodes here")
    copy = deepcopy(policy).cpu()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RobotFileWarning
        )  # of parts that do not act or have no picture
        missing = _write_files(folder, env, copy, rows, found.qs)
    try:
        content["mujoco"] = _compare(env, copy, seed, say)
    except (MissingExtraError, MechanismError) as error:
        missing["evaluation in MuJoCo"] = str(error).splitlines()[0]
    for name, cause in missing.items():
        say(f"no {name}: {cause}")
    write_json(folder / "report.json", content | {"missing": missing})
    return content


def _compare(
    env: Environment, policy: Policy, seed: int, say: Callable[[str], object]
) -> dict[str, dict[str, float]]:
    """Returns in MuJoCo, by the name of the robot."""
    env = replace(env, mech=env.mech.to(torch.device("cpu")))
    found = evaluate_in_mujoco(env, policy, seed=seed + TEST_SEED, changes=tuple(CHANGES.values()))
    results = {name: x.summary() for name, x in zip(CHANGES, found, strict=True)}
    for name, numbers in results.items():
        say(f"return {numbers['mean']:.1f} (least {numbers['min']:.1f}) in MuJoCo, {name}")
    return results


def _write_files(
    folder: Path, env: Environment, policy: Policy, rows: Sequence[dict[str, float]], qs: Tensor
) -> dict[str, str]:
    """Write policies and pictures; names of files that need a package that is not installed, and why."""
    save_torchscript(folder / "policy.ts", policy)
    save_numpy(folder / "policy.npz", policy, env.world.frame_skip)
    save(env.mech, folder / "robot.xml", overwrite=True)
    writers: dict[str, Callable[[Path], object]] = {
        "policy.onnx": lambda path: save_onnx(path, policy),
        "curve.png": lambda path: plot_curve(path, rows),
        "rollout.gif": lambda path: save_animation(path, env, qs),
        "rollout.html": lambda path: save_page(path, env, qs),
    }
    missing = {}
    for name, writer in writers.items():
        try:
            write(folder / name, writer)
        except MissingExtraError as error:
            missing[name] = str(error).splitlines()[0]
    return missing


def plot_curve(path: Path, rows: Sequence[dict[str, float]]) -> None:
    """Draw the learning curve."""
    figures = require("matplotlib.figure", "plot")
    figure = figures.Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.plot([row["seconds"] / 60 for row in rows], [row["return"] for row in rows])
    axis.set(xlabel="time [min]", ylabel="return, with noise")
    axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def frames_of(env: Environment, qs: Tensor) -> tuple[Tensor, float]:
    """Configurations of an animation, and the time between them [s]."""
    stride = max(1, round(1 / (FRAME_RATE * env.dt)))
    return qs[: round(PICTURE_SECONDS / env.dt) : stride].cpu(), stride * env.dt


def save_animation(path: str | os.PathLike[str], env: Environment, qs: Tensor) -> None:
    """Write an animated GIF whose camera follows the heaviest body."""
    frames, dt = frames_of(env, qs)
    mech = env.mech.to(torch.device("cpu"))
    body = mech.body_names[int(mech.mass.argmax())]
    animate(mech, frames, path, dt=dt, follow=body, size=(320, 240))


def save_page(path: str | os.PathLike[str], env: Environment, qs: Tensor) -> None:
    """Write an interactive page."""
    frames, dt = frames_of(env, qs)
    show(env.mech.to(torch.device("cpu")), frames, dt=dt).save(path)
