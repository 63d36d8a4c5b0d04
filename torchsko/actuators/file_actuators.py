"""Actuators of a robot file."""

from __future__ import annotations

from torchsko.actuators.actuators import Actuators
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism


def actuators_of(mech: MechanismLike) -> Actuators:
    """The actuators of the file that a mechanism was loaded from, those of `torchsko.step`.

    The transmissions of a URDF file are no actuators: `torchsko.actuators.transmissions_of` reads them.

    Args:
        mech: the mechanism.

    Returns:
        The actuators, in the order of the file. Its ``unused`` lists actuators that are not modeled, with
        the reason: muscles, spatial tendons, sites, slider-cranks, bodies, delays, disabled groups; PID
        loops and DC motors with states (integral, inductance, temperature, bristles), cogging, a voltage
        limit, or several controls.

    Raises:
        MechanismError: when the mechanism lacks joints of the file.

    Example:
        >>> import torchsko as ts
        >>> text = '''<mujoco><worldbody><body><joint name="hinge"/><geom size="0.1"/></body></worldbody>
        ...   <actuator><position name="servo" joint="hinge" kp="20"/></actuator></mujoco>'''
        >>> ts.actuators.actuators_of(ts.load(text)).names
        ('servo',)
    """
    robot = as_mechanism(mech)
    return Actuators.of_file(robot, robot.file_metadata.actuators)
