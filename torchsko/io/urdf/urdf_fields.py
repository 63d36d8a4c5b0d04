"""Required, optional and unsupported attributes and children of URDF elements."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import is_decimal, not_a_number, number, rotation_from_rpy, vector
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import IDENTITY, ZERO, Matrix, UnsupportedElement, Vector

REASONS = {
    "visual": "a visual shape, in mech.geometry; no effect on the dynamics",
    "collision": "a contact shape, in mech.geometry; it acts in ts.step and ts.ContactStep only",
    "contact": "contact is not modeled",
    "material": "a color; no effect on the dynamics",
    "transmission": "its rotor inertia is armature; torchsko.actuators.transmissions_of reads reductions",
    "gazebo": "settings of a simulator",
    "ros2_control": "settings of a controller",
    "safety_controller": "settings of a controller",
    "calibration": "the reference of an encoder",
    "sensor": "sensors are not modeled",
    "mimic": "loaded as an independent joint, or a joint that does not move",
    "axis": "a joint of this type has no axis",
    "limit": "a joint of this type does not move",
    "dynamics": "a joint of this type does not move",
    "lower": "a joint of this type has no position limits",
    "upper": "a joint of this type has no position limits",
    "version": "the version of the format makes no difference",
}
"""Reasons why elements and attributes are not used."""

UNKNOWN = "unknown to torchsko's URDF reader"

LINE_BREAK = re.compile(r"\s*\n\s*")


def report_leftovers(
    report: Report,
    element: Element,
    where: str,
    attributes: Collection[str],
    children: Collection[str] = (),
) -> None:
    """List unsupported children and attributes of an element.

    An attribute that is an element in the format, and an element that is an attribute, are faults.

    Args:
        report: gets an entry for each kind of child, and for all attributes with the same reason.
        element: the element.
        where: name of the element, for the entries.
        attributes: supported attributes.
        children: supported tags of children.
    """
    if not element.children and all(key in attributes for key in element.attributes):
        return  # the most frequent case
    tags = Counter[str]()
    for child in element.children:
        if child.tag in attributes:
            place = f"{where} <{child.tag}> (line {child.line})"
            report_misplaced(report, place, child.tag, "an attribute in URDF")
        elif child.tag not in children:
            tags[child.tag] += 1
    report.unused += [
        UnsupportedElement(
            f"{where} <{tag}>" + (f" ({n} times)" if n > 1 else ""), REASONS.get(tag, UNKNOWN)
        )
        for tag, n in tags.items()
    ]
    by_reason: dict[str, list[str]] = {}
    for key in element.attributes:
        if key in children:
            place = f"{where} attribute {key!r} (line {element.line})"
            report_misplaced(report, place, key, "an element in URDF")
        # Namespace declarations do not describe the robot.
        elif key not in attributes and not key.startswith("xmlns"):
            by_reason.setdefault(REASONS.get(key, UNKNOWN), []).append(repr(key))
    report.unused += [
        UnsupportedElement(f"{where} attribute {', '.join(keys)}", why)
        for why, keys in by_reason.items()
    ]


def report_misplaced(report: Report, place: str, name: str, kind: str) -> None:
    """Report an attribute in place of an element, or the reverse."""
    reason = f"not read, since {name!r} is {kind}"
    error = RobotFileError(
        f"{place}: {reason}.", "The default is used instead.", "Write it as in the format."
    )
    report.fault(place, reason, error)


def attribute(element: Element, key: str, where: str) -> str:
    """The value of a required attribute.

    Raises:
        RobotFileError: if it is missing or empty.
    """
    value = element.attributes.get(key, "")
    if not value.strip():
        raise missing(element, key, where)
    return value


def missing(element: Element, key: str, where: str) -> RobotFileError:
    """The error for a required attribute that is missing or empty."""
    how = "is empty" if key in element.attributes else "is missing"
    return RobotFileError(
        f"{place(element, key, where)} {how}.",
        "It is required and has no default.",
        f'Write <{element.tag} {key}="...">.',
    )


def numeric(
    element: Element, key: str, where: str, report: Report, default: float | None = None
) -> float:
    """A number, required if there is no default; a line break inside it is removed and reported."""
    if default is not None and key not in element.attributes:
        return default
    text, here = attribute(element, key, where), place(element, key, where)
    whole = LINE_BREAK.sub("", text.strip())
    if whole == text.strip() or not is_decimal(whole):
        return number(text, here)
    report.fault(here, f"has a line break in a number: read as {whole}", not_a_number(text, here))
    return number(whole, here)


def numeric_or_zero(element: Element, key: str, where: str, report: Report) -> float:
    """A required number; if it is missing, zero (the default in urdf.xsd) and a fault."""
    if not element.attributes.get(key, "").strip():
        report.fault(place(element, key, where), "missing: read as 0", missing(element, key, where))
        return 0.0
    return numeric(element, key, where, report)


def not_negative(element: Element, key: str, where: str, value: float) -> float:
    """Check that the value of an attribute is not negative."""
    if value < 0:
        raise negative(element, key, where, value)
    return value


def negative(element: Element, key: str, where: str, value: float) -> RobotFileError:
    """The error for an attribute with a negative value."""
    return RobotFileError(
        f"{place(element, key, where)} is {value}, which is negative.",
        "Negative masses, losses and limits are unphysical.",
        "Write zero or a positive number.",
    )


def place(element: Element, key: str, where: str) -> str:
    """Name of an attribute, with its line, for a message."""
    return f"{where}: attribute {key!r} of <{element.tag}> (line {element.line})"


def only_child(element: Element, tag: str, where: str) -> Element | None:
    """The child with a tag, or None.

    Raises:
        RobotFileError: if there are several.
    """
    found = [child for child in element.children if child.tag == tag]
    if len(found) > 1:
        raise RobotFileError(
            f"{where} has {len(found)} elements <{tag}> (the second in line {found[1].line}).",
            "The format permits one.",
            "Delete the others.",
        )
    return found[0] if found else None


def required_child(element: Element, tag: str, where: str) -> Element:
    """The child with a tag.

    Raises:
        RobotFileError: if there is none, or several.
    """
    found = only_child(element, tag, where)
    if found is None:
        raise missing_child(element, tag, where)
    return found


def missing_child(element: Element, tag: str, where: str) -> RobotFileError:
    """The error for a missing child."""
    return RobotFileError(
        f"{where}: <{element.tag}> (line {element.line}) has no <{tag}>.",
        "It is required and has no default.",
        f"Write a <{tag} .../> inside it.",
    )


def origin(parent: Element, where: str, report: Report) -> tuple[Matrix, Vector]:
    """Rotation and position [m] of an <origin>; the identity if there is none."""
    element = only_child(parent, "origin", where)
    if element is None:
        return IDENTITY, ZERO
    if "quat_xyzw" in element.attributes:
        raise RobotFileError(
            f"{where} (line {element.line}): <origin> has a quaternion, quat_xyzw.",
            "torchsko does not support this attribute.",
            'Write the rotation as rpy="roll pitch yaw" in radians.',
        )
    report_leftovers(report, element, f"{where} <origin>", ("xyz", "rpy"))
    xyz, rpy = (
        vector(element.attributes.get(key, "0 0 0"), place(element, key, where))
        for key in ("xyz", "rpy")
    )
    return rotation_from_rpy(rpy), xyz
