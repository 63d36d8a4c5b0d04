"""Observations: velocities and tilt of a base, contacts of feet, histories."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.contact.contact_step import Evaluation
from torchsko.envs.task import World
from torchsko.mechanism.simulation_state import State
from torchsko.sensing.contact_wrenches import contact_wrenches
from torchsko.verbs.frames import frame_pose, frame_velocity


def projected_gravity(world: World, state: State, frame: str) -> Tensor:
    """Direction of gravity in the axes of a frame: (0, 0, -1) if it is upright, `[3]`."""
    return -frame_pose(world.mech, state.q, frame).rotation[2]


def base_velocity(world: World, state: State, frame: str) -> tuple[Tensor, Tensor]:
    """Angular and linear velocity of a frame in its own axes, `[3]` each [rad/s, m/s]."""
    omega, v = frame_velocity(world.mech, state.q, state.qd, frame).split(3, -1)
    return omega, v


def link_forces(last: Evaluation, links: Sequence[str]) -> Tensor:
    """Sum of the contact forces on each link in inertial axes, `[links, 3]` [N].

    Args:
        last: from `World.step_with_evaluation`.
        links: names of links, such as feet.
    """
    drive, state, qdd = last
    options = {"qdd": qdd, "actuators": drive.actuators, "contact": drive.contact}
    return contact_wrenches(drive.mech, state, drive.ctrl, links=links, **options)[..., 3:]


def air_time(before: Tensor, touches: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Time since the last contact of feet, and the time in the air of those that touch down now.

    Args:
        before: result of the previous step, zeros at the reset, `[feet]` [s].
        touches: whether each foot touches the ground, bool `[feet]`.
        dt: duration of a control step [s].

    Returns:
        Both `[feet]` [s]; the second is zero for feet that do not touch down.
    """
    nothing = torch.zeros_like(before)
    return torch.where(touches, nothing, before + dt), torch.where(touches, before, nothing)


def appended(history: Tensor, x: Tensor) -> Tensor:
    """A history, `[steps, n]`, without its oldest row, and with a new last row `[n]`."""
    return torch.cat([history[1:], x[None]])
