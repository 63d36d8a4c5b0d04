"""Largest magnitudes of a robot's parameters for which the dynamics does not overflow.

The largest products in the recursions are masses times squared lengths, summed over the links, and inertias.
With masses and lengths up to L and inertias up to L^3, they stay at least five orders of magnitude below the
largest number of the dtype. L is 1e100 in float64 and 1e11 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from torchsko.errors import MechanismError
from torchsko.mechanism.description import CouplingDescription, JointDescription, UnsupportedElement
from torchsko.mechanism.robot_description import RobotDescription

LARGEST = {torch.float64: 1e100, torch.float32: 1e11}
"""Largest mass [kg], length [m] and joint coefficient by dtype; inertias are bounded by the third power."""

MAX_RATIO = 1e150
"""Coefficient of a chain of couplings above which the search for further ones stops."""

LIMITS = ("lower", "upper", "velocity", "effort")


def within_range(
    robot: RobotDescription, gravity: Sequence[float], dtype: torch.dtype
) -> RobotDescription:
    """Check magnitudes, and replace joint limits beyond the range by infinity, with a note.

    Args:
        robot: the description.
        gravity: gravity [m/s^2].
        dtype: dtype of the mechanism.

    Raises:
        MechanismError: names the link or joint with a number that is too large, and the number.
    """
    largest = LARGEST[dtype]
    for link in robot.links:
        where = f"link {link.name!r}: the"
        refuse_too_large(f"{where} mass [kg]", (link.mass,), largest, dtype)
        refuse_too_large(f"{where} center of mass [m]", link.com, largest, dtype)
        entries = [x for row in link.inertia for x in row]
        weightless = link.gravcomp * link.mass
        refuse_too_large(f"{where} compensated mass [kg]", (weightless,), largest, dtype)
        refuse_too_large(f"{where} inertia [kg m^2]", entries, largest**3, dtype)
    for joint in robot.joints:
        where = f"joint {joint.name!r}: the"
        refuse_too_large(f"{where} position of its origin [m]", joint.position, largest, dtype)
        for field in ("damping", "friction", "armature", "stiffness", "spring_reference"):
            refuse_too_large(f"{where} {field}", (getattr(joint, field),), largest, dtype)
        for name, value in joint.data.items():
            if isinstance(value, int | float):  # such as the pitch of a helical joint
                refuse_too_large(f"{where} {name}", (value,), largest, dtype)
    couplings = {coupling.joint: coupling for coupling in robot.couplings}
    for coupling in robot.couplings:
        numbers = (*coupling.coefficients.values(), coupling.offset)
        # The inertia of a dependent joint is multiplied by the square of its coefficient.
        refuse_too_large(f"coupling {coupling.joint!r}: a number", numbers, largest**0.5, dtype)
        what = f"coupling {coupling.joint!r}: the product with those of the joints it follows"
        refuse_too_large(what, (_total_ratio(coupling, couplings),), largest**0.5, dtype)
    refuse_too_large("gravity [m/s^2]", gravity, largest, dtype)
    beyond = {joint.name: _limits_out_of_range(joint, largest) for joint in robot.joints}
    if not any(beyond.values()):
        return robot
    joints = tuple(
        replace(
            joint, **{name: math.copysign(math.inf, x) for name, x in beyond[joint.name].items()}
        )
        for joint in robot.joints
    )
    notes = tuple(
        UnsupportedElement(
            f"joint {name!r} limit {', '.join(map(repr, limits))}",
            "too large to represent; treated as no limit",
        )
        for name, limits in beyond.items()
        if limits
    )
    return replace(robot, joints=joints, unused=robot.unused + notes)


def _total_ratio(
    coupling: CouplingDescription, couplings: Mapping[str, CouplingDescription]
) -> float:
    """Largest coefficient of a dependent joint, times those of the joints that it follows in turn."""
    ratio, visited, current = 1.0, set[str](), coupling
    while current.coefficients and current.joint not in visited and ratio < MAX_RATIO:
        visited.add(current.joint)
        leader, coefficient = max(current.coefficients.items(), key=lambda item: abs(item[1]))
        ratio *= abs(coefficient)
        current = couplings.get(leader, CouplingDescription(leader, {}))
    return ratio


def _limits_out_of_range(joint: JointDescription, largest: float) -> dict[str, float]:
    values = {name: getattr(joint, name) for name in LIMITS}
    return {name: x for name, x in values.items() if largest < abs(x) < math.inf}


def refuse_too_large(
    what: str, values: Sequence[float], largest: float, dtype: torch.dtype
) -> None:
    """Refuse finite numbers whose products overflow.

    Raises:
        MechanismError: names the quantity.
    """
    found = [x for x in values if largest < abs(x) < math.inf]
    if found:
        fits_double = dtype == torch.float32 and abs(found[0]) <= LARGEST[torch.float64]
        raise MechanismError(
            f"{what} is {found[0]:g}, more than {largest:g}.",
            f"Its products overflow in {dtype}, so torques and accelerations would not be finite.",
            "Correct the number, which is in SI units"
            + (", or pass dtype=torch.float64." if fits_double else "."),
        )
