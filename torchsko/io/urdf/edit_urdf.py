"""Edits of numbers in a URDF file."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchsko.errors import RobotFileError
from torchsko.io.urdf.urdf_link import ENTRIES
from torchsko.io.xml.edits import Edits, words
from torchsko.io.xml.reader import Document, Element
from torchsko.mechanism.description import JointDescription, LinkDescription, Matrix, Vector
from torchsko.mechanism.robot_description import RobotDescription


def edit_urdf(document: Document, old: RobotDescription, new: RobotDescription) -> bytes:
    """Replace inertial parameters of links, and placements, damping and friction of joints.

    Args:
        document: the file.
        old: description of the file.
        new: description with the new numbers.

    Returns:
        The bytes of the edited file.

    Raises:
        RobotFileError: if an element that changes is not in the file.
    """
    edits = Edits(document)
    for tag, before, after in (("link", old.links, new.links), ("joint", old.joints, new.joints)):
        elements = {
            child.attributes.get("name"): child
            for child in document.root.children
            if child.tag == tag
        }
        for was, now in zip(before, after, strict=True):
            if was == now:
                continue
            if was.name not in elements:
                raise RobotFileError(
                    f"{tag} {was.name!r} changed, and is not in the file.",
                    "The reader added it in place of a missing element, or for a flexible link.",
                    f'Leave like out, or write <{tag} name="{was.name}"> into the file first.',
                )
            changes = (
                _link_changes(was, now)
                if isinstance(was, LinkDescription) and isinstance(now, LinkDescription)
                else _joint_changes(was, now)
                if isinstance(was, JointDescription) and isinstance(now, JointDescription)
                else []
            )
            for change in changes:
                _write(edits, elements[was.name], change)
    return edits.result()


@dataclass(frozen=True)
class Change:
    """New attributes of an element below a link or joint.

    Attributes:
        path: tags from the link or joint to the element.
        values: attributes that change.
        required: further attributes of a new element.
    """

    path: tuple[str, ...]
    values: dict[str, str]
    required: dict[str, str]


def _origin(was: tuple[Vector, Matrix], now: tuple[Vector, Matrix]) -> dict[str, str]:
    """Attributes of <origin> that differ."""
    origin = {"xyz": words(now[0])} if now[0] != was[0] else {}
    if now[1] != was[1]:
        origin["rpy"] = words(rpy_from_rotation(now[1]))
    return origin


def _link_changes(was: LinkDescription, now: LinkDescription) -> list[Change]:
    origin = _origin((was.com, was.inertia_rotation), (now.com, now.inertia_rotation))
    mass = {"value": words([now.mass])} if now.mass != was.mass else {}
    before, after = _entries(was.inertia), _entries(now.inertia)
    inertia = {k: words([x]) for k, x in after.items() if x != before[k]}
    old_inertia = {k: words([x]) for k, x in before.items()}
    return [
        Change(("inertial", "origin"), origin, {}),
        Change(("inertial", "mass"), mass, {"value": words([was.mass])}),
        Change(("inertial", "inertia"), inertia, old_inertia),
    ]


def _entries(inertia: Matrix) -> dict[str, float]:
    (xx, xy, xz), (_, yy, yz), (_, _, zz) = inertia
    return dict(zip(ENTRIES, (xx, xy, xz, yy, yz, zz), strict=True))


def _joint_changes(was: JointDescription, now: JointDescription) -> list[Change]:
    origin = _origin((was.position, was.rotation), (now.position, now.rotation))
    losses = {
        name: words([getattr(now, name)])
        for name in ("damping", "friction")
        if getattr(now, name) != getattr(was, name)
    }
    return [Change(("origin",), origin, {}), Change(("dynamics",), losses, {})]


def _write(edits: Edits, element: Element, change: Change) -> None:
    """Change an element, or insert it if it is missing."""
    if not change.values:
        return
    for depth, tag in enumerate(change.path):
        below = next((child for child in element.children if child.tag == tag), None)
        if below is None:
            edits.insert(element, _text(change), change.path[depth:-1])
            return
        element = below
    edits.set(element, change.values)


def _text(change: Change) -> str:
    """The new element without its parents, which `Edits.insert` writes."""
    values = {**change.required, **change.values}
    attributes = "".join(f' {key}="{value}"' for key, value in values.items())
    return f"<{change.path[-1]}{attributes}/>"


def rpy_from_rotation(R: Matrix) -> tuple[float, float, float]:
    """Roll, pitch and yaw [rad] of a rotation, R = Rz(yaw) Ry(pitch) Rx(roll); yaw is 0 at a pitch of +-pi/2.

    The result is accurate near pitch +-pi/2 too: roll is computed from Rz(-yaw) R.
    """
    yaw = math.atan2(R[1][0], R[0][0])
    pitch = math.atan2(-R[2][0], math.hypot(R[0][0], R[1][0]))
    s, c = math.sin(yaw), math.cos(yaw)
    roll = math.atan2(s * R[0][2] - c * R[1][2], c * R[1][1] - s * R[0][1])
    return roll, pitch, yaw
