"""The URDF reader: a robot file to a `RobotDescription`, with a report of all it left unused.

What is read: links with mass, centre of mass and inertia in a rotated frame; joints with placement,
axis, limits, damping and friction. What is not: shapes, and settings of simulators and actuators.
Rotations are fixed-axis roll, pitch, yaw, ``R = Rz(yaw) Ry(pitch) Rx(roll)``.

Source of the format: the ROS wiki's pages urdf/XML/link and urdf/XML/joint.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from torchsko.errors import RobotFileError
from torchsko.io._urdf_fields import (
    attribute,
    leftovers,
    not_negative,
    numeric,
    only_child,
    origin,
    required_child,
)
from torchsko.io._urdf_joint import read_joint, read_mimic
from torchsko.io._xml import Element, is_xml_text, read_xml
from torchsko.mechanism.description import (
    JointDescription,
    LinkDescription,
    RobotDescription,
    Unused,
)
from torchsko.mechanism.physical import unphysical_links


def read_urdf(
    source: str | os.PathLike[str], *, mimic: Literal["couple", "independent"] = "couple"
) -> RobotDescription:
    """Read a robot description in URDF.

    Args:
        source: path of the file, or XML text (recognised by its first character, ``<``).
        mimic: what to do with a moving joint that mimics another. ``"couple"`` reads it as a joint that
            follows the other exactly; ``"independent"`` as a joint of its own.

    Returns:
        Links and joints in file order, in SI units, axes of unit length; what was not used is in
        `unused`, one entry for each kind of thing in each link or joint.

    Raises:
        RobotFileError: the file is not readable, not XML, not URDF or not physical; the message
            names the element at fault, its line, and what to write instead.

    Example:
        >>> robot = read_urdf('''<robot name="swing"><link name="base"/><link name="bob"/>
        ...   <joint name="pivot" type="continuous"><parent link="base"/><child link="bob"/>
        ...   </joint></robot>''')
        >>> robot.joints[0].kind, robot.joints[0].axis
        ('revolute', (1.0, 0.0, 0.0))
    """
    if mimic not in ("couple", "independent"):
        raise RobotFileError(
            f"mimic={mimic!r} is not a choice.\n"
            "It says what to do with joints that mimic another joint.\n"
            "Type mimic='couple' or mimic='independent'."
        )
    try:
        return _read_robot(read_xml(source), mimic)
    except RobotFileError as error:
        if is_xml_text(source):
            raise
        raise RobotFileError(f"{os.fspath(source)}: {error}") from error


def _read_robot(root: Element, mimic: str) -> RobotDescription:
    if root.tag != "robot":
        raise RobotFileError(
            f"line {root.line}: the outermost element is <{root.tag}>, not <robot>.\n"
            "This reader knows URDF only.\n"
            "Convert the file to URDF, or check that it is the right one."
        )
    _refuse_macros(root)
    name = attribute(root, "name", "<robot>")
    unused = leftovers(root, "robot", ("name",), ("link", "joint"))
    links = [_read_link(child, unused) for child in root.children if child.tag == "link"]
    joints = [read_joint(child, mimic, unused) for child in root.children if child.tag == "joint"]
    mimics = [
        read_mimic(child, unused)
        for child in root.children
        if child.tag == "joint" and mimic == "couple"
    ]
    _check_names(links, joints)
    unused += _check_inertias(links, joints)
    couplings = tuple(coupling for coupling in mimics if coupling is not None)
    return RobotDescription(name, tuple(links), tuple(joints), tuple(unused), couplings)


def _read_link(element: Element, unused: list[Unused]) -> LinkDescription:
    name = attribute(element, "name", "<link>")
    where = f"link {name!r}"
    unused += leftovers(element, where, ("name",), ("inertial",))
    inertial = only_child(element, "inertial", where)
    if inertial is None:
        return LinkDescription(name)
    unused += leftovers(inertial, f"{where} <inertial>", (), ("origin", "mass", "inertia"))
    mass, inertia = (required_child(inertial, tag, where) for tag in ("mass", "inertia"))
    entries = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
    unused += leftovers(mass, f"{where} <mass>", ("value",))
    unused += leftovers(inertia, f"{where} <inertia>", entries)
    ixx, ixy, ixz, iyy, iyz, izz = (numeric(inertia, key, where) for key in entries)
    rotation, com = origin(inertial, f"{where} <inertial>", unused)
    return LinkDescription(
        name=name,
        mass=not_negative(mass, "value", where),
        com=com,
        inertia=((ixx, ixy, ixz), (ixy, iyy, iyz), (ixz, iyz, izz)),
        inertia_rotation=rotation,
    )


def _refuse_macros(root: Element) -> None:
    for element in root.walk():
        for text in (element.tag, *element.attributes.values()):
            if text.startswith("xacro:") or "${" in text or "$(" in text:
                raise RobotFileError(
                    f"line {element.line}: <{element.tag}> holds the xacro macro {text!r}.\n"
                    "The file is the template of a URDF, not yet a URDF.\n"
                    "Expand it first: xacro robot.urdf.xacro > robot.urdf"
                )


def _check_names(links: Sequence[LinkDescription], joints: Sequence[JointDescription]) -> None:
    if not links:
        raise RobotFileError(
            "the <robot> has no <link>.\n"
            "A robot is at least one link.\n"
            'Write <link name="base"/> inside it.'
        )
    known = [link.name for link in links]
    _refuse_duplicates("links", known)
    _refuse_duplicates("joints", [joint.name for joint in joints])
    known_names = set(known)
    for joint in joints:
        for role, name in (("parent", joint.parent), ("child", joint.child)):
            if name not in known_names:
                near = difflib.get_close_matches(name, known) or known[:3]
                raise RobotFileError(
                    f"joint {joint.name!r}: its {role} link {name!r} does not exist.\n"
                    f"The file has {len(known)} links, such as {', '.join(map(repr, near))}.\n"
                    f'Correct the name, or add <link name="{name}"/>.'
                )


def _refuse_duplicates(kind: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise RobotFileError(
                f"{count} {kind} are named {name!r}.\n"
                "Names are how joints find links, and how users find both.\n"
                "Give each a name of its own."
            )


def _check_inertias(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription]
) -> list[Unused]:
    """Refuse inertias that no rigid body has; report those that a rigid body absorbs."""
    notes: list[Unused] = []
    for bad in unphysical_links(links, joints):
        moments = ", ".join(f"{moment:.6g}" for moment in bad.moments)
        if not bad.excused:
            raise RobotFileError(
                f"link {bad.name!r}: no rigid body has this <inertia>"
                + (f", nor the {len(bad.members)} links fixed together" * (len(bad.members) > 1))
                + f"; its principal moments are {moments} kg m^2.\n"
                "None may be negative, nor the largest exceed the sum of the others (the triangle "
                "inequality): no distribution of mass has such moments.\n"
                "Correct ixx ... izz there: about the centre of mass, in the axes of <inertial>."
            )
        notes.append(
            Unused(
                f"link {bad.name!r} <inertia>",
                f"used as written, though no rigid body has it (principal moments {moments} kg "
                f"m^2): the {len(bad.members)} links fixed together make a physical body",
            )
        )
    return notes
