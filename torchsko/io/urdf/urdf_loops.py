"""Loops and couplings of URDF+ files.

A <loop> is a joint between a predecessor and a successor link, which have a parent already. The attribute
``independent`` of joints chooses the coordinates. With a <coupling>, the sum of angles along the path to the
successor is ``ratio`` times that to the predecessor, both from their closest common ancestor.

Source of the format: Chignoli, Slotine, Wensing, Kim 2024, URDF+: An enhanced URDF for robots with kinematic
loops, arXiv:2411.19753; the files that the library generalized_rbda reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsko.errors import RobotFileError, unknown_name
from torchsko.io.common.loop_ends import WITH_AXIS, FrameParts, Place, axes_about, loop_closure
from torchsko.io.common.numbers import unit, vector
from torchsko.io.urdf.urdf_fields import (
    attribute,
    numeric,
    only_child,
    origin,
    place,
    report_leftovers,
    required_child,
)
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import (
    FIXED,
    CouplingDescription,
    JointDescription,
    UnsupportedElement,
    Vector,
)
from torchsko.mechanism.file_data.file_metadata import Closure

KINDS = {"fixed": "weld", "continuous": "revolute", "revolute": "revolute",
         "spherical": "ball", "prismatic": "prismatic", "planar": "planar joint"}  # fmt: skip
"""Kinds of closures by type of the loop; the last one has no rows."""

DEFAULT_AXIS: Vector = (1.0, 0.0, 0.0)
"""The format's default axis."""


@dataclass(frozen=True)
class LoopElements:
    """Loops and couplings of a file.

    Attributes:
        closures: the loops.
        frames: frames of their markers.
        couplings: the couplings.
    """

    closures: tuple[Closure, ...]
    frames: FrameParts
    couplings: tuple[CouplingDescription, ...]


def read_loops(
    root: Element, joints: Sequence[JointDescription], couple: bool, report: Report
) -> LoopElements:
    """Read the loops and couplings of a robot.

    Args:
        root: the <robot>.
        joints: its joints.
        couple: read couplings; otherwise list them as unsupported.
        report: receives unsupported elements and faults.

    Raises:
        RobotFileError: on an unknown link or type, or a number that is invalid.
    """
    above = {joint.child: joint for joint in joints}
    flags = {
        child.attributes["name"]: child.attributes["independent"].strip().lower() == "true"
        for child in root.children
        if child.tag == "joint" and "independent" in child.attributes
    }
    closures, couplings = [], []
    frames: FrameParts = ([], [])
    for element in root.children:
        if element.tag == "coupling":
            coupling = _coupling(element, above, flags, report)
            if couple:
                couplings.append(coupling)
            else:
                where = f"coupling {element.attributes['name']!r}"
                report.unused.append(UnsupportedElement(where, "its joints are independent"))
    following = {coupling.joint for coupling in couplings}
    for element in root.children:
        if element.tag == "loop":
            closure, (links, welds) = _loop(element, above, report)
            paths = _paths((closure.frame1, closure.frame2), above | {j.child: j for j in welds})
            moving = [joint.name for path in paths for joint in path if joint.kind != FIXED]
            if any(name in flags for name in moving):
                chosen = [x for x in moving if flags.get(x, True) and x not in following]
                closure = replace(closure, independent=tuple(chosen))
            closures.append(closure)
            frames = frames[0] + links, frames[1] + welds
            report.unused.append(closure.note)
    return LoopElements(tuple(closures), frames, tuple(couplings))


def _ends(
    element: Element, where: str, above: Mapping[str, JointDescription], report: Report
) -> tuple[tuple[str, str], tuple[Place, Place]]:
    """Predecessor and successor link, and the poses of the joint in them."""
    known = [*above, *(joint.parent for joint in above.values())]
    links, places = [], []
    for tag in ("predecessor", "successor"):
        end = required_child(element, tag, where)
        report_leftovers(report, end, f"{where} <{tag}>", ("link",), ("origin",))
        link = attribute(end, "link", where)
        if link not in known:
            raise RobotFileError(
                *unknown_name(f"link of {where}", link, tuple(dict.fromkeys(known)))
            )
        R, p = origin(end, f"{where} <{tag}>", report)
        links.append(link)
        places.append((np.array(R), np.array(p)))
    return (links[0], links[1]), (places[0], places[1])


def _loop(
    element: Element, above: Mapping[str, JointDescription], report: Report
) -> tuple[Closure, FrameParts]:
    name = attribute(element, "name", "<loop>")
    where = f"loop {name!r}"
    report_leftovers(report, element, where, ("name", "type"), ("predecessor", "successor", "axis"))
    kind = attribute(element, "type", where)
    if kind not in KINDS:
        raise RobotFileError(*unknown_name(f"type of {where}", kind, tuple(KINDS)))
    links, places = _ends(element, where, above, report)
    axis = only_child(element, "axis", where)
    axes = None
    if KINDS[kind] in WITH_AXIS:
        direction = DEFAULT_AXIS
        if axis is not None:
            here = place(axis, "xyz", where)
            direction = unit(vector(attribute(axis, "xyz", where), here), here)
        axes = axes_about(np.array(direction))
    return loop_closure(name, KINDS[kind], links, places, axes)


def _coupling(
    element: Element,
    above: Mapping[str, JointDescription],
    flags: Mapping[str, bool],
    report: Report,
) -> CouplingDescription:
    """The coupling, solved for a joint that the file marks as dependent, or for the last one."""
    name = attribute(element, "name", "<coupling>")
    where = f"coupling {name!r}"
    report_leftovers(report, element, where, ("name",), ("predecessor", "successor", "ratio"))
    links, _ = _ends(element, where, above, report)
    ratio = numeric(required_child(element, "ratio", where), "value", where, report)
    terms: dict[str, float] = {}
    for path, factor in zip(_paths(links, above), (-ratio, 1.0), strict=True):
        terms |= {joint.name: factor for joint in path if joint.kind != FIXED and factor}
    if len(terms) < 2:
        raise RobotFileError(
            f"{where} (line {element.line}) relates {len(terms)} joints.",
            "There are no moving joints between its links and their closest common ancestor.",
            "Name links that two moving joints carry.",
        )
    dependent = [x for x in terms if not flags.get(x, True)] or list(terms)
    joint = dependent[-1]
    c = terms.pop(joint)
    return CouplingDescription(joint, {x: -factor / c for x, factor in terms.items()}, 0.0)


def _paths(
    links: Sequence[str | None], above: Mapping[str, JointDescription]
) -> list[list[JointDescription]]:
    """Joints from the closest common ancestor of two links to each of them."""
    lines = []
    for link in links:
        line = []
        while link is not None and link in above:
            line.append(above[link])
            link = above[link].parent
        lines.append(line[::-1])
    common = {joint.name for joint in lines[0]} & {joint.name for joint in lines[1]}
    return [[joint for joint in line if joint.name not in common] for line in lines]
