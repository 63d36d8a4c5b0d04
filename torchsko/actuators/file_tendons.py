"""The tendons of a robot file whose lengths are sums over joint coordinates."""

from __future__ import annotations

from torchsko.actuators.tendons import Tendons
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism


def tendons_of(mech: MechanismLike) -> Tendons:
    """The tendons on joints of the file that a mechanism was loaded from, those of `torchsko.step`.

    Args:
        mech: the mechanism.

    Returns:
        The tendons, in the order of the file. Its ``unused`` lists spatial tendons and fields that are not
        modeled.

    Raises:
        MechanismError: when the mechanism lacks joints of the file.

    Example:
        >>> import torchsko as ts
        >>> text = '''<mujoco><worldbody><body><joint name="hinge"/><geom size="0.1"/></body></worldbody>
        ...   <tendon><fixed name="belt" stiffness="5"><joint joint="hinge" coef="0.2"/></fixed></tendon>
        ... </mujoco>'''
        >>> arm = ts.load(text)
        >>> ts.actuators.tendons_of(arm).force(arm, arm.initial() + 0.1, arm.initial())
        tensor([-0.0200], dtype=torch.float64)
    """
    robot = as_mechanism(mech)
    data = robot.file_metadata
    return Tendons.of(robot, data.tendons, unused=data.unused_tendons)
