"""What a description must satisfy before it becomes tensors; one error each, naming the element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchsko.errors import MechanismError
from torchsko.mechanism.description import (
    FIXED,
    IDENTITY,
    Fault,
    JointDescription,
    LinkDescription,
    Matrix,
    RobotDescription,
)
from torchsko.mechanism.inertia_checks import unphysical_links
from torchsko.mechanism.joints.registry import joint_type
from torchsko.mechanism.name_resolution import refuse_duplicates, refuse_unknown_links
from torchsko.mechanism.placement import are_rotations

SYMMETRY_SLACK = 1e-6
"""Relative difference of mirrored entries of an inertia: people print six digits or so."""


def check_description(
    robot: RobotDescription, reserved: Sequence[str], strict: bool
) -> tuple[Fault, ...]:
    """Refuse what is not physical or not consistent.

    Args:
        robot: links and joints.
        reserved: names that joints may use as a parent though no link has them.
        strict: refuse inertias that no rigid body has, too.

    Returns:
        Unless strict, one entry for each such inertia.

    Raises:
        MechanismError: names the link or joint, says why, and what to type.
    """
    refuse_duplicates("link", [link.name for link in robot.links])
    refuse_duplicates("joint", [joint.name for joint in robot.joints])
    for link in robot.links:
        if fault := inertial_fault(link):
            raise MechanismError(f"link {link.name!r}: {fault}")
    faults = _unphysical(robot, strict)
    refuse_unknown_links(robot.joints, [link.name for link in robot.links], reserved)
    for joint in robot.joints:
        _check_motion(joint)
        _check_placement(joint)
        _check_limits(joint)
    return faults


def _unphysical(robot: RobotDescription, strict: bool) -> tuple[Fault, ...]:
    """One entry for each inertia that no rigid body has; the first is refused when strict."""
    faults = []
    for bad in unphysical_links(robot.links, robot.joints):
        moments = ", ".join(f"{moment:.6g}" for moment in bad.moments)
        if bad.excused:
            continue
        if strict:
            raise MechanismError(
                f"link {bad.name!r}: the principal moments of inertia {moments} kg m^2 belong to no "
                "rigid body: one is negative, or they break the triangle inequality.",
                "The largest is at most the sum of the others for any mass distribution.",
                "Correct the inertia (is it about the centre of mass, in SI units?).",
            )
        faults.append(
            Fault(
                f"link {bad.name!r} <inertia>",
                f"no rigid body has the principal moments {moments} kg m^2: used as written",
            )
        )
    return tuple(faults)


def _check_motion(joint: JointDescription) -> None:
    """The axis, and what resists motion along it."""
    has_axis = joint.kind != FIXED and joint_type(joint.kind).has_axis
    if has_axis and not 0 < np.linalg.norm(joint.axis) < math.inf:
        raise MechanismError(
            f"joint {joint.name!r} has the axis {joint.axis}.",
            "A direction of motion has a finite, nonzero length.",
            "Pass axis=(0, 0, 1), say.",
        )
    for field in ("damping", "friction", "armature"):
        value = getattr(joint, field)
        if not 0 <= value < math.inf:
            raise MechanismError(
                f"joint {joint.name!r} has {field} = {value}.",
                "It takes energy out of the joint (armature: stores it), so it is finite and not "
                "negative.",
                f"Pass {field}=0.0 or more.",
            )


def _check_placement(joint: JointDescription) -> None:
    if not _is_rotation(joint.rotation):
        raise MechanismError(
            f"joint {joint.name!r} has a rotation that is none.",
            "The columns of a rotation are orthonormal and right-handed.",
            "Correct the matrix, or leave it out.",
        )
    if not all(map(math.isfinite, (*joint.position, joint.stiffness, joint.spring_reference))):
        raise MechanismError(
            f"joint {joint.name!r} has a placement or spring that is not finite.",
            "Every number of a robot is.",
            "Correct position, stiffness or spring_reference.",
        )


def _check_limits(joint: JointDescription) -> None:
    if math.isnan(joint.lower) or math.isnan(joint.upper) or joint.lower > joint.upper:
        raise MechanismError(
            f"joint {joint.name!r} has the limits [{joint.lower}, {joint.upper}].",
            "Both are numbers, and the lower one is not above the upper one.",
            "Correct them, or leave both out.",
        )
    bounded = math.isfinite(joint.lower) or math.isfinite(joint.upper)
    if bounded and joint.kind != FIXED and not joint_type(joint.kind).vector:
        raise MechanismError(
            f"joint {joint.name!r} is {joint.kind} and has the limits [{joint.lower}, {joint.upper}].",
            "Its coordinates are no angles or ways that could have ends: nothing would keep them.",
            "Leave them out, or build the joint of several hinges or slides.",
        )
    for field in ("velocity", "effort"):
        if not getattr(joint, field) >= 0:
            raise MechanismError(
                f"joint {joint.name!r} has the {field} limit {getattr(joint, field)}.",
                "It bounds a magnitude, so it is not negative.",
                "Correct it, or leave it out for none.",
            )


def inertial_fault(link: LinkDescription) -> str | None:
    """Why a link's inertial parameters are no numbers of a rigid body; None when they may be."""
    entries = [x for row in link.inertia for x in row]
    if not all(map(math.isfinite, (link.mass, *link.com, *entries, link.gravcomp))):
        return (
            "mass, centre of mass, inertia or gravcomp is not finite.\n"
            "Every number of a robot is finite.\nCorrect the number."
        )
    if link.mass < 0:
        return f"the mass is {link.mass} kg.\nMass is not negative.\nPass 0.0 or more."
    (_, xy, xz), (yx, _, yz), (zx, zy, _) = link.inertia
    if max(abs(xy - yx), abs(xz - zx), abs(yz - zy)) > SYMMETRY_SLACK * max(map(abs, entries)):
        return "the inertia is not symmetric.\nPass a symmetric 3 x 3 matrix."
    if not _is_rotation(link.inertia_rotation):
        return (
            "inertia_rotation is no rotation.\nIts columns are orthonormal and right-handed.\n"
            "Correct the matrix, or leave it out."
        )
    return None


def _is_rotation(rows: Matrix) -> bool:
    if rows == IDENTITY:
        return True
    return are_rotations(np.array(rows))


def check_gravity(gravity: Sequence[float]) -> None:
    """Refuse a gravity that is not three finite numbers.

    Raises:
        MechanismError: says what to type.
    """
    try:
        fits = [math.isfinite(g) for g in gravity] == [True] * 3
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise MechanismError(
            f"gravity is {gravity!r}.",
            "It is an acceleration in the inertial frame, three finite numbers [m/s^2].",
            "Pass gravity=(0, 0, -9.81), say.",
        )
