"""SDF reader: converts the single model of a file to a `RobotDescription`.

It reads links with inertias and shapes, joints with axes, limits, losses and springs, and frames. It does not
read included files, worlds with several models, sensors and plugins. Link frames are those of the file, so a
joint elsewhere turns about a point of the link. The last joint of a loop in the file becomes a closure.

No other SDF reader is on PyPI (libsdformat has no wheels), so the tests compare with the same robots in URDF.

Reference: SDFormat specification 1.4 to 1.12, http://sdformat.org/spec.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import as_matrix, as_vector, number, quaternion_from_matrix, vector
from torchsko.io.common.source import naming
from torchsko.io.sdf.sdf_fields import ENTRIES, leftovers
from torchsko.io.sdf.sdf_geometry import read_shapes
from torchsko.io.sdf.sdf_joint import (
    GEARBOX,
    closes_loop,
    connected_links,
    read_closure,
    read_gearbox,
    read_joint,
    read_mimic,
)
from torchsko.io.sdf.sdf_poses import (
    MODEL,
    WORLD_FRAME,
    FramePose,
    Frames,
    Pose,
    joint_frame,
    read_pose,
    text_of,
)
from torchsko.io.sdf.sdf_versions import SEPARATE_NAMES, convert, version_of
from torchsko.io.urdf.urdf_fields import only_child
from torchsko.io.urdf.urdf_joint import couplings_to
from torchsko.io.xml.reader import Element, is_xml_text, read_document
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import (
    FIXED,
    CouplingDescription,
    JointDescription,
    LinkDescription,
    UnsupportedElement,
    Vector,
)
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.robot_description import RobotDescription
from torchsko.mechanism.welded import WORLD

PARTS = ("link", "joint", "frame", "pose")
"""Children of a model that are read."""

WORLD_GRAVITY = "0 0 -9.8"
"""The format's default gravity of a world [m/s^2]."""


def read_sdf(
    source: str | os.PathLike[str],
    *,
    floating_base: bool = False,
    mimic: Literal["couple", "independent"] = "couple",
    strict: bool = False,
    mesh_path: Sequence[str | os.PathLike[str]] = (),
) -> RobotDescription:
    """Read the single model of an SDF file.

    Args:
        source: path of the file, or its text.
        floating_base: let root links float; otherwise they are welded to the world at their pose.
        mimic: "couple" makes a joint whose axis has <mimic> follow its leader exactly; "independent" reads it
            as an independent joint.
        strict: raise an error for a fault that leaves the dynamics defined.
        mesh_path: trusted folders for meshes, besides that of the file; meshes are not read here.

    Raises:
        RobotFileError: if the file cannot be read, includes other files, does not have exactly one model, or
            has an invalid element.
    """
    report = Report(strict)
    home = None if is_xml_text(source) else os.path.dirname(os.path.abspath(source))
    folders = [os.fspath(folder) for folder in mesh_path]
    with naming(source):
        root = read_document(source, report, text=True).root
        return _read_robot(root, floating_base, mimic == "couple", home, folders, report)


def _read_robot(
    root: Element,
    floating_base: bool,
    couple: bool,
    home: str | None,
    folders: Sequence[str],
    report: Report,
) -> RobotDescription:
    separate_names = False
    if root.tag == "sdf":
        version = version_of(root, report)
        root, separate_names = convert(root, version), version <= SEPARATE_NAMES
    model = _only_model(root)
    name = model.attributes.get("name", "").strip() or "robot"
    by_tag = {tag: [c for c in model.children if c.tag == tag] for tag in PARTS}
    canonical = model.attributes.get("canonical_link", "")
    frames = Frames(_poses(by_tag, canonical, separate_names))
    unsupported = leftovers(root, model, report)
    links = [_link(element, report) for element in by_tag["link"]]
    found = _read_joints(by_tag["joint"], frames, couple, report)
    model_pose = read_pose(next(iter(by_tag["pose"]), None), f"model {name!r}")
    if frame := model.attributes.get("placement_frame", ""):
        model_pose = model_pose @ frames.pose(frame).inverse()
    joints = [_in_world(joint, model_pose) for joint in found.joints]
    children = {joint.child for joint in joints}
    roots = [link.name for link in links if link.name not in children]
    root_poses = {root: model_pose @ frames.pose(root) for root in roots}
    welds = [] if floating_base else [_weld(root, pose) for root, pose in root_poses.items()]
    shapes = read_shapes(by_tag["link"], frames, home, folders, report)
    named_frames = [_frame(element, frames) for element in by_tag["frame"]]
    return RobotDescription(
        name,
        (*links, *found.massless, *(link for link, _ in named_frames)),
        (*welds, *joints, *(joint for _, joint in named_frames)),
        (*unsupported, *report.unused),
        couplings_to(found.mimics, joints, report),
        report=tuple(report.faults),
        geometry=shapes,
        closures=tuple(found.closures),
        gravity=_gravity(root, model),
        starts=tuple(
            (name, (*pose.position.tolist(), *quaternion_from_matrix(pose.rotation).tolist()))
            for name, pose in root_poses.items()
        ),
    )


class _Joints(NamedTuple):
    """Joints of a model, the massless links between them, the loops they close, and their couplings."""

    joints: list[JointDescription]
    massless: list[LinkDescription]
    closures: list[Closure]
    mimics: list[CouplingDescription | None]


def _read_joints(
    elements: Sequence[Element], frames: Frames, couple: bool, report: Report
) -> _Joints:
    """Read joints in file order; gearboxes last, since they couple other joints."""
    found = _Joints([], [], [], [])
    parents: dict[str, str] = {}
    gearboxes = [c for c in elements if c.attributes.get("type") == GEARBOX]
    for element in (c for c in elements if c not in gearboxes):
        parent, child = connected_links(element, frames)
        if closes_loop(parent, child, parents):
            closure, (more_links, chain) = read_closure(element, frames)
            found.closures.append(closure)
            report.unused.append(closure.note)
        else:
            parents[child] = parent
            more_links, chain = read_joint(element, frames, report)
            found.mimics.append(read_mimic(element, couple, report))
        found.massless.extend(more_links)
        found.joints.extend(chain)
    for element in gearboxes:
        gearbox = read_gearbox(element, frames, found.joints)
        if couple:
            found.mimics.append(gearbox)
        else:
            where = f"joint {element.attributes['name']!r}"
            report.unused.append(UnsupportedElement(where, "its hinges are independent"))
    return found


def _gravity(root: Element, model: Element) -> Vector | None:
    """Gravity of the world element around a model; None without a world."""
    for world in root.children:
        if world.tag == "world" and model in world.children:
            return vector(text_of(world, "gravity") or WORLD_GRAVITY, "the world's <gravity>")
    return None


def _only_model(root: Element) -> Element:
    """The single model of a file without includes."""
    if root.tag != "sdf":
        raise RobotFileError(
            f"line {root.line}: the root element is <{root.tag}>, not <sdf>.",
            advice="Check that the file is the right one.",
        )
    for element in root.walk():
        if element.tag == "include":
            raise RobotFileError(
                f"line {element.line}: the file includes another file.",
                "Included files are not supported.",
                "Expand them first: gz sdf -p FILE > model.sdf",
            )
    places = [root, *(c for c in root.children if c.tag == "world")]
    models = [c for place in places for c in place.children if c.tag == "model"]
    nested = [c for model in models for c in model.children if c.tag == "model"]
    if len(models) != 1 or nested:
        raise RobotFileError(
            f"the file has {len(models) + len(nested)} models.",
            "Exactly one model, without nested models, is supported.",
            "Write each <model> to a separate file.",
        )
    return models[0]


def _poses(
    by_tag: dict[str, list[Element]], canonical: str, separate_names: bool
) -> dict[str, FramePose]:
    """Poses of all frames of a model by name, with the format's default reference frames.

    Args:
        by_tag: the links, joints and frames of the model.
        canonical: link to which the model's frame is attached; the first link when empty.
        separate_names: True if a joint may have the name of a link or frame.
    """
    found = {
        MODEL: FramePose(Pose(), MODEL, MODEL),
        WORLD_FRAME: FramePose(Pose(), MODEL, WORLD_FRAME),
    }
    for tag in ("link", "frame", "joint"):
        for element in by_tag[tag]:
            name = element.attributes.get("name", "").strip()
            if tag == "joint" and separate_names and name in found:
                name = joint_frame(name)
            if not name or name in found:
                raise RobotFileError(
                    f"line {element.line}: <{tag}> has the name {name!r}, which is empty or not unique.",
                    "Links, joints and frames of a model need unique names.",
                    "Give it another name.",
                )
            pose = next((c for c in element.children if c.tag == "pose"), None)
            default, carrier = {
                "link": (MODEL, name),
                "joint": (child := text_of(element, "child"), child),
                "frame": (frame := element.attributes.get("attached_to") or MODEL, frame),
            }[tag]
            reference = "" if pose is None else pose.attributes.get("relative_to", "")
            value = read_pose(pose, f"{tag} {name!r}")
            found[name] = FramePose(value, reference or default, carrier)
    first = by_tag["link"][0].attributes["name"].strip() if by_tag["link"] else MODEL
    return found | {MODEL: FramePose(Pose(), MODEL, canonical or first)}


def _link(element: Element, report: Report) -> LinkDescription:
    """A link with its inertia; the format's default is 1 kg with unit inertia."""
    name = element.attributes["name"].strip()
    where = f"link {name!r}"
    weightless = (
        0.0 if parse_bool(text_of(element, "gravity") or "true", f"{where} <gravity>") else 1.0
    )
    inertial = next((c for c in element.children if c.tag == "inertial"), None)
    if inertial is None:
        report.fault(
            where,
            "no <inertial>: read as 1 kg with unit inertia, the default of the format",
            RobotFileError(
                f"{where} (line {element.line}) has no <inertial>.",
                "The default of the format, 1 kg with unit inertia, is seldom intended.",
                "Write its mass and inertia.",
            ),
        )
        return LinkDescription(name, 1.0, inertia=as_matrix(np.eye(3)), gravcomp=weightless)
    if parse_bool(
        inertial.attributes.get("auto", "false"), f"{where} <inertial>: attribute 'auto'"
    ):
        raise RobotFileError(
            f'{where} (line {inertial.line}) has an automatic inertia (auto="true").',
            "Inertias are not computed from shapes and densities.",
            "Write the numbers that gz sdf --inertial-stats FILE prints.",
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


def parse_bool(text: str, where: str) -> bool:
    """Parse true, 1, false or 0.

    Raises:
        RobotFileError: for other text.
    """
    word = text.strip().lower()
    if word not in ("true", "1", "false", "0"):
        raise RobotFileError(
            f"{where} is {text!r}, which is not a truth value.",
            advice="Write true or false there.",
        )
    return word in ("true", "1")


def _in_world(joint: JointDescription, model_pose: Pose) -> JointDescription:
    """Express the placement of a joint on the world in the world instead of the model."""
    if joint.parent != WORLD:
        return joint
    pose = model_pose @ Pose(np.array(joint.rotation), np.array(joint.position))
    return replace(joint, rotation=as_matrix(pose.rotation), position=as_vector(pose.position))


def _weld(root: str, pose: Pose) -> JointDescription:
    return JointDescription(
        f"{root}_held", FIXED, WORLD, root, as_matrix(pose.rotation), as_vector(pose.position)
    )


def _frame(element: Element, frames: Frames) -> tuple[LinkDescription, JointDescription]:
    """A named frame, as a massless link fixed to the link that carries it."""
    name = element.attributes["name"].strip()
    link = frames.link(name)
    pose = frames.pose(link).inverse() @ frames.pose(name)
    parent = WORLD if link == WORLD_FRAME else link
    rotation, position = as_matrix(pose.rotation), as_vector(pose.position)
    joint = JointDescription(f"{name}_fixed", FIXED, parent, name, rotation, position)
    return LinkDescription(name), joint
