"""Placements of bodies, ranges of joints and gravity replaced in the text of an MJCF file.

A joint of ours is placed at P = T B C on what carries it: T its parent body there, B the body in its parent,
as the file has it, and C what anchors and references put behind. T and C stay, so B = T^-1 P C^-1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from torchsko.errors import MechanismError
from torchsko.io.common.quaternion import quaternion_from_matrix
from torchsko.io.common.write_back import changed
from torchsko.io.mujoco.mujoco_model import body_joints, turn_of
from torchsko.io.mujoco.mujoco_names import body_name, joint_names
from torchsko.io.mujoco.mujoco_numbers import HINGE, SLIDE
from torchsko.io.xml.edits import Edits, words
from torchsko.io.xml.reader import Element
from torchsko.mechanism.mechanism import Mechanism

TURNS = ("quat", "axisangle", "xyaxes", "zaxis", "euler")
"""Attributes that turn a frame."""

Found = Callable[[int], Element]
"""The element of a body by its number."""


def write_placements(
    edits: Edits, found: Found, model: Any, mech: Mechanism, file: Mechanism
) -> None:
    """The places of bodies whose joints are placed otherwise.

    Raises:
        MechanismError: on a joint that its body does not place: a free one, or a later one of several.
    """
    placed = {k for f in ("joint_rotation", "joint_position") for k in changed(mech, file, f)}
    first = {body_joints(model, b)[1][0].name: b for b in range(1, model.nbody)}
    for k in sorted(placed):
        name = mech.tree_joint_names[k]
        b = first.get(name)
        if b is None or mech.joints.kinds[k].name == "free":
            raise MechanismError(
                f"joint {name!r} is placed otherwise than in the file.",
                "Its place is that of the joints before it, or of the world.",
                "Leave joint_rotation and joint_position of it as they were.",
            )
        T = _in_carrier(file, body_name(model, int(model.body_parentid[b])))
        B = _placement(turn_of(model.body_quat[b]), np.array(model.body_pos[b]))
        old, new = (
            _placement(*(getattr(m, f"joint_{x}")[k].detach().cpu().double().numpy() for x in
                         ("rotation", "position")))
            for m in (file, mech)
        )  # fmt: skip
        body = np.linalg.inv(T) @ new @ np.linalg.inv(old) @ T @ B
        element = found(b)
        edits.drop(element, TURNS[1:])
        edits.set(
            element,
            {"pos": words(body[:3, 3]), "quat": words(quaternion_from_matrix(body[:3, :3]))},
        )


def _placement(R: np.ndarray, r: np.ndarray) -> np.ndarray:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, r
    return T


def _in_carrier(mech: Mechanism, frame: str) -> np.ndarray:
    """A frame of the file in the body that carries it; the world in itself."""
    if frame not in mech.frame_names:
        return np.eye(4)
    i = mech.frame_index(frame)
    return _placement(
        mech.frame_rotation[i].double().numpy(), mech.frame_position[i].double().numpy()
    )


def write_ranges(
    edits: Edits,
    joint_element: Callable[[int, int, str], Element],
    model: Any,
    root: Element,
    mech: Mechanism,
    file: Mechanism,
) -> None:
    """Ranges of hinges and slides, in the file's unit of angles.

    Raises:
        MechanismError: on a limit on one side only, or where joints follow others, whose limits are
            theirs, too.
    """
    new = {i for field in ("lower", "upper") for i in changed(mech, file, field)}
    if not new:
        return
    degrees = not any(
        e.attributes.get("angle") == "radian" for e in root.children if e.tag == "compiler"
    )
    for b in range(1, model.nbody):
        for i, name in enumerate(joint_names(model, b)):
            j = int(model.body_jntadr[b]) + i
            at = int(model.jnt_qposadr[j])
            if at not in new or int(model.jnt_type[j]) not in (SLIDE, HINGE):
                continue
            ends = [float(mech.lower[at]), float(mech.upper[at])]
            if mech.coupling is not None or math.isfinite(ends[0]) != math.isfinite(ends[1]):
                raise MechanismError(
                    f"joint {name!r} has the limits {ends}, not those of the file.",
                    "A range has two ends; where joints follow others, their ranges bound each other.",
                    "Give both ends, or leave lower and upper as they were.",
                )
            values = {"limited": "false"}
            if math.isfinite(ends[0]):
                unit = degrees and int(model.jnt_type[j]) == HINGE
                values = {
                    "limited": "true",
                    "range": words(map(math.degrees, ends) if unit else ends),
                }
            edits.set(joint_element(b, i, name), values)


def write_gravity(edits: Edits, root: Element, mech: Mechanism, file: Mechanism) -> None:
    """Gravity, in the last <option>, or in a new one."""
    if not changed(mech, file, "gravity"):
        return
    gravity = words(mech.gravity.detach().tolist())
    options = [e for e in root.children if e.tag == "option"]
    if options:
        edits.set(options[-1], {"gravity": gravity})
    else:
        edits.insert(root, f'<option gravity="{gravity}"/>')
