"""A robot comes in as a description of links and joints."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsko.bridge.singular_hinges import checked
from torchsko.mechanism.checks import check_gravity
from torchsko.mechanism.construct import lower
from torchsko.mechanism.description import GRAVITY, RobotDescription
from torchsko.mechanism.magnitudes import within_range
from torchsko.mechanism.mechanism import Mechanism
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
    """Turn a description into a mechanism, checked.

    Links that no joint moves hang on the inertial frame: welded to it, or by a free joint named
    "root_joint" with `floating_base` (see `load`); all but the first are reported in ``unused``. One
    without mass that nothing hangs on is welded even so, where there are others.
    Fixed joints are merged: masses add up, frames keep their names.

    Args:
        robot: links and joints.
        floating_base: put a free joint under the root link.
        gravity: in the inertial frame [m/s^2].
        strict: refuse inertias that no rigid body has; else they are used as written, and in ``report``.
        dtype: torch.float32 or torch.float64.
        device: of all tensors.

    Returns:
        The mechanism, without batch dimensions.

    Raises:
        MechanismError: on a parameter that is not physical or too large, an unknown link, nothing that
            moves, or another dtype.
        TreeError: when the joints are no tree: a cycle, or a link with two parents.
    """
    with torch.device("cpu"):  # whatever torch.set_default_device says
        mech = unchecked(robot, floating_base, gravity, strict, dtype, device)
        return checked(mech).to(dtype).to(device)


def unchecked(
    robot: RobotDescription,
    floating_base: bool,
    gravity: Sequence[float],
    strict: bool,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Mechanism:
    """The mechanism of a description, in float64 on the CPU, its hinges not yet checked."""
    check_dtype(robot.name, dtype)
    check_device(robot.name, device)
    check_gravity(gravity)
    return lower(within_range(robot, gravity, dtype), floating_base, gravity, strict)
