"""URDF reader: converts a file to a `RobotDescription` with its unsupported elements and faults.

It reads links with mass, center of mass, inertia and shapes, joints with placement, axis, limits, damping and
friction, rotor inertias of transmissions, the loops and couplings of URDF+, and torchsko's flexible links. It
ignores settings of simulators and controllers. Rotations are fixed-axis roll, pitch, yaw,
``R = Rz(yaw) Ry(pitch) Rx(roll)``.

Source of the format: the ROS wiki's pages urdf/XML/link and urdf/XML/joint.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from torchsko.errors import RobotFileError
from torchsko.io.common.source import naming
from torchsko.io.urdf.urdf_fields import missing, report_leftovers
from torchsko.io.urdf.urdf_flexible import with_flexible_parts
from torchsko.io.urdf.urdf_geometry import read_geometry
from torchsko.io.urdf.urdf_joint import couplings_to, read_joint, read_mimic
from torchsko.io.urdf.urdf_link import check_inertias, read_link
from torchsko.io.urdf.urdf_loops import read_loops
from torchsko.io.urdf.urdf_transmissions import transmission_joints, with_rotors
from torchsko.io.xml.reader import Element, is_xml_text, read_document
from torchsko.io.xml.report import Report
from torchsko.io.xml.xacro import check_macros
from torchsko.mechanism.description import JointDescription, LinkDescription
from torchsko.mechanism.name_resolution import refuse_duplicates, refuse_unknown_links, unknown_link
from torchsko.mechanism.robot_description import RobotDescription

DEFAULT_NAME = "robot"
"""Name of a robot without a name in its file."""

WORLD_LINK = "world"
"""Parent link that need not be declared: Drake's name of the inertial frame."""

RELATED_FILES = {
    "mujocoinclude": "It is a part of an MJCF model: pass the file that includes it.",
    "package": "It describes a ROS package: pass a robot file of that package.",
}
"""Advice for files that often lie beside robot files, by their root element."""


def read_urdf(
    source: str | os.PathLike[str],
    *,
    mimic: Literal["couple", "independent"] = "couple",
    strict: bool = False,
    mesh_path: Sequence[str | os.PathLike[str]] = (),
) -> RobotDescription:
    """Read a URDF file.

    Args:
        source: path of the file, or XML text (recognized by its first character, ``<``).
        mimic: ``"couple"`` makes a moving joint with <mimic> follow its leader exactly; ``"independent"``
            reads it as an independent joint.
        strict: raise an error for a fault that leaves the dynamics defined, instead of listing it in
            `report`.
        mesh_path: trusted folders for meshes, besides that of the file; meshes are not read here.

    Returns:
        Links and joints in file order, in SI units, with axes of unit length. `unused` lists unsupported
        elements, one entry for each kind in each link or joint. `report` lists faults, and how they were
        read; `torchsko.build_mechanism` adds unphysical inertias.

    Raises:
        RobotFileError: if the file cannot be read, is not XML or not URDF, or has an invalid element. The
            message names the element and its line.

    Example:
        >>> robot = read_urdf('''<robot name="swing"><link name="base"/><link name="bob"/>
        ...   <joint name="pivot" type="continuous"><parent link="base"/><child link="bob"/>
        ...   </joint></robot>''')
        >>> robot.joints[0].kind, robot.joints[0].axis
        ('revolute', (1.0, 0.0, 0.0))
    """
    if mimic not in ("couple", "independent"):
        raise RobotFileError(
            f"mimic={mimic!r} is unknown.",
            "It selects how joints with <mimic> are read.",
            "Type mimic='couple' or mimic='independent'.",
        )
    report, folders = Report(strict), tuple(os.fspath(folder) for folder in mesh_path)
    home = None if is_xml_text(source) else os.path.dirname(os.path.abspath(source))
    with naming(source):
        return _read_robot(
            read_document(source, report, text=True).root, mimic, home, folders, report
        )


def _read_robot(
    root: Element, mimic: str, home: str | None, mesh_path: Sequence[str], report: Report
) -> RobotDescription:
    _check_root_element(root)
    check_macros(root, report)
    name = _read_name(root, report)
    report_leftovers(report, root, "robot", ("name",), ("link", "joint", "loop", "coupling"))
    elements = [child for child in root.children if child.tag == "link"]
    links = [read_link(child, report) for child in elements]
    links, joints = with_flexible_parts(links, elements, report)
    joints += [read_joint(child, mimic, report) for child in root.children if child.tag == "joint"]
    joints = with_rotors(joints, root, report)
    mimics = [
        read_mimic(child, report)
        for child in root.children
        if child.tag == "joint" and mimic == "couple"
    ]
    links = _add_world(links, joints, report)
    geometry = read_geometry(root, home, mesh_path, report)
    _check_names(links, joints)
    check_inertias(links, joints, report)
    _check_roots(links, joints, report)
    loops = read_loops(root, joints, mimic == "couple", report)
    marker_links, marker_joints = loops.frames
    return RobotDescription(
        name,
        (*links, *marker_links),
        (*joints, *marker_joints),
        tuple(report.unused),
        couplings_to(mimics, joints, report) + loops.couplings,
        closures=loops.closures,
        report=tuple(report.faults),
        geometry=geometry,
        actuated_joints=transmission_joints(root),
    )


def _check_root_element(root: Element) -> None:
    if root.tag != "robot":
        raise RobotFileError(
            f"line {root.line}: the root element is <{root.tag}>, not <robot>.",
            "The root element is <robot> in URDF, <mujoco> in MJCF and <sdf> in SDF.",
            RELATED_FILES.get(
                root.tag, "Convert the file to one of these, or check that it is the right one."
            ),
        )
    for child in root.children:
        if child.tag == "robot":
            raise RobotFileError(
                f"line {child.line}: there is a <robot> inside the <robot>.",
                "A file contains one robot.",
                "Write each <robot> to a separate file.",
            )


def _read_name(root: Element, report: Report) -> str:
    name = root.attributes.get("name", "")
    if name.strip():
        return name
    report.fault(
        f"<robot> (line {root.line})",
        f"has no name: named {DEFAULT_NAME!r}",
        missing(root, "name", "<robot>"),
    )
    return DEFAULT_NAME


def _add_world(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription], report: Report
) -> list[LinkDescription]:
    """The links, preceded by a link "world" if joints refer to it and the file does not declare it."""
    known = [link.name for link in links]
    children = [joint for joint in joints if joint.parent == WORLD_LINK]
    if WORLD_LINK in known or not children:
        return list(links)
    report.fault(
        f"link {WORLD_LINK!r}",
        f"not declared, but the parent of joint {children[0].name!r}: read as a link without mass, "
        "which is the inertial frame unless the base floats",
        RobotFileError(*unknown_link(children[0], "parent", WORLD_LINK, known)),
    )
    return [LinkDescription(WORLD_LINK), *links]


def _check_names(links: Sequence[LinkDescription], joints: Sequence[JointDescription]) -> None:
    """Refuse duplicate names, and joints with unknown links."""
    if not links:
        raise RobotFileError(
            "the <robot> has no <link>.",
            "A robot has at least one link.",
            'Write <link name="base"/> inside it.',
        )
    known = [link.name for link in links]
    refuse_duplicates("link", known, RobotFileError)
    refuse_duplicates("joint", [joint.name for joint in joints], RobotFileError)
    refuse_unknown_links(joints, known, error=RobotFileError)


def _check_roots(
    links: Sequence[LinkDescription], joints: Sequence[JointDescription], report: Report
) -> None:
    """Refuse several trees in a robot; report links without joints.

    `build_mechanism` finds cycles and links with two parents, which are reported instead of several trees.
    """
    children, parents = {joint.child for joint in joints}, {joint.parent for joint in joints}
    roots = [link.name for link in links if link.name not in children]
    trees = [name for name in roots if name in parents]
    if len(trees) > 1 and len(children) == len(joints):
        raise RobotFileError(
            f"the <robot> consists of {len(trees)} trees, with the roots {trees[0]!r} and {trees[1]!r}.",
            "The file does not specify the pose of one relative to the other.",
            "Connect the roots by a joint, or write each tree to a separate file.",
        )
    isolated = [name for name in roots if name not in parents]
    for name in isolated if trees else isolated[1:]:
        report.fault(
            f"link {name!r}",
            "no joint refers to it: separate from the robot (see mech.unused)",
            RobotFileError(
                f"link {name!r} is not connected: no joint refers to it.",
                "The links of a robot form one tree.",
                "Add a joint for it, or delete it.",
            ),
        )
