"""Returns of a policy without noise: in our simulation, and in MuJoCo, also with a changed robot."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchsko.envs.control_step import outcome
from torchsko.envs.environment import Environment
from torchsko.envs.learning.mujoco_world import MujocoWorld, Simulations
from torchsko.envs.random_numbers import Draws, uniform_numbers
from torchsko.envs.task import Task
from torchsko.envs.tasks.gymnasium_task import GymnasiumTask
from torchsko.errors import MechanismError, RobotFileWarning
from torchsko.io.saving import save
from torchsko.mechanism.fields import FIELDS
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.height_field import HeightField, surface
from torchsko.utils.optional_dependencies import require

STARTS = 10
"""Episodes of an evaluation."""

MAX_CELL = 0.1
"""Edge of the cells of a terrain in MuJoCo [m]."""

HEIGHTS = "contact.heights"

Act = Callable[[Tensor], Tensor]
"""A policy: actions `[n, num_actions]` of observations `[n, k]`."""


class Returns(NamedTuple):
    """Episodes of a policy.

    Attributes:
        total: return of each, `[n]`.
        length: steps of each, int64 `[n]`.
        qs: configurations of the first one, `[steps + 1, num_q]`; empty where they are not recorded.
    """

    total: Tensor
    length: Tensor
    qs: Tensor

    def summary(self) -> dict[str, float]:
        """Numbers of a report."""
        return {
            "mean": self.total.mean().item(), "min": self.total.min().item(),
            "max": self.total.max().item(), "shortest": int(self.length.min()),
        }  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A robot of an evaluation in MuJoCo.

    Attributes:
        mass: factor of all masses and inertias.
        friction: factor of the friction of all shapes.
        delay: of the actions, in control steps.
    """

    mass: float = 1.0
    friction: float = 1.0
    delay: int = 0


CHANGES = {
    "nominal": Change(),
    "mass * 0.8": Change(mass=0.8),
    "mass * 1.2": Change(mass=1.2),
    "friction * 0.7": Change(friction=0.7),
    "friction * 1.3": Change(friction=1.3),
    "delay of one control step": Change(delay=1),
}
"""Robots of an evaluation by name."""


class _Sums:
    """Sums over the first episode of each environment."""

    def __init__(self, like: Tensor, n: int) -> None:
        self.total = like.new_zeros(n)
        self.length = torch.zeros(n, dtype=torch.int64, device=like.device)
        self.alive = torch.ones(n, dtype=torch.bool, device=like.device)

    def add(self, reward: Tensor, done: Tensor) -> None:
        self.total = self.total + torch.where(self.alive, reward, 0.0)
        self.length = self.length + self.alive
        self.alive = self.alive & ~done


@torch.no_grad()
def evaluate(env: Environment, policy: Act, starts: int = STARTS, seed: int = 0) -> Returns:
    """Episodes of a policy in an environment.

    Args:
        env: the environment, of any number of rows.
        policy: without noise.
        starts: number of episodes.
        seed: of the starts.
    """
    state = env.reset(starts, seed=seed)
    sums, qs = _Sums(state.physics.q, starts), [state.physics.q[0]]
    for _ in range(env.episode_length):
        state, transition = env.step(state, policy(state.observation))
        sums.add(transition.reward, transition.done)
        if not sums.alive.any():
            break
        if sums.alive[0]:
            qs.append(state.physics.q[0])
    return Returns(sums.total, sums.length, torch.stack(qs))


def evaluate_in_mujoco(
    env: Environment,
    policy: Act,
    starts: int = STARTS,
    seed: int = 0,
    changes: Sequence[Change] = (Change(),),
) -> list[Returns]:
    """Episodes of a policy in MuJoCo: its ``mj_step``, with observation and reward of the task.

    Tasks of Gymnasium are simulated by Gymnasium.

    Args:
        env: the environment, on the CPU.
        policy: without noise.
        starts: number of episodes of each robot.
        seed: of the starts.
        changes: robots to simulate.

    Raises:
        MissingExtraError: if MuJoCo is not installed.
        MechanismError: if the actuators of the task are not in the data of its robot.
    """
    require("mujoco", "envs")
    test = _by_gymnasium if isinstance(env.task, GymnasiumTask) else _by_mujoco
    with torch.no_grad():
        return test(env, policy, starts, seed, changes)


def _by_gymnasium(
    env: Environment, policy: Act, starts: int, seed: int, changes: Sequence[Change]
) -> list[Returns]:
    """Episodes in Gymnasium's environment of the task."""
    gymnasium, task = require("gymnasium", "envs"), env.task
    own = {x.name for x in fields(task)} - {x.name for x in fields(Task)} | {"frame_skip"}
    nominal = type(task)()
    options = {x: getattr(task, x) for x in own if getattr(task, x) != getattr(nominal, x)}
    found, like = [], env.mech.mass
    for change in changes:
        peers = [gymnasium.make(task.name, **options).unwrapped for _ in range(starts)]
        for peer in peers:
            _apply(peer.model, change, task)
        rows = [peer.reset(seed=seed * starts + k)[0] for k, peer in enumerate(peers)]
        sums, queue = _Sums(like, starts), _delayed(change, like.new_zeros(starts, env.action_size))
        for _ in range(env.episode_length):
            queue.append(policy(torch.tensor(np.array(rows), dtype=like.dtype)))
            steps = [p.step(u) for p, u in zip(peers, queue[0].numpy(), strict=True)]
            rows, reward, done = ([step[k] for step in steps] for k in range(3))
            sums.add(like.new_tensor(reward), torch.tensor(done))
            if not sums.alive.any():
                break
        found.append(Returns(sums.total, sums.length, like.new_zeros(0)))
    return found


def _by_mujoco(
    env: Environment, policy: Act, starts: int, seed: int, changes: Sequence[Change]
) -> list[Returns]:
    """Episodes of all robots at once: ``mj_step`` takes the place of `World.step`."""
    task, n = env.task, starts * len(changes)
    start = env.reset(starts, seed=seed)
    models = _models(env, start.params, starts, changes)
    if models[0].nu != len(env.world.actuators.names if env.world.actuators else ()):
        raise MechanismError(
            f"{env.mech.name!r} has other actuators in MuJoCo than in the task.",
            "A saved robot has those of its file_metadata.",
            "Override Task.mechanism to put them there, instead of Task.actuators.",
        )
    world, kernels = env.world, env._kernels
    rows = Simulations(models, world.frame_skip, env.mech)
    start = pytree.tree_map(lambda x: x.repeat(len(changes), *[1] * (x.ndim - 1)), start)
    # The robot of MuJoCo is the nominal one on the ground of each start: its other parameters are left out.
    params = {
        name: x
        for name, x in start.params.items()
        if name == HEIGHTS
        or (name not in FIELDS and not name.startswith(("contact.", "actuators.")))
    }

    def advance(state: Any, memory: Any, params: Any, action: Tensor, numbers: Tensor) -> Any:
        disturbances = task.disturbances(Draws(numbers, action))
        here = kernels.world(env.mech, params, disturbances=disturbances)
        here = MujocoWorld(
            **{x.name: getattr(here, x.name) for x in fields(here)}, simulations=rows
        )
        return outcome(task, here, state, memory, action)

    batched = torch.func.vmap(advance)
    state, memory, observation = start.physics, start.memory, start.observation
    queues = [_delayed(c, observation.new_zeros(starts, env.action_size)) for c in changes]
    sums = _Sums(env.mech.mass, n)
    for step in range(env.episode_length):
        for queue, action in zip(queues, policy(observation).split(starts), strict=True):
            queue.append(action)
        action = torch.cat([queue[0] for queue in queues])
        numbers = uniform_numbers(
            start.key, start.episode, start.age + step + 1, kernels.num_disturbances, action.dtype
        )
        state, memory, observation, reward, done = batched(state, memory, params, action, numbers)
        sums.add(reward, done)
        if not sums.alive.any():
            break
    parts = zip(sums.total.split(starts), sums.length.split(starts), strict=True)
    return [Returns(total, length, total.new_zeros(0)) for total, length in parts]


def _models(
    env: Environment, params: Mapping[str, Tensor], starts: int, changes: Sequence[Change]
) -> list[Any]:
    """A model of MuJoCo for each change and start, with the terrain of the start."""
    mujoco, heights = require("mujoco", "envs"), params.get(HEIGHTS)
    mechs = [env.mech] if heights is None else [_with_terrain(env.mech, x) for x in heights]
    models: list[list[Any]] = [[] for _ in changes]
    for mech in mechs:
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", RobotFileWarning)  # of parts that do not act
            save(mech, path := Path(folder) / "robot.xml")
            for found, change in zip(models, changes, strict=True):
                found.append(mujoco.MjModel.from_xml_path(str(path)))
                _apply(found[-1], change, env.task)
    return [model for found in models for model in found * (starts // len(found))]


def _with_terrain(mech: Mechanism, heights: Tensor) -> Mechanism:
    """A robot on other heights, `[fields, rows, columns]`.

    They are sampled finely: MuJoCo's ground is flat between samples, and ours smooth.
    """
    shapes, remaining = [], list(heights)
    for shape in mech.geometry.shapes:
        if isinstance(form := shape.form, HeightField):
            half = torch.tensor(form.half_sizes[:2], dtype=heights.dtype)
            x, y = (
                h * torch.linspace(-1, 1, int(2 * h / MAX_CELL) + 2, dtype=h.dtype) for h in half
            )
            points = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
            fine = surface(remaining.pop(0), points, half[None, None])[0].double().numpy()
            shape = replace(shape, form=replace(form, heights=fine))
        shapes.append(shape)
    return mech.replace(geometry=replace(mech.geometry, shapes=tuple(shapes)))


def _delayed(change: Change, action: Tensor) -> deque[Tensor]:
    """A queue whose first entry is the action to apply, after the newest one was appended."""
    return deque([action] * (change.delay + 1), maxlen=change.delay + 1)


def _apply(model: Any, change: Change, task: Task) -> None:
    """Set the integrator of the task in a model of MuJoCo, and change its robot."""
    mujoco = require("mujoco", "envs")
    if task.integrator is not None:
        model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{task.integrator.upper()}")
    if change == Change():
        return
    model.body_mass[:] *= change.mass
    model.body_inertia[:] *= change.mass
    model.geom_friction[:] *= change.friction
    model.pair_friction[:] *= change.friction
    mujoco.mj_setConst(model, mujoco.MjData(model))
