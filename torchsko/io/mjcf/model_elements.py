"""XML elements of an MJCF file that belong to the bodies and joints of its compiled model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchsko.errors import MechanismError, RobotFileError
from torchsko.io.mujoco.mujoco_fields import body_name
from torchsko.io.xml.reader import Element

EXPANDING_TAGS = ("include", "replicate", "attach", "composite", "flexcomp")
"""Elements that make the bodies of the model differ from those in the text."""


@dataclass(frozen=True)
class ModelElements:
    """A file and its compiled model.

    Attributes:
        root: root element of the file.
        model: ``mujoco.MjModel``.
        bodies: elements of bodies, by their index in the model.
    """

    root: Element
    model: Any
    bodies: Mapping[int, Element]

    @staticmethod
    def of(root: Element, model: Any) -> ModelElements:
        """Match elements with bodies, by order or, if the file has expanding elements, by name."""
        elements = [e for part in root.children if part.tag == "worldbody" for e in part.walk()]
        bodies = [e for e in elements if e.tag == "body"]
        if len(bodies) == model.nbody - 1 and not any(e.tag in EXPANDING_TAGS for e in elements):
            return ModelElements(root, model, dict(enumerate(bodies, start=1)))
        named = {e.attributes["name"]: e for e in bodies if "name" in e.attributes}
        replicas = (e for c in elements if c.tag == "replicate" for e in c.walk())
        copied = {e.attributes.get("name") for e in replicas}
        names = {b: model.body(b).name for b in range(1, model.nbody)}
        found = {b: named[x] for b, x in names.items() if x in named and x not in copied}
        return ModelElements(root, model, found)

    def body(self, b: int) -> Element:
        """The element of a body.

        Raises:
            RobotFileError: if the file has none.
        """
        if b not in self.bodies:
            raise RobotFileError(
                f"body {body_name(self.model, b)!r} changed, and has no element in the file.",
                "It is in an included file, is a copy, or has no name.",
                "Write it into this file, with a name.",
            )
        return self.bodies[b]

    def joint(self, b: int, i: int, name: str) -> Element:
        """The element of the i-th joint of a body.

        Raises:
            MechanismError: if it is a <freejoint>, or the file has none.
        """
        body = self.body(b)
        children = [e for e in body.walk() if e.tag == "body" and e is not body]
        below = {id(e) for child in children for e in child.walk()}
        joints = [e for e in body.walk() if e.tag in ("joint", "freejoint") and id(e) not in below]
        if i >= len(joints) or joints[i].tag == "freejoint":
            raise MechanismError(
                f"joint {name!r} changed, and is a <freejoint> or not in the file.",
                "A <freejoint> has no damping, friction and armature.",
                'Write <joint type="free"/> into the file instead.',
            )
        return joints[i]
