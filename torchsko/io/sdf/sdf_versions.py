"""Conversion of SDF files of versions before 1.12 to the rules of version 1.12.

| until | rule | in 1.12 |
| --- | --- | --- |
| 1.4 | axes are expressed in the frame of the model | ``<xyz expressed_in="__model__">`` |
| 1.5 | ``<physics>`` contains the gravity | ``<gravity>`` of the world |
| 1.6 | a true ``<use_parent_model_frame>``, since 1.5 | ``<xyz expressed_in="__model__">`` |
| 1.6 | attribute ``frame`` of a pose, since 1.5 | ``relative_to`` |
| 1.6 | a joint may have the name of a link | see `torchsko.io.sdf.sdf_poses.joint_frame` |

Elements of newer versions are read in older files as well, as libsdformat does.

Reference: "Migration guide for the SDFormat specification" and the conversions of libsdformat.
"""

from __future__ import annotations

import re
from dataclasses import replace

from torchsko.errors import RobotFileError
from torchsko.io.sdf.sdf_poses import MODEL
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report

Version = tuple[int, int]

OLDEST: Version = (1, 4)
NEWEST: Version = (1, 12)

SEPARATE_NAMES: Version = (1, 6)
"""Last version in which a joint may have the name of a link."""

FLAG = "use_parent_model_frame"

TRUE = ("1", "true", "True", "TRUE")


def version_of(root: Element, report: Report) -> Version:
    """Version of a file; a missing, older or newer one is reported, and read as the nearest.

    Raises:
        RobotFileError: if the report is strict and the version is not among 1.4 to 1.12.
    """
    text = root.attributes.get("version", "").strip()
    found = re.match(r"(\d{1,9})\.(\d{1,9})(\.\d+)*\Z", text, re.ASCII)
    version = NEWEST if found is None else (int(found[1]), int(found[2]))
    nearest = min(max(version, OLDEST), NEWEST)
    if found is None or nearest != version:
        what = f"the version is {text!r}" if text else "has no version"
        report.fault(
            f"<sdf> (line {root.line})",
            f"{what}: read as {nearest[0]}.{nearest[1]}",
            RobotFileError(
                f"<sdf> (line {root.line}): {what}.",
                "The version determines frames of axes and poses; 1.4 to 1.12 are supported.",
                'Write, for example, <sdf version="1.9">.',
            ),
        )
    return nearest


def convert(element: Element, version: Version) -> Element:
    """The element with the rules of version 1.12.

    Args:
        element: an element of a file.
        version: version of the file.
    """
    if version > SEPARATE_NAMES:
        return element
    children = [convert(child, version) for child in element.children]
    attributes = element.attributes
    if element.tag == "pose" and version > OLDEST:
        attributes = {"relative_to" if k == "frame" else k: x for k, x in attributes.items()}
    elif element.tag in ("axis", "axis2"):
        flags = [child.text.strip() in TRUE for child in children if child.tag == FLAG]
        children = [child for child in children if child.tag != FLAG]
        if version <= OLDEST or any(flags):
            children = _in_model(element, children)
    elif element.tag == "world" and version < SEPARATE_NAMES:
        children += [
            x for c in children if c.tag == "physics" for x in c.children if x.tag == "gravity"
        ]
    return replace(element, attributes=attributes, children=children)


def _in_model(axis: Element, children: list[Element]) -> list[Element]:
    """Children of an axis that is expressed in the frame of the model."""
    found = any(child.tag == "xyz" for child in children)
    children = children if found else [*children, Element("xyz", {}, axis.line)]
    return [
        replace(child, attributes={"expressed_in": MODEL, **child.attributes})
        if child.tag == "xyz"
        else child
        for child in children
    ]
