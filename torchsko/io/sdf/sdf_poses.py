"""Poses of links, joints and frames of an SDF model, resolved to the model's frame.

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
"""Name of the model's frame."""

WORLD_FRAME = "world"


@dataclass(frozen=True)
class Pose:
    """Rotation and position [m] of a frame in another."""

    rotation: np.ndarray = field(default_factory=lambda: np.eye(3))
    position: np.ndarray = field(default_factory=lambda: np.zeros(3))

    def __matmul__(self, other: Pose) -> Pose:
        return Pose(self.rotation @ other.rotation, self.position + self.rotation @ other.position)

    def inverse(self) -> Pose:
        """The inverse transform."""
        return Pose(self.rotation.T, -self.rotation.T @ self.position)


@dataclass(frozen=True)
class FramePose:
    """Pose of a frame relative to another one, and the link or frame to which it is attached."""

    pose: Pose
    relative_to: str
    attached_to: str


def joint_frame(name: str) -> str:
    """Key of the frame of a joint that has the name of a link or frame, as files before 1.7 permit."""
    return f"{name}::joint"


def text_of(element: Element, tag: str) -> str:
    """The text of a child; empty if there is none."""
    return next((c.text.strip() for c in element.children if c.tag == tag), "")


def read_pose(element: Element | None, where: str) -> Pose:
    """Parse the six numbers of a <pose>, or seven with a quaternion; the identity without the element.

    Raises:
        RobotFileError: if a number is invalid, or there are too few or too many.
    """
    if element is None or not element.text.strip():
        return Pose()
    words = [number(word, f"{where} <pose> (line {element.line})") for word in element.text.split()]
    quaternion = element.attributes.get("rotation_format") == "quat_xyzw"
    if len(words) != (7 if quaternion else 6):
        raise RobotFileError(
            f"{where} <pose> (line {element.line}) has {len(words)} numbers.",
            "A pose has three coordinates and three angles, or four numbers of a quaternion with "
            'rotation_format="quat_xyzw".',
            "Write, for example, 0 0 1 0 0 1.57.",
        )
    position = np.array(words[:3])
    if quaternion:
        return Pose(_rotation(words[3:], where), position)
    x, y, z = words[3:]
    if element.attributes.get("degrees", "false") in ("true", "1"):
        x, y, z = (math.radians(angle) for angle in (x, y, z))
    return Pose(np.array(rotation_from_rpy((x, y, z))), position)


def _rotation(words: Sequence[float], where: str) -> np.ndarray:
    length = math.sqrt(sum(c * c for c in words))
    if not length > 1e-6:
        raise RobotFileError(
            f"{where} <pose> has a quaternion of length {length:g}.",
            "Such a quaternion is not a rotation.",
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
    """Frames of a model, with poses in the model's frame that are computed on request."""

    def __init__(self, frames: dict[str, FramePose]) -> None:
        self._frames = frames
        self._poses: dict[str, Pose] = {MODEL: Pose()}

    def pose(self, name: str) -> Pose:
        """Pose of a frame in the model.

        Raises:
            RobotFileError: if no frame has this name, or the references form a cycle.
        """
        chain = [name]
        while chain[-1] not in self._poses:
            reference = self._frame(chain[-1]).relative_to
            if reference in chain:
                raise RobotFileError(
                    f"the pose of {name!r} is relative to itself: {' in '.join(map(repr, chain))}.",
                    "The references of poses must not form a cycle.",
                    "Correct one relative_to.",
                )
            chain.append(reference)
        for frame in reversed(chain[:-1]):
            entry = self._frames[frame]
            self._poses[frame] = self._poses[entry.relative_to] @ entry.pose
        return self._poses[name]

    def joint_pose(self, name: str) -> Pose:
        """Pose of the frame of a joint in the model."""
        key = joint_frame(name)
        return self.pose(key if key in self._frames else name)

    def link(self, name: str) -> str:
        """The link that carries a frame.

        Raises:
            RobotFileError: as in `pose`.
        """
        chain = [name]
        while (attached := self._frame(chain[-1]).attached_to) != chain[-1]:
            if attached in chain:
                raise RobotFileError(
                    f"frame {name!r} is attached to itself: {' on '.join(map(repr, chain))}.",
                    "The attachments of frames must not form a cycle.",
                    "Correct one attached_to.",
                )
            chain.append(attached)
        return attached

    def _frame(self, name: str) -> FramePose:
        if name not in self._frames:
            known = tuple(x for x in self._frames if not x.endswith(joint_frame("")))
            raise RobotFileError(*unknown_name("frame of the model", name, known))
        return self._frames[name]
