"""Joints of an SDF model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import as_matrix, as_vector, number, unit, vector
from torchsko.io.common.report import Report
from torchsko.io.sdf.sdf_poses import MODEL, WORLD_FRAME, Frames, Pose, text_of
from torchsko.io.urdf.urdf_fields import attribute
from torchsko.io.xml.reader import Element
from torchsko.mechanism.description import (
    FIXED,
    IDENTITY,
    CouplingDescription,
    JointDescription,
    LinkDescription,
    UnsupportedElement,
    Vector,
)
from torchsko.mechanism.file_metadata import Closure
from torchsko.mechanism.joints.compound import Turn
from torchsko.mechanism.welded import WORLD

AXES = {"revolute": 1, "continuous": 1, "prismatic": 1, "universal": 2, "revolute2": 2,
        "ball": 0, "fixed": 0}  # fmt: skip
"""How many axes each type has."""

ALONE = ("revolute", "continuous", "prismatic")
"""Types of one axis, which may follow others."""

ENDLESS = 1e16
"""Stands for no limit in the format."""

CLOSURES = {"ball": "connect", "fixed": "weld"}
"""Kinds of loops by the type of the joint that closes them; others are called by their type."""

Chain = tuple[list[LinkDescription], list[JointDescription]]


def read_joint(element: Element, frames: Frames, report: Report) -> Chain:
    """One joint, and a link between where it takes two steps to the child's own frame.

    Raises:
        RobotFileError: its type is not known, or something has no meaning.
    """
    name, kind = element.attributes["name"].strip(), element.attributes.get("type", "")
    where = f"joint {name!r}"
    if kind not in AXES:
        raise RobotFileError(
            f"{where} (line {element.line}): a joint of type {kind!r} cannot be read.",
            f"The types known are {', '.join(AXES)}.",
            "Write it as one of these, or leave it out.",
        )
    parent, child = ends(element, frames)
    if child == WORLD_FRAME:
        raise RobotFileError(
            f"{where} (line {element.line}): its child is the world.",
            "The world does not move.",
            "Exchange <parent> and <child>.",
        )
    from_parent = Pose() if parent == WORLD_FRAME else frames.pose(parent).inverse()
    at = from_parent @ frames.pose(child)  # of the child, where all joints are zero
    in_child = frames.pose(child).inverse() @ frames.pose(name)
    parent = WORLD if parent == WORLD_FRAME else parent
    R, p, point = as_matrix(at.rotation), as_vector(at.position), as_vector(in_child.position)
    if kind == "fixed":
        return [], [JointDescription(name, FIXED, parent, child, R, p)]
    if kind == "ball":
        return _ball(name, parent, child, at, in_child)
    tags = ("axis", "axis2")[: AXES[kind]]
    axes = [_axis(element, tag, name, child, frames, where) for tag in tags]
    given: dict[str, Any] = dict(_numbers(element, kind, where, report))
    if kind == "prismatic":
        return [], [JointDescription(name, "prismatic", parent, child, R, p, axes[0], **given)]
    if len(axes) == 1 and not any(point):
        return [], [JointDescription(name, "revolute", parent, child, R, p, axes[0], **given)]
    data = {"motions": tuple(Turn(axis, point) for axis in axes)}
    return [], [JointDescription(name, "compound", parent, child, R, p, data=data, **given)]


def read_mimic(element: Element, couple: bool, report: Report) -> CouplingDescription | None:
    """The coupling of a joint whose axis mimics another's; None without one.

    The format says: position = multiplier (position of the other - reference) + offset.

    Args:
        element: a <joint>.
        couple: whether it follows the other; else its tag is noted alone.
        report: the notes so far.
    """
    name = element.attributes["name"].strip()
    axis = next((c for c in element.children if c.tag == "axis"), None)
    mimic = None if axis is None else next((c for c in axis.children if c.tag == "mimic"), None)
    if mimic is None or element.attributes.get("type") not in ALONE:
        return None
    where = f"joint {name!r} <mimic>"
    if not couple:
        report.unused.append(UnsupportedElement(where, "loaded as a joint of its own"))
        return None
    if mimic.attributes.get("axis", "axis") != "axis":
        raise RobotFileError(
            f"{where} (line {mimic.line}) names the axis {mimic.attributes['axis']!r} of another joint.",
            "A joint follows one that has one axis.",
            "Load the file with mimic='independent'.",
        )
    multiplier, offset, reference = (
        number(text_of(mimic, tag) or usual, f"{where} <{tag}>")
        for tag, usual in (("multiplier", "1"), ("offset", "0"), ("reference", "0"))
    )
    leader = attribute(mimic, "joint", where)
    return CouplingDescription(name, {leader: multiplier}, offset - multiplier * reference)


def ends(element: Element, frames: Frames) -> tuple[str, str]:
    """The links that a joint joins: parent and child."""
    where = f"joint {element.attributes['name'].strip()!r}"
    parent, child = (frames.link(_end(element, tag, where)) for tag in ("parent", "child"))
    return parent, child


def closes(parent: str, child: str, above: Mapping[str, str]) -> bool:
    """Whether a joint closes a loop with those before it: its child has a parent, or carries its parent."""
    while parent in above and parent != child:
        parent = above[parent]
    return child in above or parent == child


def closure(element: Element, frames: Frames) -> Closure:
    """A joint that closes a loop: its point on both links, and how the child turns where it is fixed."""
    name, kind = element.attributes["name"].strip(), element.attributes.get("type", "")
    parent, child = ends(element, frames)
    on_parent, on_child = (
        (Pose() if link == WORLD_FRAME else frames.pose(link).inverse()) @ frames.pose(name)
        for link in (parent, child)
    )
    return Closure(
        name,
        CLOSURES.get(kind, kind),
        None if parent == WORLD_FRAME else parent,
        child,
        as_vector(on_parent.position),
        as_vector(on_child.position),
        as_matrix(on_parent.rotation @ on_child.rotation.T),
    )


def _end(element: Element, tag: str, where: str) -> str:
    found = [c.text.strip() for c in element.children if c.tag == tag]
    if len(found) != 1 or not found[0]:
        raise RobotFileError(
            f"{where} (line {element.line}) has {len(found)} elements <{tag}> with a name.",
            "A joint joins one link to another.",
            "Write one <parent> and one <child>.",
        )
    return found[0]


def _ball(name: str, parent: str, child: str, at: Pose, in_child: Pose) -> Chain:
    """A ball joint about a point of the child: to the point, and back to the child's frame."""
    point = at.position + at.rotation @ in_child.position
    back = -in_child.position
    if not back.any():
        R, p = as_matrix(at.rotation), as_vector(at.position)
        return [], [JointDescription(name, "spherical", parent, child, R, p)]
    between = f"{child}_{name}"
    return [LinkDescription(between)], [
        JointDescription(
            name, "spherical", parent, between, as_matrix(at.rotation), as_vector(point)
        ),
        JointDescription(f"{name}_fixed", FIXED, between, child, IDENTITY, as_vector(back)),
    ]


def _axis(joint: Element, tag: str, name: str, child: str, frames: Frames, where: str) -> Vector:
    """An axis, in the child's frame where all joints are zero."""
    element = next((c for c in joint.children if c.tag == tag), None)
    xyz = None if element is None else next((c for c in element.children if c.tag == "xyz"), None)
    text = "0 0 1" if xyz is None or not xyz.text.strip() else xyz.text
    frame = "" if xyz is None else xyz.attributes.get("expressed_in", "")
    if element is not None and any(
        c.tag == "use_parent_model_frame" and c.text.strip() in ("1", "true")
        for c in element.children
    ):
        frame = MODEL
    turn = frames.pose(child).rotation.T @ frames.pose(frame or name).rotation
    axis = np.array(unit(vector(text, f"{where} <xyz>"), f"{where} <xyz>"))
    return unit(as_vector(turn @ axis), f"{where} <xyz>")


def _numbers(joint: Element, kind: str, where: str, report: Report) -> dict[str, Any]:
    """Limits, losses and spring of the first axis; a second one's are its own only where they are equal."""
    each = [_of_axis(c, where) for c in joint.children if c.tag in ("axis", "axis2")[: AXES[kind]]]
    if not each:
        return {}
    if any(other != each[0] for other in each[1:]):
        report.unused.append(
            UnsupportedElement(
                f"{where} <axis2>", "limits and losses of its second axis differ; the first's act"
            )
        )
    found = each[0]
    if kind == "continuous":
        found |= {"lower": -math.inf, "upper": math.inf}
    if found["lower"] > found["upper"]:
        said = f"the lower limit {found['lower']} is above the upper {found['upper']}"
        report.fault(
            f"{where} <limit>",
            f"{said}: read as no limit of position",
            f"{where}: {said}.\nNo position satisfies both.\nExchange or correct them.",
        )
        found |= {"lower": -math.inf, "upper": math.inf}
    return found


def _of_axis(axis: Element, where: str) -> dict[str, Any]:
    inside = {c.tag: c for c in axis.children}

    def said(group: str, key: str, default: float) -> float:
        element = inside.get(group)
        text = "" if element is None else text_of(element, key)
        if text.lstrip("+-").lower() in ("inf", "infinity"):
            return -math.inf if text.startswith("-") else math.inf
        return number(text, f"{where} <{key}>") if text else default

    lower, upper = (said("limit", "lower", -math.inf), said("limit", "upper", math.inf))
    bounds = {key: said("limit", key, -1.0) for key in ("velocity", "effort")}
    return {
        "lower": -math.inf if lower <= -ENDLESS else lower,
        "upper": math.inf if upper >= ENDLESS else upper,
        **{key: math.inf if x < 0 or x >= ENDLESS else x for key, x in bounds.items()},
        "damping": said("dynamics", "damping", 0.0),
        "friction": said("dynamics", "friction", 0.0),
        "stiffness": said("dynamics", "spring_stiffness", 0.0),
        "spring_reference": said("dynamics", "spring_reference", 0.0),
    }
