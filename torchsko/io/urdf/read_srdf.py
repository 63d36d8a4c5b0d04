"""SRDF files: named configurations, and pairs of links without contact, for a robot that is loaded.

<group_state> becomes a keyframe, with joints that it leaves out in the neutral configuration;
<disable_collisions> becomes an excluded pair. Other elements, such as groups and end effectors, are not read.
The value of a free joint is x y z qx qy qz qw, as Pinocchio reads it.
"""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from torch import Tensor

from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import number
from torchsko.io.xml.reader import Element, read_document
from torchsko.io.xml.report import Report
from torchsko.mechanism.file_data.file_metadata import Keyframe
from torchsko.mechanism.mechanism import Mechanism

ROOT_JOINT = "root_joint"
"""Name of the floating base in SRDF files; a robot that is fixed has no such joint."""


def with_srdf(mech: Mechanism, source: str | os.PathLike[str], *, strict: bool) -> Mechanism:
    """The mechanism with the named configurations and the excluded pairs of an SRDF file.

    Args:
        mech: a mechanism of a robot file.
        source: path or text of the SRDF file.
        strict: raise an error for a joint or a link that the robot lacks.

    Raises:
        RobotFileError: if the file cannot be read, is no SRDF file, or lacks an attribute; if a joint has
            another number of values.
    """
    report = Report(strict)
    root = read_document(source, report).root
    if root.tag != "robot":
        raise RobotFileError(
            f"line {root.line}: the root element is <{root.tag}>.",
            "The root element of an SRDF file is <robot>.",
            "Pass the path of an SRDF file.",
        )
    states = [x for x in root.children if x.tag == "group_state"]
    pairs = [x for x in root.children if x.tag == "disable_collisions"]
    keyframes = [_keyframe(mech, x, report) for x in states]
    names = {key.name for key in keyframes}
    metadata = mech.file_metadata
    before = tuple(key for key in metadata.keyframes if key.name not in names)
    excluded = [_pair(mech, x, report) for x in pairs]
    return mech.replace(
        file_metadata=replace(metadata, keyframes=(*before, *keyframes)),
        geometry=replace(
            mech.geometry,
            excluded=(*mech.geometry.excluded, *(x for x in excluded if x is not None)),
        ),
        report=(*mech.report, *report.faults),
    )


def _keyframe(mech: Mechanism, element: Element, report: Report) -> Keyframe:
    """A <group_state>."""
    name, q = _attribute(element, "name"), mech.neutral().clone()
    for joint in element.children:
        if joint.tag != "joint":
            continue
        of, text = _attribute(joint, "name"), _attribute(joint, "value")
        if of not in mech.joint_names:
            if of not in (ROOT_JOINT, *mech.tree_joint_names):
                _absent(report, joint, "joint", of)
            continue
        where = f"line {joint.line}: <joint name={of!r}> of the state {name!r}"
        values = [number(word, where) for word in text.split()]
        place = mech.q_slice(of)
        if len(values) != place.stop - place.start:
            raise RobotFileError(
                f"{where} has {len(values)} values.",
                f"The joint has {place.stop - place.start} coordinates.",
                "Correct the file.",
            )
        x = q.new_tensor(values)
        if mech.joint_types[mech.joint_names.index(of)].is_free:
            x = x[[0, 1, 2, 6, 3, 4, 5]]
        q = _with_entries(q, place, x)
    zero, none = q.new_zeros(mech.num_dof), q.new_zeros(0)
    return Keyframe(name, 0.0, q, zero, none, none)


def _with_entries(q: Tensor, place: slice, x: Tensor) -> Tensor:
    return torch.cat([q[: place.start], x, q[place.stop :]])


def _pair(mech: Mechanism, element: Element, report: Report) -> tuple[str, str] | None:
    """Both links of a <disable_collisions>; None if the robot lacks one."""
    ends = _attribute(element, "link1"), _attribute(element, "link2")
    missing = [link for link in ends if link not in mech.frame_names]
    for link in missing:
        _absent(report, element, "link", link)
    return None if missing else ends


def _absent(report: Report, element: Element, kind: str, name: str) -> None:
    error = RobotFileError(
        f"line {element.line} of the SRDF file: the robot has no {kind} {name!r}.",
        "The SRDF file describes another robot, or the robot was reduced.",
        "Pass the SRDF file of this robot.",
    )
    report.fault(f"SRDF {kind} {name!r}", f"the robot has no such {kind}: left out", error)


def _attribute(element: Element, name: str) -> str:
    if name not in element.attributes:
        raise RobotFileError(
            f"line {element.line} of the SRDF file: <{element.tag}> has no {name!r}.",
            "The attribute is required.",
            "Correct the file.",
        )
    return element.attributes[name]
