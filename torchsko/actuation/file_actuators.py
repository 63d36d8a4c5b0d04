"""Actuators of a robot file: of an MJCF file or a compiled MuJoCo model, or the transmissions of a URDF."""

from __future__ import annotations

import os
from typing import Any

from torchsko.actuation.actuators import Actuators
from torchsko.io.common.source import format_of
from torchsko.io.mjcf.read_mjcf import model_of
from torchsko.io.mujoco.mujoco_actuators import read_actuators
from torchsko.io.urdf.urdf_transmissions import read_transmissions
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.file_data.actuator import Actuator


def actuators_of(source: Any, mech: MechanismLike) -> Actuators:
    """The actuators of an MJCF file, of a compiled model, or of a URDF file.

    Args:
        source: path of a file, its text, or ``mujoco.MjModel``. The transmissions of a URDF file
            (`torchsko.transmissions_of`) become motors, whose control is the torque before the gear.
        mech: the mechanism loaded from the same source.

    Returns:
        The actuators, in the order of the file. Its ``unused`` lists actuators that are not modelled, with
        the reason: muscles, spatial tendons, sites, slider-cranks, bodies, delays, disabled groups; PID
        loops and DC motors with states (integral, inductance, temperature, bristles), cogging, a voltage
        limit, or several controls; transmissions of several joints.

    Raises:
        RobotFileError: when the file is not readable; see `torchsko.load`.
        MechanismError: when the mechanism lacks joints of the file.

    Example:
        >>> import torchsko as ts
        >>> text = '''<mujoco><worldbody><body><joint name="hinge"/><geom size="0.1"/></body></worldbody>
        ...   <actuator><position name="servo" joint="hinge" kp="20"/></actuator></mujoco>'''
        >>> ts.actuators_of(text, ts.load(text)).names
        ('servo',)
    """
    if isinstance(source, str | os.PathLike) and format_of(source) != "mjcf":
        return _of_urdf(source, mech)
    return Actuators.of_file(mech, read_actuators(model_of(source)))


def _of_urdf(source: str | os.PathLike[str], mech: MechanismLike) -> Actuators:
    """The transmissions of a URDF file as motors."""
    transmissions, unused = read_transmissions(source)
    moving = set(as_mechanism(mech).tree_joint_names)
    unused += [
        UnsupportedElement(f"transmission {t.name!r}", f"no moving joint is named {t.joint!r}")
        for t in transmissions
        if t.joint not in moving
    ]
    motors = [
        Actuator.motor(t.actuator, t.joint, gear=t.reduction)
        for t in transmissions
        if t.joint in moving
    ]
    return Actuators.of(mech, motors, unused=unused)
