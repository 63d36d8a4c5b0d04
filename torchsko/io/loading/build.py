"""Construction of a mechanism from a description of links and joints."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsko.bridge.singular_hinges import mark_singular_joints
from torchsko.mechanism.checks import check_gravity
from torchsko.mechanism.construct import lower
from torchsko.mechanism.description import GRAVITY
from torchsko.mechanism.flexible.points import refuse_joints_above_markers
from torchsko.mechanism.magnitudes import within_range
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.robot_description import RobotDescription
from torchsko.mechanism.validation import check_device, check_dtype


def build_mechanism(
    robot: RobotDescription,
    *,
    floating_base: bool = False,
    gravity: Sequence[float] = GRAVITY,
    strict: bool = True,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Mechanism:
    """Build a mechanism from a description, and check it.

    Root links are welded to the inertial frame or, with `floating_base`, connected to it by a free joint
    named "root_joint" (see `load`). All roots but the first are listed in ``unused``. If there are several, a
    root without mass and without children is always welded. Links connected by fixed joints become one body;
    their frames retain their names.

    Args:
        robot: links and joints.
        floating_base: put a free joint under the root link.
        gravity: in the inertial frame [m/s^2].
        strict: refuse unphysical inertias; otherwise they are used as written, and listed in ``report``.
        dtype: torch.float32 or torch.float64.
        device: of all tensors.

    Returns:
        The mechanism, without batch dimensions.

    Raises:
        MechanismError: for a parameter that is unphysical or too large, an unknown link, a robot without
            moving joints, or an unsupported dtype.
        TreeError: if the joints form no tree: there is a cycle, or a link with two parents.
    """
    with torch.device("cpu"):  # overrides torch.set_default_device
        mech = unchecked(robot, floating_base, gravity, strict, dtype, device)
        return mark_singular_joints(mech).to(dtype).to(device)


def unchecked(
    robot: RobotDescription,
    floating_base: bool,
    gravity: Sequence[float],
    strict: bool,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Mechanism:
    """The mechanism of a description, in float64 on the CPU, without the check for singular joints."""
    check_dtype(robot.name, dtype)
    check_device(robot.name, device)
    check_gravity(gravity)
    refuse_joints_above_markers(robot.joints)
    return lower(within_range(robot, gravity, dtype), floating_base, gravity, strict)
