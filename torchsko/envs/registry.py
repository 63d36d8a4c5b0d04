"""Tasks by name, and environments of them: `torchsko.envs.make`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args

import torch

from torchsko.envs import tasks
from torchsko.envs.environment import AutoReset, Environment
from torchsko.envs.task import Task
from torchsko.errors import MechanismError, ShapeError, TorchskoError, unknown_name
from torchsko.utils.numbers import as_integer

TASKS: dict[str, Callable[[], Task]] = {}
"""Tasks of users by name; `register` adds to it."""


def register(name: str, task: Task | type[Task]) -> None:
    """Add a task, for `make`.

    Args:
        name: of the task. A task of this name is replaced, unless torchsko has it.
        task: a task, or its class.

    Raises:
        TorchskoError: when torchsko has a task of this name.

    Example:
        >>> import torchsko as ts
        >>> env = ts.envs.make("InvertedPendulum-v5")
        >>> ts.envs.register("StillPendulum", type(env.task)(reset_noise_scale=0.0))
        >>> ts.envs.make("StillPendulum").reset().physics.q.tolist()
        [[0.0, 0.0]]
    """
    if name in _own_tasks():
        raise TorchskoError(
            f"torchsko has a task {name!r}.", "Names are unique.", "Choose another name."
        )
    TASKS[name] = (lambda: task) if isinstance(task, Task) else task


def task_names() -> tuple[str, ...]:
    """Names of all tasks."""
    return tuple(sorted({**_own_tasks(), **TASKS}))


def _own_tasks() -> dict[str, type[Task]]:
    """The tasks in the files of `torchsko.envs.tasks`."""
    found: dict[str, type[Task]] = {}
    for module in iter_modules(tasks.__path__):
        values = vars(import_module(f"{tasks.__name__}.{module.name}")).values()
        kinds = (x for x in values if isinstance(x, type) and issubclass(x, Task))
        found |= {kind.name: kind for kind in kinds if kind.name}
    return found


def make(
    name: str | Task,
    num_envs: int = 1,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    autoreset: AutoReset = "same-step",
    **options: Any,
) -> Environment:
    """An environment of a task.

    Args:
        name: of the task, or a task.
        num_envs: number of environments.
        device: of all tensors.
        dtype: of observations and rewards.
        seed: of the random numbers.
        autoreset: "same-step", "next-step" or "off"; see `Environment`.
        **options: fields of the task, such as ``episode_length``.

    Raises:
        TorchskoError: on an unknown task, with the most similar names; on an unknown option or reset mode.
        MechanismError: names the actuators and contacts of the robot that are not modeled.
        MissingExtraError: when the task needs a package that is not installed.
        ShapeError: when ``num_envs`` is not a positive integer.

    Example:
        >>> import torchsko as ts
        >>> env = ts.envs.make("Hopper-v5", num_envs=8, reset_noise_scale=0.01)
        >>> env.observation_size, env.action_size, env.episode_length, env.dt
        (11, 3, 1000, 0.008)
        >>> env.reset().observation.shape
        torch.Size([8, 11])
    """
    task = _task(name) if isinstance(name, str) else name
    known = tuple(field.name for field in fields(task))
    for option in options:
        if option not in known:
            raise TorchskoError(*unknown_name(f"option of {type(task).__name__}", option, known))
    if autoreset not in get_args(AutoReset):
        raise TorchskoError(*unknown_name("reset mode", autoreset, get_args(AutoReset)))
    if (as_integer(num_envs) or 0) < 1:
        raise ShapeError(
            f"num_envs is {num_envs!r}.", "It is a positive integer.", "Pass num_envs=1, say."
        )
    task = replace(task, **options)
    mech = task.mechanism(dtype, device)
    task.contact(mech)  # warns of what it changes
    env = Environment(task, mech, num_envs, seed, autoreset)
    _check_is_modeled(env)
    return env


def _task(name: str) -> Task:
    known: dict[str, Callable[[], Task]] = {**_own_tasks(), **TASKS}
    if name not in known:
        advice = 'Use one of these names, or call ts.envs.register("name", task).'
        raise TorchskoError(*unknown_name("task", name, tuple(sorted(known)), advice))
    return known[name]()


def _check_is_modeled(env: Environment) -> None:
    """Refuse a robot with forces that steps leave out.

    Raises:
        MechanismError: names the elements of its file.
    """
    world = env.world
    absent = [x for x in env.mech.unused if x.changes_dynamics and not x.in_step]
    absent += [*world.contact.unsupported, *(world.actuators.unused if world.actuators else ())]
    if world.actuators is None:
        absent += env.mech.file_metadata.actuators.unused
    if absent:
        raise MechanismError(
            f"{env.mech.name!r} has elements that are not modeled: {'; '.join(map(str, absent))}.",
            "A policy would be trained on another robot.",
            "Remove them from the file, or override Task.mechanism.",
        )
