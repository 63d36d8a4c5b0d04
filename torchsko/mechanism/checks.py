"""Checks of a robot description; each error names the link or joint."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchsko.errors import Fields, MechanismError
from torchsko.mechanism.description import (
    FIXED,
    IDENTITY,
    Fault,
    JointDescription,
    LinkDescription,
    Matrix,
)
from torchsko.mechanism.inertia_checks import unphysical_links
from torchsko.mechanism.joints.registry import joint_type
from torchsko.mechanism.name_resolution import refuse_duplicates, refuse_unknown_links
from torchsko.mechanism.placement import are_rotations
from torchsko.mechanism.robot_description import RobotDescription

SYMMETRY_SLACK = 1e-6
"""Relative asymmetry of an inertia that is accepted: files print about six digits."""


def check_description(
    robot: RobotDescription, reserved: Sequence[str], strict: bool
) -> tuple[Fault, ...]:
    """Refuse unphysical or inconsistent descriptions.

    Args:
        robot: links and joints.
        reserved: further names of parents, such as the inertial frame.
        strict: whether to refuse inertias that violate the triangle inequality, and negative damping,
            friction and armature.

    Returns:
        Unless strict, one entry for each of these.

    Raises:
        MechanismError: names the link or joint.
    """
    refuse_duplicates("link", [link.name for link in robot.links])
    refuse_duplicates("joint", [joint.name for joint in robot.joints])
    for link in robot.links:
        if fault := inertial_fault(link):
            what, why, advice = fault
            raise MechanismError(f"link {link.name!r}: {what}", why, advice)
    faults = list(_unphysical(robot, strict))
    refuse_unknown_links(robot.joints, [link.name for link in robot.links], reserved)
    for joint in robot.joints:
        faults += _check_motion(joint, strict)
        _check_placement(joint)
        _check_limits(joint)
    return tuple(faults)


NOT_NEGATIVE = ("damping", "friction", "armature")
"""Parameters of a joint that are not negative in a passive robot."""


def negative_parameter(joint: str, field: str, value: float) -> Fault:
    """The fault of a joint whose damping, friction or armature is negative."""
    return Fault(
        f"joint {joint!r} {field}",
        f"{value:g}, which is negative: used as written",
        "Damping and friction dissipate energy and armature stores it, so they are nonnegative.",
        "Write zero or a positive number.",
    )


def _unphysical(robot: RobotDescription, strict: bool) -> tuple[Fault, ...]:
    """One entry for each unphysical inertia; the first is refused if strict."""
    faults = []
    for bad in unphysical_links(robot.links, robot.joints):
        moments = ", ".join(f"{moment:.6g}" for moment in bad.moments)
        if bad.excused:
            continue
        if strict:
            raise MechanismError(
                f"link {bad.name!r}: the principal moments of inertia {moments} kg m^2 are negative or "
                "violate the triangle inequality.",
                "No rigid body has such an inertia.",
                "Correct the inertia (is it about the center of mass, in SI units?).",
            )
        faults.append(
            Fault(
                f"link {bad.name!r} <inertia>",
                f"unphysical principal moments {moments} kg m^2: used as written",
            )
        )
    return tuple(faults)


def _check_motion(joint: JointDescription, strict: bool) -> list[Fault]:
    """Check the axis, damping, friction and armature of a joint; negative ones are faults unless strict."""
    has_axis = joint.kind != FIXED and joint_type(joint.kind).has_axis
    if has_axis and not 0 < np.linalg.norm(joint.axis) < math.inf:
        raise MechanismError(
            f"joint {joint.name!r} has the axis {joint.axis}.",
            "A joint axis needs a finite, nonzero length.",
            "Pass another axis, such as axis=(0, 0, 1).",
        )
    for field in NOT_NEGATIVE:
        value = getattr(joint, field)
        if not (0 <= value if strict else -math.inf < value) or not value < math.inf:
            raise MechanismError(
                f"joint {joint.name!r} has {field} = {value}.",
                "Damping and friction dissipate energy and armature stores it, so they are finite and "
                "nonnegative.",
                f"Pass {field}=0.0 or more.",
            )
    values = ((field, getattr(joint, field)) for field in NOT_NEGATIVE)
    return [negative_parameter(joint.name, field, value) for field, value in values if value < 0]


def _check_placement(joint: JointDescription) -> None:
    if not _is_rotation(joint.rotation):
        raise MechanismError(
            f"the rotation of joint {joint.name!r} is not a rotation matrix.",
            "The columns of a rotation are orthonormal and right-handed.",
            "Correct the matrix, or omit it.",
        )
    if not all(map(math.isfinite, (*joint.position, joint.stiffness, joint.spring_reference))):
        raise MechanismError(
            f"joint {joint.name!r} has a placement or spring that is not finite.",
            "Parameters of a robot are finite numbers.",
            "Correct position, stiffness or spring_reference.",
        )


def _check_limits(joint: JointDescription) -> None:
    if math.isnan(joint.lower) or math.isnan(joint.upper) or joint.lower > joint.upper:
        raise MechanismError(
            f"joint {joint.name!r} has the limits [{joint.lower}, {joint.upper}].",
            "The lower limit is at most the upper one, and neither is nan.",
            "Correct the limits, or omit them.",
        )
    bounded = math.isfinite(joint.lower) or math.isfinite(joint.upper)
    if bounded and joint.kind != FIXED and not joint_type(joint.kind).vector:
        raise MechanismError(
            f"joint {joint.name!r} is {joint.kind} and has the limits [{joint.lower}, {joint.upper}].",
            "Joints with quaternion coordinates have no position limits.",
            "Omit the limits, or use a compound joint of several rotations and translations.",
        )
    for field in ("velocity", "effort"):
        if not getattr(joint, field) >= 0:
            raise MechanismError(
                f"joint {joint.name!r} has the {field} limit {getattr(joint, field)}.",
                "It bounds a magnitude, so it is nonnegative.",
                "Correct the limit, or omit it.",
            )


def inertial_fault(link: LinkDescription) -> Fields | None:
    """Fields of the error for inertial parameters that are not physical; None if they are."""
    entries = [x for row in link.inertia for x in row]
    if not all(map(math.isfinite, (link.mass, *link.com, *entries, link.gravcomp))):
        return (
            "mass, center of mass, inertia or gravcomp is not finite.",
            "Parameters of a robot are finite numbers.",
            "Correct the number.",
        )
    if link.mass < 0:
        return f"the mass is {link.mass} kg.", "Mass is nonnegative.", "Pass 0.0 or more."
    (_, xy, xz), (yx, _, yz), (zx, zy, _) = link.inertia
    if max(abs(xy - yx), abs(xz - zx), abs(yz - zy)) > SYMMETRY_SLACK * max(map(abs, entries)):
        return "the inertia is not symmetric.", "", "Pass a symmetric 3 x 3 matrix."
    if not _is_rotation(link.inertia_rotation):
        return (
            "inertia_rotation is not a rotation.",
            "The columns of a rotation are orthonormal and right-handed.",
            "Correct the matrix, or omit it.",
        )
    return None


def _is_rotation(rows: Matrix) -> bool:
    if rows == IDENTITY:
        return True
    return are_rotations(np.array(rows))


def check_gravity(gravity: Sequence[float]) -> None:
    """Refuse a gravity that is not three finite numbers.

    Raises:
        MechanismError: when it is not.
    """
    try:
        fits = [math.isfinite(g) for g in gravity] == [True] * 3
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise MechanismError(
            f"gravity is {gravity!r}.",
            "It is an acceleration in the inertial frame, three finite numbers [m/s^2].",
            "Pass for example gravity=(0, 0, -9.81).",
        )
