"""Attributes and children of URDF elements: required, optional, and left over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import is_decimal, not_a_number, number, rotation_from_rpy, vector
from torchsko.io.common.report import Report
from torchsko.io.xml.reader import Element
from torchsko.mechanism.description import IDENTITY, ZERO, Matrix, UnsupportedElement, Vector

# Why a part of a file is not used, by its tag or attribute.
REASONS = {
    "visual": "a shape to look at, no part of the dynamics; kept in mech.geometry",
    "collision": "a contact shape, kept in mech.geometry; contact is not modelled",
    "contact": "contact is not modelled",
    "material": "a colour, no part of the dynamics",
    "transmission": "no part of the dynamics; torchsko.transmissions_of reads reductions and rotors",
    "gazebo": "settings of a simulator",
    "ros2_control": "settings of a controller",
    "safety_controller": "settings of a controller",
    "calibration": "the reference of an encoder",
    "sensor": "sensors are not modelled",
    "mimic": "loaded as a joint of its own, or not moving at all",
    "axis": "a joint of this type has no axis",
    "limit": "a joint of this type does not move",
    "dynamics": "a joint of this type does not move",
    "lower": "a joint of this type has no limits of position",
    "upper": "a joint of this type has no limits of position",
    "version": "the version of the format changes nothing that is read",
}
LINE_BREAK = re.compile(r"\s*\n\s*")
UNKNOWN = "not known to torchsko's URDF reader"


def leftovers(
    element: Element, where: str, attributes: Collection[str], children: Collection[str] = ()
) -> list[UnsupportedElement]:
    """What an element holds besides the attributes and children that are read.

    Returns:
        One entry for each kind of child, and one for each reason an attribute is not read.
    """
    if not element.children and all(key in attributes for key in element.attributes):
        return []  # as nearly everywhere
    tags = Counter(child.tag for child in element.children if child.tag not in children)
    entries = [
        UnsupportedElement(
            f"{where} <{tag}>" + (f" ({n} times)" if n > 1 else ""), REASONS.get(tag, UNKNOWN)
        )
        for tag, n in tags.items()
    ]
    by_reason: dict[str, list[str]] = {}
    for key in element.attributes:
        # A namespace declaration says nothing about the robot.
        if key not in attributes and not key.startswith("xmlns"):
            by_reason.setdefault(REASONS.get(key, UNKNOWN), []).append(repr(key))
    entries += [
        UnsupportedElement(f"{where} attribute {', '.join(keys)}", why)
        for why, keys in by_reason.items()
    ]
    return entries


def attribute(element: Element, key: str, where: str) -> str:
    """A required attribute that is not empty.

    Raises:
        RobotFileError: it is missing or empty.
    """
    value = element.attributes.get(key, "")
    if not value.strip():
        raise RobotFileError(missing(element, key, where))
    return value


def missing(element: Element, key: str, where: str) -> str:
    """Message that a required attribute is missing or empty."""
    how = "is empty" if key in element.attributes else "is missing"
    return (
        f"{place(element, key, where)} {how}.\n"
        "The format requires it, and it has no default.\n"
        f'Write <{element.tag} {key}="...">.'
    )


def numeric(
    element: Element, key: str, where: str, report: Report, default: float | None = None
) -> float:
    """A number; required if there is no default.

    Digits that a line break parts are one number, and noted.
    """
    if default is not None and key not in element.attributes:
        return default
    text, here = attribute(element, key, where), place(element, key, where)
    whole = LINE_BREAK.sub("", text.strip())
    if whole == text.strip() or not is_decimal(whole):
        return number(text, here)
    report.fault(here, f"a line break parts its digits: read as {whole}", not_a_number(text, here))
    return number(whole, here)


def numeric_or_zero(element: Element, key: str, where: str, report: Report) -> float:
    """A number that the format requires; zero where it is missing, as in urdf.xsd, and noted."""
    if not element.attributes.get(key, "").strip():
        report.fault(place(element, key, where), "missing: read as 0", missing(element, key, where))
        return 0.0
    return numeric(element, key, where, report)


def not_negative(element: Element, key: str, where: str, value: float) -> float:
    """The value of an attribute, refused where it is below zero."""
    if value < 0:
        raise RobotFileError(negative(element, key, where, value))
    return value


def negative(element: Element, key: str, where: str, value: float) -> str:
    """Message that the value of an attribute is below zero."""
    return (
        f"{place(element, key, where)} is {value}, which is negative.\n"
        "Such a part would create energy, or limit motion to nothing.\n"
        "Write zero or a positive number."
    )


def place(element: Element, key: str, where: str) -> str:
    """Name of an attribute for a message."""
    return f"{where}: attribute {key!r} of <{element.tag}> (line {element.line})"


def only_child(element: Element, tag: str, where: str) -> Element | None:
    """The child of that tag, if any."""
    found = [child for child in element.children if child.tag == tag]
    if len(found) > 1:
        raise RobotFileError(
            f"{where} has {len(found)} elements <{tag}> (the second in line {found[1].line}).",
            "It is unclear which one counts.",
            "Keep one of them.",
        )
    return found[0] if found else None


def required_child(element: Element, tag: str, where: str) -> Element:
    """The child of that tag."""
    found = only_child(element, tag, where)
    if found is None:
        raise RobotFileError(childless(element, tag, where))
    return found


def childless(element: Element, tag: str, where: str) -> str:
    """Message that a required child is missing."""
    return (
        f"{where}: <{element.tag}> (line {element.line}) has no <{tag}>.\n"
        "The format requires it, and it has no default.\n"
        f"Write a <{tag} .../> inside it."
    )


def origin(parent: Element, where: str, report: Report) -> tuple[Matrix, Vector]:
    """Rotation and position [m] of an optional <origin>; the identity by default."""
    element = only_child(parent, "origin", where)
    if element is None:
        return IDENTITY, ZERO
    if "quat_xyzw" in element.attributes:
        raise RobotFileError(
            f"{where} (line {element.line}): <origin> has a quaternion, quat_xyzw.",
            "Few programs read that; this one does not, and to ignore it would turn the frame.",
            'Write the rotation as rpy="roll pitch yaw" in radians.',
        )
    report.unused += leftovers(element, f"{where} <origin>", ("xyz", "rpy"))
    xyz, rpy = (
        vector(element.attributes.get(key, "0 0 0"), place(element, key, where))
        for key in ("xyz", "rpy")
    )
    return rotation_from_rpy(rpy), xyz
