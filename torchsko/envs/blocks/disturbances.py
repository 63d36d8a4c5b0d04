"""Forces and events that a policy does not control."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.envs.task import World
from torchsko.mechanism.simulation_state import State
from torchsko.verbs.frames import frame_pose


def push(world: World, state: State, body: str, force: Tensor) -> Tensor:
    """A force at the origin of a body as ``f_ext`` of a step.

    Args:
        world: the robot.
        state: its state.
        body: name of a moving body, one of ``mech.body_names``.
        force: in inertial axes, `[3]` [N].

    Returns:
        `[num_bodies, 6]`, in the frames of the bodies.
    """
    R = frame_pose(world.mech, state.q, body).rotation
    row = torch.cat([torch.zeros_like(force), R.mT @ force])
    k = world.mech.body_names.index(body)
    return torch.nn.functional.pad(row[None], (0, 0, k, world.mech.num_bodies - k - 1))


def occasional(chance: float | Tensor, number: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """A new value with a probability, else the old one: commands that change, pushes that begin.

    Args:
        chance: probability of the new value in a control step; ``dt / T`` for once in T seconds.
        number: a uniform random number of this step, `[]` or `[1]`.
        new: the new value.
        old: the old value.
    """
    return torch.where(number < chance, new, old)
