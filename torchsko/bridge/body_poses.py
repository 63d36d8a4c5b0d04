"""Poses of the bodies of a tree in the inertial frame."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.joint_motion import joint_poses
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import concatenate


class Pose(NamedTuple):
    """Placement of several frames in the inertial frame.

    Attributes:
        rotation: frame to inertial coordinates, `[*batch, n, 3, 3]`.
        position: frame origins, `[*batch, n, 3]` [m].
    """

    rotation: Tensor
    position: Tensor


def body_poses(tree: Mechanism, q: Tensor) -> Pose:
    """Pose of every body of a mechanism without couplings, in the order of ``body_names``."""
    layout = tree.layout
    placed = layout.breadth_first(tree.joint_rotation, -3)
    origin = layout.breadth_first(tree.joint_position, -2)[..., None]
    turn, shift = joint_poses(tree, q)
    step = origin if shift is None else origin + placed @ shift[..., None]
    turned = placed if turn is None else placed @ turn
    local = concatenate((turned, step))
    levels = list(layout.split(local))
    for depth in range(1, len(levels)):
        above = layout.links[depth].to_children(levels[depth - 1])
        moved = above[..., :3] @ levels[depth]
        levels[depth] = torch.cat([moved[..., :3], moved[..., 3:] + above[..., 3:]], -1)
    pose = layout.tree_order(torch.cat(levels, -3), -3)
    return Pose(pose[..., :3], pose[..., 3])
