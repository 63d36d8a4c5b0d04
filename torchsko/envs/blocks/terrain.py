"""Random terrain, and heights below a robot."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.envs.random_numbers import Draws
from torchsko.envs.task import World
from torchsko.mechanism.simulation_state import State
from torchsko.shapes.height_field import surface
from torchsko.utils.shapes import matvec
from torchsko.verbs.frames import frame_pose


def waves(world: World, draw: Draws, amplitude: float, length: float, count: int = 6) -> Tensor:
    """Random heights of the first height field: a sum of waves in random directions.

    Return it from `Task.parameters` as "contact.heights".

    Args:
        world: the robot.
        draw: random numbers.
        amplitude: root mean square of the heights [m].
        length: shortest length of a wave; the longest one is three times as long [m].
        count: number of waves.

    Returns:
        `[fields, rows, columns]` [m]. Other fields keep their heights.
    """
    heights = world.contact.heights
    k = world.contact.shape_kinds.index("heightfield")
    x, y = (_line(world, k, n, heights.shape[-1 - n]) for n in (0, 1))
    angle = draw.uniform(0.0, 2 * torch.pi, count)[:, None, None]
    phase = draw.uniform(0.0, 2 * torch.pi, count)[:, None, None]
    number = 2 * torch.pi / draw.uniform(length, 3 * length, count)[:, None, None]
    along = angle.cos() * x + angle.sin() * y[:, None]
    found = amplitude * (2 / count) ** 0.5 * (number * along + phase).sin().sum(0)
    return torch.cat([found[None], heights[1:]])


def _line(world: World, shape: int, axis: int, count: int) -> Tensor:
    """Places of the heights along an axis of a height field, `[count]` [m]."""
    half = world.contact.shape_size[shape, axis]
    return half * torch.linspace(-1, 1, count, dtype=half.dtype, device=half.device)


def terrain_heights(world: World, points: Tensor) -> Tensor:
    """Heights of the first height field below points, `[k]` [m].

    Args:
        world: the robot, with its terrain.
        points: in the inertial frame, `[k, 2 or 3]` [m].
    """
    contact = world.contact
    k = contact.shape_kinds.index("heightfield")
    offset = points[:, :2] - contact.shape_position[k, :2]
    size = contact.shape_size[k]
    height = surface(contact.heights[0], offset[None], size[None, None])[0][0]
    return height + contact.shape_position[k, 2]


def height_scan(world: World, state: State, frame: str, points: Tensor) -> Tensor:
    """Heights of the origin of a frame above the terrain around it, `[k]` [m].

    Args:
        world: the robot, with its terrain.
        state: its state.
        frame: name of a frame, such as the base.
        points: relative to the frame along its heading, `[k, 2]` [m].
    """
    R, r = frame_pose(world.mech, state.q, frame)
    forward = R[:2, 0] * (R[:2, 0].square().sum() + 1e-12).rsqrt()
    heading = torch.stack([forward, torch.stack([-forward[1], forward[0]])], -1)
    return r[2] - terrain_heights(world, r[:2] + matvec(heading, points))
