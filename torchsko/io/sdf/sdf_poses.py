"""Where links, joints and frames of an SDF model are: poses, each relative to what it names.

Reference: SDFormat, "Pose frame semantics" (http://sdformat.org/tutorials).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchsko.errors import RobotFileError, unknown_name
from torchsko.io.common.numbers import number, rotation_from_rpy
from torchsko.io.xml.reader import Element

MODEL = "__model__"
"""The frame of the model itself."""

WORLD_FRAME = "world"


@dataclass(frozen=True)
class Pose:
    """Rotation and position [m] of a frame in another."""

    rotation: np.ndarray = field(default_factory=lambda: np.eye(3))
    position: np.ndarray = field(default_factory=lambda: np.zeros(3))

    def __matmul__(self, other: Pose) -> Pose:
        return Pose(self.rotation @ other.rotation, self.position + self.rotation @ other.position)

    def inverse(self) -> Pose:
        """The other frame in this one."""
        return Pose(self.rotation.T, -self.rotation.T @ self.position)


@dataclass(frozen=True)
class Written:
    """A pose as a file has it: in which frame, and on which link it stays (frames: what they hang on)."""

    pose: Pose
    relative_to: str
    attached_to: str


def text_of(element: Element, tag: str) -> str:
    """The text of a child; empty where there is none."""
    return next((c.text.strip() for c in element.children if c.tag == tag), "")


def read_pose(element: Element | None, where: str) -> Pose:
    """Six numbers of a <pose>, or seven with a quaternion; the identity without the element.

    Raises:
        RobotFileError: a number is none, or too few or many.
    """
    if element is None or not element.text.strip():
        return Pose()
    words = [number(word, f"{where} <pose> (line {element.line})") for word in element.text.split()]
    quaternion = element.attributes.get("rotation_format") == "quat_xyzw"
    if len(words) != (7 if quaternion else 6):
        raise RobotFileError(
            f"{where} <pose> (line {element.line}) has {len(words)} numbers.",
            "A pose is three of position and three angles, or the four of a quaternion with "
            'rotation_format="quat_xyzw".',
            "Write, for example, 0 0 1 0 0 1.57.",
        )
    position = np.array(words[:3])
    if quaternion:
        return Pose(_turn(words[3:], where), position)
    x, y, z = words[3:]
    if element.attributes.get("degrees", "false") in ("true", "1"):
        x, y, z = (math.radians(angle) for angle in (x, y, z))
    return Pose(np.array(rotation_from_rpy((x, y, z))), position)


def _turn(words: Sequence[float], where: str) -> np.ndarray:
    length = math.sqrt(sum(c * c for c in words))
    if not length > 1e-6:
        raise RobotFileError(
            f"{where} <pose> has a quaternion of length {length:g}.",
            "It has no direction to turn in.",
            "Write x y z w, of length one.",
        )
    x, y, z, w = (c / length for c in words)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


class Frames:
    """All frames of a model, found in the model's own where asked for."""

    def __init__(self, written: dict[str, Written]) -> None:
        self._written = written
        self._found: dict[str, Pose] = {MODEL: Pose()}

    def pose(self, name: str) -> Pose:
        """Of a frame in the model.

        Raises:
            RobotFileError: no frame has this name, or one is relative to itself.
        """
        chain = [name]
        while chain[-1] not in self._found:
            written = self._at(chain[-1])
            if written.relative_to in chain:
                raise RobotFileError(
                    f"the pose of {name!r} is relative to itself: {' in '.join(map(repr, chain))}.",
                    "Every pose is relative to the model in the end.",
                    "Correct one of their relative_to.",
                )
            chain.append(written.relative_to)
        for one in reversed(chain[:-1]):
            written = self._written[one]
            self._found[one] = self._found[written.relative_to] @ written.pose
        return self._found[name]

    def link(self, name: str) -> str:
        """The link that a frame stays on.

        Raises:
            RobotFileError: as in `pose`.
        """
        seen = [name]
        while (attached := self._at(seen[-1]).attached_to) != seen[-1]:
            if attached in seen:
                raise RobotFileError(
                    f"frame {name!r} hangs on itself: {' on '.join(map(repr, seen))}.",
                    "Every frame hangs on a link in the end.",
                    "Correct one of their attached_to.",
                )
            seen.append(attached)
        return attached

    def _at(self, name: str) -> Written:
        if name not in self._written:
            raise RobotFileError(*unknown_name("frame of the model", name, tuple(self._written)))
        return self._written[name]
