"""Forward kinematics of bodies; `frames` has named frames."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.body_motion import joint_poses
from torchsko.mechanism.coordinates import tree_q, uncoupled
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.utils.shapes import concatenate


class Pose(NamedTuple):
    """Placement of several frames in the inertial frame.

    Attributes:
        rotation: frame to inertial coordinates, `[*batch, n, 3, 3]`.
        position: frame origins, `[*batch, n, 3]` [m].
    """

    rotation: Tensor
    position: Tensor


@verb
def forward_kinematics(mech: Mechanism, q: Tensor) -> Pose:
    """Pose of every body in the inertial frame, in the order of ``mech.body_names``.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.

    Returns:
        Rotations `[*batch, num_bodies, 3, 3]` and positions `[*batch, num_bodies, 3]` [m].

    Raises:
        ShapeError: when q does not fit the mechanism.

    Reference: Siciliano et al. 2009, Robotics (direct kinematics).
    """
    check_state(mech, q=q)
    q, mech = tree_q(mech, q), uncoupled(mech)
    layout = mech.layout
    placed = layout.breadth_first(mech.joint_rotation, -3)
    origin = layout.breadth_first(mech.joint_position, -2)[..., None]
    turn, shift = joint_poses(mech, q)
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
