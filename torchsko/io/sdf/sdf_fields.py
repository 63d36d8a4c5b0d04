"""Unsupported elements of an SDF model, and a check that unique elements occur once.

Reference: SDFormat specification 1.4 to 1.12, http://sdformat.org/spec.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torchsko.errors import RobotFileError
from torchsko.io.sdf.sdf_joint import NUM_AXES
from torchsko.io.urdf.urdf_fields import only_child, report_misplaced
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import UnsupportedElement

ENTRIES = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")


@dataclass(frozen=True)
class Supported:
    """Supported attributes, unique children, and repeatable children of an element."""

    attributes: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    repeatable: tuple[str, ...] = ()


SUPPORTED = {
    "world": Supported(("name",), ("gravity",), ("model",)),
    "model": Supported(
        ("name", "canonical_link", "placement_frame"), ("pose",), ("link", "joint", "frame")
    ),
    "link": Supported(("name",), ("pose", "inertial", "gravity"), ("visual", "collision")),
    "inertial": Supported(("auto",), ("pose", "mass", "inertia")),
    "inertia": Supported((), ENTRIES),
    "joint": Supported(
        ("name", "type"),
        (
            "pose",
            "parent",
            "child",
            "screw_thread_pitch",
            "thread_pitch",
            "gearbox_ratio",
            "gearbox_reference_body",
        ),
    ),
    "axis": Supported((), ("xyz", "limit", "dynamics", "mimic")),
    "xyz": Supported(("expressed_in",)),
    "limit": Supported((), ("lower", "upper", "velocity", "effort")),
    "dynamics": Supported((), ("damping", "friction", "spring_stiffness", "spring_reference")),
    "mimic": Supported(("joint", "axis"), ("multiplier", "offset", "reference")),
    "frame": Supported(("name", "attached_to"), ("pose",)),
    "pose": Supported(("relative_to", "rotation_format", "degrees")),
}
"""Supported content by tag; ``axis2`` equals ``axis``; shapes are in `sdf_geometry`."""

FIXED_REFERENCE_POSES = ("<model> <pose>", "<link> <inertial> <pose>")
"""Poses whose ``relative_to`` has no effect."""

OBSOLETE = {
    "use_parent_model_frame": "read until version 1.6: the axis is in the joint frame, or expressed_in",
    "attribute 'frame'": "read in versions 1.5 and 1.6: the pose has its default frame, or relative_to",
}
"""Removed elements and attributes that changed the dynamics, with how the file is read instead."""

UNMODELED = {
    "fluid_added_mass", "velocity_decay", "static", "enable_wind", "wind",
}  # fmt: skip
"""Elements that change the dynamics and are not modeled."""

REASONS = {
    "plugin": "a program of a simulator",
    "static": "torchsko does not fix its joints",
    "self_collide": "contact is not modeled",
    "allow_auto_disable": "settings of a simulator",
    "enable_wind": "wind is not modeled",
    "wind": "wind is not modeled",
    "gripper": "not modeled",
    "physics": "settings of a simulator",
    "sensor": "sensors are not modeled",
    "fluid_added_mass": "fluids are not modeled",
    "velocity_decay": "a loss of the simulator, not of the joints",
    "stiffness": "settings of a simulator for limits",
    "dissipation": "settings of a simulator for limits",
}


def leftovers(root: Element, model: Element, report: Report) -> list[UnsupportedElement]:
    """Unsupported elements of a model and of its world, one entry for each kind.

    Removed elements and attributes, and attributes that are elements in the format, are reported as faults.

    Raises:
        RobotFileError: if a unique element occurs several times.
    """
    found: Counter[tuple[str, str]] = Counter()
    joints = [c for c in model.children if c.tag == "joint"]
    around = [c for c in root.children if c.tag == "world" and model in c.children]
    for element in (*around, model):
        _walk(element, "", f"<{element.tag}>", found, report)
    return [
        *_superfluous_axes(joints),
        *(
            UnsupportedElement(
                f"{what} in {place}" + f" ({n} times)" * (n > 1),
                _reason(what),
                affects_forces=what.strip("<>") in UNMODELED,
            )
            for (what, place), n in found.items()
            if (what.strip("<>"), place) not in (("axis", "<joint>"), ("axis2", "<joint>"))
        ),
    ]


def _superfluous_axes(joints: Iterable[Element]) -> Iterator[UnsupportedElement]:
    """Notes on axes that a joint of its type does not have, whose limits and losses are not read."""
    for joint in joints:
        kind = joint.attributes.get("type", "")
        for tag in ("axis", "axis2")[NUM_AXES.get(kind, 2) :]:
            if any(c.tag == tag for c in joint.children):
                name = joint.attributes.get("name", "").strip()
                yield UnsupportedElement(
                    f"<{tag}> of joint {name!r}",
                    f"a {kind} joint has no such axis: it is read as a {kind} joint, without the losses and "
                    "limits of the axis",
                    affects_forces=True,
                )


def _walk(
    element: Element, where: str, place: str, found: Counter[tuple[str, str]], report: Report
) -> None:
    """Count unsupported content of an element and of its children, by place."""
    supported, name = _supported(element, place), element.attributes.get("name", "").strip()
    where = f"{element.tag} {name!r}" if name else f"{where} <{element.tag}>".strip()
    for child in element.children:
        if child.tag in supported.unique:
            only_child(element, child.tag, where)
            _walk(child, where, f"{place} <{child.tag}>", found, report)
        elif child.tag in OBSOLETE:
            _report(f"{where} <{child.tag}> (line {child.line})", OBSOLETE[child.tag], report)
        elif child.tag not in supported.repeatable:
            found[f"<{child.tag}>", place] += 1
        elif child.tag in SUPPORTED and child.tag != "model":
            _walk(child, where, f"<{child.tag}>", found, report)
    for key in element.attributes:
        what = f"attribute {key!r}"
        if key in supported.unique:
            report_misplaced(
                report, f"{where} {what} (line {element.line})", key, "an element in SDF"
            )
        elif what in OBSOLETE and element.tag == "pose":
            _report(f"{where} {what} (line {element.line})", OBSOLETE[what], report)
        elif key in supported.attributes or key.startswith("xmlns"):
            continue
        elif supported == Supported() and not element.text.strip():
            reason = f"not read, since the value is the text of <{element.tag}>"
            _report(f"{where} {what} (line {element.line})", reason, report)
        else:
            found[what, place] += 1


def _report(where: str, reason: str, report: Report) -> None:
    error = RobotFileError(
        f"{where}: {reason}.", "The format does not permit it.", "Correct the file."
    )
    report.fault(where, reason, error)


def _supported(element: Element, place: str) -> Supported:
    """Supported content of an element; for a joint with the axes of its type."""
    if element.tag == "pose" and place in FIXED_REFERENCE_POSES:
        return replace(SUPPORTED["pose"], attributes=SUPPORTED["pose"].attributes[1:])
    if element.tag == "joint":
        axes = ("axis", "axis2")[: NUM_AXES.get(element.attributes.get("type", ""), 2)]
        return replace(SUPPORTED["joint"], unique=(*SUPPORTED["joint"].unique, *axes))
    return SUPPORTED.get("axis" if element.tag == "axis2" else element.tag, Supported())


def _reason(what: str) -> str:
    return REASONS.get(what.removeprefix("attribute ").strip("<>'"), "not supported")
