"""The URDF reader: a robot file to a `RobotDescription`, with notes of what it left unused, and of faults.

What is read: links with mass, centre of mass and inertia in a rotated frame; joints with placement,
axis, limits, damping and friction. Shapes are kept beside them. What is not read: settings of simulators
and actuators.
Rotations are fixed-axis roll, pitch, yaw, ``R = Rz(yaw) Ry(pitch) Rx(roll)``.

Source of the format: the ROS wiki's pages urdf/XML/link and urdf/XML/joint.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from torchsko.errors import RobotFileError
from torchsko.io.common.report import Report
from torchsko.io.common.source import naming
from torchsko.io.urdf.urdf_fields import leftovers, missing
from torchsko.io.urdf.urdf_geometry import read_geometry
from torchsko.io.urdf.urdf_joint import couplings_to, read_joint, read_mimic
from torchsko.io.urdf.urdf_link import check_inertias, read_link
from torchsko.io.urdf.urdf_tree import check_names, check_roots, with_world
from torchsko.io.xml.reader import Element, is_xml_text, read_xml
from torchsko.io.xml.xacro import check_macros
from torchsko.mechanism.description import RobotDescription

NAMELESS = "robot"
"""Name of a robot whose file gives none."""

PARTS = {
    "mujocoinclude": "It is a part of a model in MJCF: pass the file that includes it.",
    "package": "It describes a package of ROS: pass a robot's file of that package.",
}
"""What to do with files that lie beside those of robots, by their outermost elements."""


def read_urdf(
    source: str | os.PathLike[str],
    *,
    mimic: Literal["couple", "independent"] = "couple",
    strict: bool = False,
    mesh_path: Sequence[str | os.PathLike[str]] = (),
) -> RobotDescription:
    """Read a robot description in URDF.

    Args:
        source: path of the file, or XML text (recognised by its first character, ``<``).
        mimic: what to do with a moving joint that mimics another. ``"couple"`` reads it as a joint that
            follows the other exactly; ``"independent"`` as a joint of its own.
        strict: refuse faults that leave the dynamics defined, instead of noting them in `report`.
        mesh_path: folders in which meshes may lie, besides that of the file; none is read now.

    Returns:
        Links and joints in file order, in SI units, axes of unit length; what was not used is in
        `unused`, one entry for each kind of thing in each link or joint; what is wrong, and how it was
        read, in `report`. Inertias that no rigid body has are noted by `torchsko.build_mechanism`.

    Raises:
        RobotFileError: the file is not readable, not XML, not URDF, or says what has no meaning; the message
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
            f"mimic={mimic!r} is not a choice.",
            "It says what to do with joints that mimic another joint.",
            "Type mimic='couple' or mimic='independent'.",
        )
    report, folders = Report(strict), tuple(os.fspath(folder) for folder in mesh_path)
    home = None if is_xml_text(source) else os.path.dirname(os.path.abspath(source))
    with naming(source):
        return _read_robot(read_xml(source, report), mimic, home, folders, report)


def _read_robot(
    root: Element, mimic: str, home: str | None, mesh_path: Sequence[str], report: Report
) -> RobotDescription:
    _check_root_element(root)
    check_macros(root, report)
    name = _read_name(root, report)
    report.unused += leftovers(root, "robot", ("name",), ("link", "joint"))
    links = [read_link(child, report) for child in root.children if child.tag == "link"]
    joints = [read_joint(child, mimic, report) for child in root.children if child.tag == "joint"]
    mimics = [
        read_mimic(child, report)
        for child in root.children
        if child.tag == "joint" and mimic == "couple"
    ]
    links = with_world(links, joints, report)
    geometry = read_geometry(root, home, mesh_path, report)
    check_names(links, joints)
    check_inertias(links, joints, report)
    check_roots(links, joints, report)
    return RobotDescription(
        name,
        tuple(links),
        tuple(joints),
        tuple(report.unused),
        couplings_to(mimics, joints, report),
        report=tuple(report.faults),
        geometry=geometry,
    )


def _check_root_element(root: Element) -> None:
    if root.tag != "robot":
        raise RobotFileError(
            f"line {root.line}: the outermost element is <{root.tag}>, not <robot>.\n"
            "That of URDF is <robot>, of MJCF <mujoco>, of SDF <sdf>; other files are no robots.\n"
            + PARTS.get(
                root.tag, "Convert the file to one of these, or check that it is the right one."
            )
        )
    for child in root.children:
        if child.tag == "robot":
            raise RobotFileError(
                f"line {child.line}: a <robot> stands inside the <robot>.",
                "A file is one robot: links of two have no place in one another.",
                "Write each <robot> to a file of its own.",
            )


def _read_name(root: Element, report: Report) -> str:
    name = root.attributes.get("name", "")
    if name.strip():
        return name
    report.fault(
        f"<robot> (line {root.line})",
        f"has no name: named {NAMELESS!r}",
        missing(root, "name", "<robot>"),
    )
    return NAMELESS
