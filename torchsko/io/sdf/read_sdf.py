"""The SDF reader: a single model to a `RobotDescription`.

Read are links with their inertias and shapes, joints with their axes, limits, losses and springs, and frames.
Not read: files that others include, worlds of several models, sensors and plugins. A link has its frame where
the file puts it, so a joint that is elsewhere turns about a point of the link. Of joints that form a loop the
last in the file is kept as a closure.

There is no other reader of SDF on PyPI to compare with: libsdformat has no wheels. The tests compare with the
same robots in URDF, read by this library and by others.

Reference: SDFormat specification 1.4 to 1.12, http://sdformat.org/spec.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import numpy as np

from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import as_matrix, as_vector, number, vector
from torchsko.io.common.quaternion import quaternion_from_matrix
from torchsko.io.common.report import Report
from torchsko.io.common.source import naming
from torchsko.io.sdf.sdf_fields import ENTRIES, leftovers
from torchsko.io.sdf.sdf_geometry import read_shapes
from torchsko.io.sdf.sdf_joint import closes, closure, ends, read_joint, read_mimic
from torchsko.io.sdf.sdf_poses import (
    MODEL,
    WORLD_FRAME,
    Frames,
    Pose,
    Written,
    read_pose,
    text_of,
)
from torchsko.io.urdf.urdf_fields import only_child
from torchsko.io.urdf.urdf_joint import couplings_to
from torchsko.io.xml.reader import Element, is_xml_text, read_xml
from torchsko.mechanism.description import (
    FIXED,
    JointDescription,
    LinkDescription,
    RobotDescription,
    UnsupportedElement,
    Vector,
)
from torchsko.mechanism.welded import WORLD

PARTS = ("link", "joint", "frame", "pose")
"""What is read of a model."""


def read_sdf(
    source: str | os.PathLike[str],
    *,
    floating_base: bool = False,
    mimic: Literal["couple", "independent"] = "couple",
    strict: bool = False,
    mesh_path: Sequence[str | os.PathLike[str]] = (),
) -> RobotDescription:
    """Read the one model of a file in SDF.

    Args:
        source: path of the file, or its text.
        floating_base: leave a link that no joint moves free of the world; else it is held where it is.
        mimic: "couple" reads a joint whose axis mimics another's as one that follows it exactly;
            "independent" as a joint of its own.
        strict: refuse faults that leave the dynamics defined.
        mesh_path: folders in which meshes may lie, besides that of the file; none is read now.

    Raises:
        RobotFileError: the file is not readable, includes others, holds no or several models, or says what
            has no meaning.
    """
    report = Report(strict)
    home = None if is_xml_text(source) else os.path.dirname(os.path.abspath(source))
    folders = [os.fspath(folder) for folder in mesh_path]
    with naming(source):
        root = read_xml(source, report, text=True)
        return _read_robot(root, floating_base, mimic == "couple", home, folders, report)


def _read_robot(
    root: Element,
    floating_base: bool,
    couple: bool,
    home: str | None,
    folders: Sequence[str],
    report: Report,
) -> RobotDescription:
    model = _only_model(root)
    name = model.attributes.get("name", "").strip() or "robot"
    by_tag = {tag: [c for c in model.children if c.tag == tag] for tag in PARTS}
    frames = Frames(_poses(by_tag, model.attributes.get("canonical_link", "")))
    left = leftovers(root, model)
    links = [_link(element, report) for element in by_tag["link"]]
    joints, between, closures, mimics = [], [], [], []
    above = {}
    for element in by_tag["joint"]:
        parent, child = ends(element, frames)
        if closes(parent, child, above):
            closures.append(closure(element, frames))
            what = f"joint {element.attributes['name']!r}"
            report.unused.append(
                UnsupportedElement(
                    what, "closes a loop; kept in mech.file_metadata.closures, not enforced"
                )
            )
            continue
        above[child] = parent
        more, chain = read_joint(element, frames, report)
        between += more
        joints += chain
        mimics.append(read_mimic(element, couple, report))
    placed = read_pose(next(iter(by_tag["pose"]), None), f"model {name!r}")
    if frame := model.attributes.get("placement_frame", ""):
        placed = placed @ frames.pose(frame).inverse()
    joints = [_in_world(joint, placed) for joint in joints]
    moved = {joint.child for joint in joints}
    roots = [link.name for link in links if link.name not in moved]
    places = {root: placed @ frames.pose(root) for root in roots}
    held = [] if floating_base else [_held(root, pose) for root, pose in places.items()]
    shapes = read_shapes(by_tag["link"], frames, home, folders, report)
    more_frames = [_frame(element, frames) for element in by_tag["frame"]]
    return RobotDescription(
        name,
        (*links, *between, *(link for link, _ in more_frames)),
        (*held, *joints, *(joint for _, joint in more_frames)),
        (*left, *report.unused),
        couplings_to(mimics, joints, report),
        report=tuple(report.faults),
        geometry=shapes,
        closures=tuple(closures),
        gravity=_gravity(root, model),
        starts=tuple(
            (name, (*pose.position.tolist(), *quaternion_from_matrix(pose.rotation).tolist()))
            for name, pose in places.items()
        ),
    )


def _gravity(root: Element, model: Element) -> Vector | None:
    """That of the world around a model, where it says one."""
    worlds = [c for c in root.children if c.tag == "world" and model in c.children]
    text = next((text_of(world, "gravity") for world in worlds), "")
    return vector(text, "the world's <gravity>") if text else None


def _only_model(root: Element) -> Element:
    """The one model of a file, which includes nothing."""
    if root.tag != "sdf":
        raise RobotFileError(
            f"line {root.line}: the outermost element is <{root.tag}>, not <sdf>.",
            "This reader knows SDF only.",
            "Check that the file is the right one.",
        )
    for element in root.walk():
        if element.tag == "include":
            raise RobotFileError(
                f"line {element.line}: the file includes another.",
                "A model is read from its own file only; what it includes may be anywhere.",
                "Write it out first: gz sdf -p FILE > model.sdf",
            )
    places = [root, *(c for c in root.children if c.tag == "world")]
    models = [c for place in places for c in place.children if c.tag == "model"]
    nested = [c for model in models for c in model.children if c.tag == "model"]
    if len(models) != 1 or nested:
        raise RobotFileError(
            f"the file holds {len(models) + len(nested)} models.",
            "A mechanism is read from one, with no other inside.",
            "Write each <model> to a file of its own.",
        )
    return models[0]


def _poses(by_tag: dict[str, list[Element]], canonical: str) -> dict[str, Written]:
    """Every frame of a model by name, with what it is relative to where the file does not say.

    Args:
        by_tag: the links, joints and frames of the model.
        canonical: the link that the model's own frame stays on; the first when empty.
    """
    found = {MODEL: Written(Pose(), MODEL, MODEL), WORLD_FRAME: Written(Pose(), MODEL, WORLD_FRAME)}
    for tag in ("link", "joint", "frame"):
        for element in by_tag[tag]:
            name = element.attributes.get("name", "").strip()
            if not name or name in found:
                raise RobotFileError(
                    f"line {element.line}: <{tag}> has the name {name!r}.",
                    "Links, joints and frames of a model have names of their own.",
                    "Give it another.",
                )
            pose = next((c for c in element.children if c.tag == "pose"), None)
            usual, on = {
                "link": (MODEL, name),
                "joint": (child := text_of(element, "child"), child),
                "frame": (on := element.attributes.get("attached_to") or MODEL, on),
            }[tag]
            where = "" if pose is None else pose.attributes.get("relative_to", "")
            found[name] = Written(read_pose(pose, f"{tag} {name!r}"), where or usual, on)
    first = by_tag["link"][0].attributes["name"].strip() if by_tag["link"] else MODEL
    return found | {MODEL: Written(Pose(), MODEL, canonical or first)}


def _link(element: Element, report: Report) -> LinkDescription:
    """A link with its inertia; without one it has the format's own, of 1 kg."""
    name = element.attributes["name"].strip()
    where = f"link {name!r}"
    weightless = 0.0 if yes(text_of(element, "gravity") or "true", f"{where} <gravity>") else 1.0
    inertial = next((c for c in element.children if c.tag == "inertial"), None)
    if inertial is None:
        report.fault(
            where,
            "no <inertial>: read as 1 kg with unit inertia, which is what the format says",
            f"{where} (line {element.line}) has no <inertial>.\n"
            "The format gives it 1 kg and unit inertia then, which is seldom meant.\n"
            "Write its mass and inertia.",
        )
        return LinkDescription(name, 1.0, inertia=as_matrix(np.eye(3)), gravcomp=weightless)
    if yes(inertial.attributes.get("auto", "false"), f"{where} <inertial>: attribute 'auto'"):
        raise RobotFileError(
            f"{where} (line {inertial.line}) leaves its inertia to the simulator: auto.",
            "That follows from shapes and densities, which are not read here.",
            "Write the numbers: gz sdf --inertial-stats FILE shows them.",
        )
    pose = read_pose(next((c for c in inertial.children if c.tag == "pose"), None), where)
    entries = only_child(inertial, "inertia", where) or Element("inertia", {}, inertial.line)
    xx, xy, xz, yy, yz, zz = (
        number(
            text_of(entries, key) or ("1" if key in ("ixx", "iyy", "izz") else "0"),
            f"{where} <{key}>",
        )
        for key in ENTRIES
    )
    return LinkDescription(
        name,
        number(text_of(inertial, "mass") or "1", f"{where} <mass>"),
        as_vector(pose.position),
        ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz)),
        as_matrix(pose.rotation),
        weightless,
    )


def yes(text: str, where: str) -> bool:
    """Whether a text says so: true or 1, false or 0.

    Raises:
        RobotFileError: it says neither.
    """
    word = text.strip().lower()
    if word not in ("true", "1", "false", "0"):
        raise RobotFileError(
            f"{where} is {text!r}.",
            "It says yes or no.",
            "Write true or false there.",
        )
    return word in ("true", "1")


def _in_world(joint: JointDescription, placed: Pose) -> JointDescription:
    """A joint on the world, seen from the world and not from the model."""
    if joint.parent != WORLD:
        return joint
    pose = placed @ Pose(np.array(joint.rotation), np.array(joint.position))
    return JointDescription(
        **{
            **vars(joint),
            "rotation": as_matrix(pose.rotation),
            "position": as_vector(pose.position),
        }
    )


def _held(root: str, pose: Pose) -> JointDescription:
    return JointDescription(
        f"{root}_held", FIXED, WORLD, root, as_matrix(pose.rotation), as_vector(pose.position)
    )


def _frame(element: Element, frames: Frames) -> tuple[LinkDescription, JointDescription]:
    """A named frame on the link that it hangs on."""
    name = element.attributes["name"].strip()
    link = frames.link(name)
    pose = frames.pose(link).inverse() @ frames.pose(name)
    parent = WORLD if link == WORLD_FRAME else link
    rotation, position = as_matrix(pose.rotation), as_vector(pose.position)
    joint = JointDescription(f"{name}_fixed", FIXED, parent, name, rotation, position)
    return LinkDescription(name), joint
