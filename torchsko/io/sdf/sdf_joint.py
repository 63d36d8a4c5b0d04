"""Joints of an SDF model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchsko.errors import RobotFileError
from torchsko.io.common.loop_ends import WITH_AXIS, FrameParts, axes_about, loop_closure
from torchsko.io.common.numbers import as_matrix, as_vector, number, unit, vector
from torchsko.io.sdf.sdf_poses import WORLD_FRAME, Frames, Pose, text_of
from torchsko.io.urdf.urdf_fields import attribute
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import (
    FIXED,
    IDENTITY,
    CouplingDescription,
    JointDescription,
    LinkDescription,
    UnsupportedElement,
    Vector,
)
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.joints.compound import Turn
from torchsko.mechanism.welded import WORLD

GEARBOX = "gearbox"
"""Type of a coupling of two hinges."""

NUM_AXES = {"revolute": 1, "continuous": 1, "prismatic": 1, "screw": 1, "universal": 2,
            "revolute2": 2, GEARBOX: 2, "ball": 0, "fixed": 0}  # fmt: skip
"""Number of axes by joint type."""

MIMIC_TYPES = ("revolute", "continuous", "prismatic", "screw")
"""Types that can follow another joint."""

UNLIMITED = 1e16
"""The format's value for no limit."""

SMALLEST_THREAD_PITCH = 1e-100
"""Magnitude of <thread_pitch> [rad/m] below which its inverse may overflow."""

CLOSURE_KINDS = {"ball": "connect", "fixed": "weld", "continuous": "revolute"}
"""Kinds of closures by joint type; for other types the kind is the type."""

PARALLEL = 1e-6
"""Deviation of the cosine from 1 between parallel axes, and from 0 between orthogonal ones."""

Chain = tuple[list[LinkDescription], list[JointDescription]]


def read_joint(element: Element, frames: Frames, report: Report) -> Chain:
    """Read a joint; a ball or screw joint away from the child's origin becomes two joints and a link.

    Raises:
        RobotFileError: if its type is unknown, or a value is invalid.
    """
    name, kind = element.attributes["name"].strip(), element.attributes.get("type", "")
    where = f"joint {name!r}"
    if kind not in NUM_AXES:
        raise RobotFileError(
            f"{where} (line {element.line}): the joint type {kind!r} is unknown.",
            f"Known types are {', '.join(NUM_AXES)}.",
            "Write it as one of these, or leave it out.",
        )
    parent, child = connected_links(element, frames)
    if child == WORLD_FRAME:
        raise RobotFileError(
            f"{where} (line {element.line}): its child is the world.",
            "The world cannot move.",
            "Exchange <parent> and <child>.",
        )
    from_parent = Pose() if parent == WORLD_FRAME else frames.pose(parent).inverse()
    in_parent = from_parent @ frames.pose(child)  # of the child, with all joints at zero
    in_child = frames.pose(child).inverse() @ frames.joint_pose(name)
    parent = WORLD if parent == WORLD_FRAME else parent
    R, p = as_matrix(in_parent.rotation), as_vector(in_parent.position)
    point = as_vector(in_child.position)
    if kind == "fixed":
        return [], [JointDescription(name, FIXED, parent, child, R, p)]
    if kind == "ball":
        return _at_point(JointDescription(name, "spherical", parent, child), in_parent, in_child)
    tags = ("axis", "axis2")[: NUM_AXES[kind]]
    axes = [_axis(element, tag, name, child, frames, where) for tag in tags]
    values: dict[str, Any] = dict(_axis_values(element, kind, where, report))
    data: dict[str, Any]
    if kind == "prismatic":
        return [], [JointDescription(name, "prismatic", parent, child, R, p, axes[0], **values)]
    if kind == "screw":
        data = {"pitch": _thread_pitch(element, where)}
        screw = JointDescription(name, "helical", parent, child, axis=axes[0], data=data, **values)
        return _at_point(screw, in_parent, in_child)
    if len(axes) == 1 and not any(point):
        return [], [JointDescription(name, "revolute", parent, child, R, p, axes[0], **values)]
    data = {"motions": tuple(Turn(axis, point) for axis in axes)}
    return [], [JointDescription(name, "compound", parent, child, R, p, data=data, **values)]


def read_mimic(element: Element, couple: bool, report: Report) -> CouplingDescription | None:
    """The coupling of a joint with <mimic>; None without.

    In SDF, position = multiplier (position of the leader - reference) + offset.

    Args:
        element: a <joint>.
        couple: read the coupling; otherwise list the tag as unsupported.
        report: receives unsupported elements.
    """
    name = element.attributes["name"].strip()
    axis = next((c for c in element.children if c.tag == "axis"), None)
    mimic = None if axis is None else next((c for c in axis.children if c.tag == "mimic"), None)
    if mimic is None or element.attributes.get("type") not in MIMIC_TYPES:
        return None
    where = f"joint {name!r} <mimic>"
    if not couple:
        report.unused.append(UnsupportedElement(where, "loaded as an independent joint"))
        return None
    if mimic.attributes.get("axis", "axis") != "axis":
        raise RobotFileError(
            f"{where} (line {mimic.line}) follows the axis {mimic.attributes['axis']!r} of a joint.",
            "Only joints with a single axis can be followed.",
            "Load the file with mimic='independent'.",
        )
    multiplier, offset, reference = (
        number(text_of(mimic, tag) or default, f"{where} <{tag}>")
        for tag, default in (("multiplier", "1"), ("offset", "0"), ("reference", "0"))
    )
    leader = attribute(mimic, "joint", where)
    return CouplingDescription(name, {leader: multiplier}, offset - multiplier * reference)


def connected_links(element: Element, frames: Frames) -> tuple[str, str]:
    """Parent and child link of a joint."""
    where = f"joint {element.attributes['name'].strip()!r}"
    parent, child = (frames.link(_link_name(element, tag, where)) for tag in ("parent", "child"))
    return parent, child


def closes_loop(parent: str, child: str, parents: Mapping[str, str]) -> bool:
    """True if the child already has a parent, or is an ancestor of the joint's parent."""
    while parent in parents and parent != child:
        parent = parents[parent]
    return child in parents or parent == child


def read_closure(element: Element, frames: Frames) -> tuple[Closure, FrameParts]:
    """The closure of a joint that closes a loop, and the frame of its marker."""
    name, kind = element.attributes["name"].strip(), element.attributes.get("type", "")
    kind = CLOSURE_KINDS.get(kind, kind)
    links = connected_links(element, frames)
    places = []
    for link in links:
        base = Pose() if link == WORLD_FRAME else frames.pose(link).inverse()
        pose = base @ frames.joint_pose(name)
        places.append((pose.rotation, pose.position))
    axes = None
    if kind in WITH_AXIS or kind == "universal":
        where, to_joint = f"joint {name!r}", places[1][0].T
        tags = ("axis", "axis2") if kind == "universal" else ("axis",)
        along = [to_joint @ _axis(element, x, name, links[1], frames, where) for x in tags]
        axes = axes_about(along[0])
        if kind == "universal":
            if abs(along[0] @ along[1]) > PARALLEL:
                raise RobotFileError(
                    f"{where} is a universal joint whose axes are not orthogonal.",
                    "It closes a loop, by the condition that they are.",
                    "Correct its <axis> and <axis2>.",
                )
            axes = np.stack([*along, np.cross(along[0], along[1])], -1)
    named = tuple(None if link == WORLD_FRAME else link for link in links)
    return loop_closure(name, kind, (named[0], named[1]), (places[0], places[1]), axes)


def read_gearbox(
    element: Element, frames: Frames, joints: Sequence[JointDescription]
) -> CouplingDescription:
    """The coupling of a gearbox: theta_2 = -ratio theta_1.

    The angles theta_1 of the parent and theta_2 of the child are relative to the reference body, about <axis>
    and <axis2>.

    Args:
        element: a <joint> of the type "gearbox".
        frames: poses of all frames.
        joints: joints of the model.

    Raises:
        RobotFileError: if a link has no hinge with its axis on the reference body.
    """
    name = element.attributes["name"].strip()
    where = f"joint {name!r}"
    reference = frames.link(_link_name(element, "gearbox_reference_body", where))
    ratio = number(text_of(element, "gearbox_ratio") or "1", f"{where} <gearbox_ratio>")
    gears = []
    for link, tag in zip(connected_links(element, frames), ("axis", "axis2"), strict=True):
        axis = frames.pose(link).rotation @ _axis(element, tag, name, link, frames, where)
        gears.append(_gear(link, axis, reference, frames, joints, where))
    (leader, sign1), (follower, sign2) = gears
    return CouplingDescription(follower, {leader: -ratio * sign1 * sign2}, 0.0)


def _gear(
    link: str,
    axis: np.ndarray,
    reference: str,
    frames: Frames,
    joints: Sequence[JointDescription],
    where: str,
) -> tuple[str, float]:
    """The hinge of a link on the reference body, and the sign of its angle about an axis of the model."""
    reference = WORLD if reference == WORLD_FRAME else reference
    for joint in joints:
        turn = joint.data.get("motions", (Turn(joint.axis, (0.0, 0.0, 0.0)),))
        if {joint.parent, joint.child} == {link, reference} and len(turn) == 1:
            along = float(axis @ frames.pose(joint.child).rotation @ np.array(turn[0].axis))
            if joint.kind in ("revolute", "compound") and abs(abs(along) - 1) < PARALLEL:
                return joint.name, math.copysign(1.0, along) * (1 if joint.child == link else -1)
    raise RobotFileError(
        f"{where} is a gearbox, and link {link!r} has no hinge about its axis on {reference!r}.",
        "A gearbox relates two hinges of the reference body.",
        "Correct <gearbox_reference_body> or the axes.",
    )


def _link_name(element: Element, tag: str, where: str) -> str:
    found = [c.text.strip() for c in element.children if c.tag == tag]
    if len(found) != 1 or not found[0]:
        raise RobotFileError(
            f"{where} (line {element.line}) has {len(found)} elements <{tag}>.",
            f"A joint of this type needs one <{tag}>, with the name of a link.",
            f"Write one <{tag}>.",
        )
    return found[0]


def _at_point(joint: JointDescription, in_parent: Pose, in_child: Pose) -> Chain:
    """A joint at a point of the child: the joint there, and a weld to the child's frame."""
    point = as_vector(in_parent.position + in_parent.rotation @ in_child.position)
    joint = replace(joint, rotation=as_matrix(in_parent.rotation), position=point)
    if not in_child.position.any():
        return [], [joint]
    massless, offset = f"{joint.child}_{joint.name}", as_vector(-in_child.position)
    weld = JointDescription(f"{joint.name}_fixed", FIXED, massless, joint.child, IDENTITY, offset)
    return [LinkDescription(massless)], [replace(joint, child=massless), weld]


def _thread_pitch(joint: Element, where: str) -> float:
    """Pitch of a screw [m/rad], from <screw_thread_pitch> [m] or <thread_pitch> [-rad/m]."""
    new, old = (text_of(joint, tag) for tag in ("screw_thread_pitch", "thread_pitch"))
    if new or not old:
        return number(new or "1", f"{where} <screw_thread_pitch>") / (2.0 * math.pi)
    turns = number(old, f"{where} <thread_pitch>")
    if abs(turns) < SMALLEST_THREAD_PITCH:
        raise RobotFileError(
            f"{where} has a <thread_pitch> of {turns:g}.",
            "It is the angle per length [rad/m], so the joint would hardly turn.",
            "Write the length per revolution as <screw_thread_pitch>.",
        )
    return -1.0 / turns


def _axis(joint: Element, tag: str, name: str, child: str, frames: Frames, where: str) -> Vector:
    """An axis in the child's frame, with all joints at zero."""
    element = next((c for c in joint.children if c.tag == tag), None)
    xyz = None if element is None else next((c for c in element.children if c.tag == "xyz"), None)
    text = "0 0 1" if xyz is None or not xyz.text.strip() else xyz.text
    frame = "" if xyz is None else xyz.attributes.get("expressed_in", "")
    placed = frames.pose(frame) if frame else frames.joint_pose(name)
    rotation = frames.pose(child).rotation.T @ placed.rotation
    axis = np.array(unit(vector(text, f"{where} <xyz>"), f"{where} <xyz>"))
    return unit(as_vector(rotation @ axis), f"{where} <xyz>")


def _axis_values(joint: Element, kind: str, where: str, report: Report) -> dict[str, Any]:
    """Limits, losses and spring of the first axis, used for both; a different second axis is reported."""
    tags = ("axis", "axis2")[: NUM_AXES[kind]]
    axes = [_values_of(c, where) for c in joint.children if c.tag in tags]
    if not axes:
        return {}
    if any(other != axes[0] for other in axes[1:]):
        reason = (
            "its limits and losses differ from those of the first axis, which are used for both"
        )
        report.unused.append(UnsupportedElement(f"{where} <axis2>", reason, affects_forces=True))
    values = axes[0]
    if kind == "continuous":
        values |= {"lower": -math.inf, "upper": math.inf}
    if values["lower"] > values["upper"]:
        what = f"the lower limit {values['lower']} is above the upper limit {values['upper']}"
        report.fault(
            f"{where} <limit>",
            f"{what}: read as no position limit",
            RobotFileError(
                f"{where}: {what}.", "No position satisfies both.", "Exchange or correct them."
            ),
        )
        values |= {"lower": -math.inf, "upper": math.inf}
    return values


def _values_of(axis: Element, where: str) -> dict[str, Any]:
    children = {c.tag: c for c in axis.children}

    def value(group: str, key: str, default: float) -> float:
        element = children.get(group)
        text = "" if element is None else text_of(element, key)
        if text.lstrip("+-").lower() in ("inf", "infinity"):
            return -math.inf if text.startswith("-") else math.inf
        return number(text, f"{where} <{key}>") if text else default

    lower, upper = (value("limit", "lower", -math.inf), value("limit", "upper", math.inf))
    bounds = {key: value("limit", key, -1.0) for key in ("velocity", "effort")}
    return {
        "lower": -math.inf if lower <= -UNLIMITED else lower,
        "upper": math.inf if upper >= UNLIMITED else upper,
        **{key: math.inf if x < 0 or x >= UNLIMITED else x for key, x in bounds.items()},
        "damping": value("dynamics", "damping", 0.0),
        "friction": value("dynamics", "friction", 0.0),
        "stiffness": value("dynamics", "spring_stiffness", 0.0),
        "spring_reference": value("dynamics", "spring_reference", 0.0),
    }
