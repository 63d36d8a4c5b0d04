"""Forward kinematics of bodies; `frames` has named frames."""

from __future__ import annotations

from torch import Tensor

from torchsko.bridge.body_poses import Pose
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism


@verb
def forward_kinematics(mech: Mechanism, q: Tensor) -> Pose:
    """Pose of every body in the inertial frame, in the order of ``mech.body_names``.

    Returns:
        Rotations `[*batch, num_bodies, 3, 3]` and positions `[*batch, num_bodies, 3]` [m].

    Reference: Siciliano et al. 2009, Robotics (direct kinematics).
    """
    return Kinematics.of(mech, q).poses
