"""What an SDF model holds besides what is read: noted, each kind once; and what stands twice: refused.

Reference: SDFormat specification 1.4 to 1.12, http://sdformat.org/spec.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from torchsko.io.sdf.sdf_joint import AXES
from torchsko.io.urdf.urdf_fields import only_child
from torchsko.io.xml.reader import Element
from torchsko.mechanism.description import UnsupportedElement

ENTRIES = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")


@dataclass(frozen=True)
class Read:
    """What is read of an element: attributes, children that stand once, and children of any number."""

    attributes: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    often: tuple[str, ...] = ()


READ = {
    "world": Read(("name",), ("gravity",), ("model",)),
    "model": Read(("name", "canonical_link", "placement_frame"), ("pose",), ("link", "joint", "frame")),
    "link": Read(("name",), ("pose", "inertial", "gravity"), ("visual", "collision")),
    "inertial": Read(("auto",), ("pose", "mass", "inertia")),
    "inertia": Read((), ENTRIES),
    "joint": Read(("name", "type"), ("pose", "parent", "child")),
    "axis": Read((), ("xyz", "use_parent_model_frame", "limit", "dynamics", "mimic")),
    "xyz": Read(("expressed_in",)),
    "limit": Read((), ("lower", "upper", "velocity", "effort")),
    "dynamics": Read((), ("damping", "friction", "spring_stiffness", "spring_reference")),
    "mimic": Read(("joint", "axis"), ("multiplier", "offset", "reference")),
    "frame": Read(("name", "attached_to"), ("pose",)),
    "pose": Read(("relative_to", "rotation_format", "degrees")),
}  # fmt: skip
"""By tags; ``axis2`` is as ``axis``, shapes are read elsewhere."""

POSES = ("<model> <pose>", "<link> <inertial> <pose>")
"""Places of poses that are relative to one frame, whatever they say."""

REASONS = {
    "plugin": "a program of a simulator",
    "static": "its joints move here",
    "self_collide": "contact is not modelled",
    "allow_auto_disable": "settings of a simulator",
    "enable_wind": "wind is not modelled",
    "wind": "wind is not modelled",
    "gripper": "not modelled",
    "physics": "settings of a simulator",
    "sensor": "sensors are not modelled",
    "fluid_added_mass": "fluids are not modelled",
    "velocity_decay": "a loss of the simulator's, not of the joints",
    "stiffness": "how a simulator holds limits",
    "dissipation": "how a simulator holds limits",
    "axis": "a joint of this type has no such axis",
    "axis2": "a joint of this type has no such axis",
}


def leftovers(root: Element, model: Element) -> list[UnsupportedElement]:
    """What stands in a model, and in the world around it, besides what is read: one entry for each kind.

    Raises:
        RobotFileError: what counts once stands twice; names the element.
    """
    found: Counter[tuple[str, str]] = Counter()
    around = [c for c in root.children if c.tag == "world" and model in c.children]
    for element in (*around, model):
        _walk(element, "", f"<{element.tag}>", found)
    return [
        UnsupportedElement(f"{what} in {place}" + f" ({n} times)" * (n > 1), _reason(what))
        for (what, place), n in found.items()
    ]


def _walk(element: Element, where: str, place: str, found: Counter[tuple[str, str]]) -> None:
    """Count by their places what is not read of an element and of those inside it."""
    read, name = _read(element, place), element.attributes.get("name", "").strip()
    where = f"{element.tag} {name!r}" if name else f"{where} <{element.tag}>".strip()
    for child in element.children:
        if child.tag in read.once:
            only_child(element, child.tag, where)
            _walk(child, where, f"{place} <{child.tag}>", found)
        elif child.tag not in read.often:
            found[f"<{child.tag}>", place] += 1
        elif child.tag in READ and child.tag != "model":
            _walk(child, where, f"<{child.tag}>", found)
    for key in element.attributes:
        if key not in read.attributes and not key.startswith("xmlns"):
            found[f"attribute {key!r}", place] += 1


def _read(element: Element, place: str) -> Read:
    """What is read of an element; of a joint, as many axes as its type has."""
    if element.tag == "pose" and place in POSES:
        return replace(READ["pose"], attributes=READ["pose"].attributes[1:])
    if element.tag == "joint":
        axes = ("axis", "axis2")[: AXES.get(element.attributes.get("type", ""), 2)]
        return replace(READ["joint"], once=(*READ["joint"].once, *axes))
    return READ.get("axis" if element.tag == "axis2" else element.tag, Read())


def _reason(what: str) -> str:
    return REASONS.get(what.removeprefix("attribute ").strip("<>'"), "not read")
