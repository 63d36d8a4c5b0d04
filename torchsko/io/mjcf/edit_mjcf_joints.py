"""Edits of placements, parameters and ranges of joints, and of gravity, in an MJCF file.

The placement of a joint of the mechanism is P = T B C: T is the pose of MuJoCo's parent body, B that of the
body in its parent, as in the file, and C the effect of joint anchors and references. T and C are constant, so
B = T^-1 P C^-1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.io.common.numbers import quaternion_from_matrix
from torchsko.io.common.welded_inertia import INERTIAL
from torchsko.io.common.write_back import PLACEMENT, changed_rows, common_value
from torchsko.io.mjcf.model_elements import ModelElements
from torchsko.io.mujoco.mujoco_fields import HINGE, SLIDE, actuator_losses, body_name, joint_names
from torchsko.io.mujoco.mujoco_model import body_joints, rotation_of
from torchsko.io.xml.edits import Edits, words
from torchsko.io.xml.reader import Element
from torchsko.mechanism.mechanism import Mechanism

ORIENTATIONS = ("quat", "axisangle", "xyaxes", "zaxis", "euler")
"""Attributes for the orientation of a frame."""

JOINT_ATTRIBUTES = {"damping": "damping", "friction": "frictionloss", "armature": "armature",
                    "stiffness": "stiffness"}  # fmt: skip
"""Attributes of <joint> by parameter."""

SPRING_DAMPER = "springdamper"
"""Attribute from which MuJoCo computes stiffness and damping, using the inertia that the joint moves."""

COMPUTED = {"damping", "stiffness"}
"""Parameters that `SPRING_DAMPER` determines."""


def write_joints(edits: Edits, elements: ModelElements, mech: Mechanism, file: Mechanism) -> None:
    """Write damping, friction, armature and stiffness.

    If the file has `SPRING_DAMPER` attributes and inertias change, they are replaced by explicit values.
    """
    model = elements.model
    tuned = any(e.tag == "joint" and SPRING_DAMPER in e.attributes for e in elements.root.walk())
    inertia_changed = any(
        changed_rows(mech, file, field) for field in (*INERTIAL, *PLACEMENT, "armature")
    )
    changed = {field: set(changed_rows(mech, file, field)) for field in JOINT_ATTRIBUTES}
    for b in range(1, model.nbody):
        first = int(model.body_jntadr[b])
        for i, name in enumerate(joint_names(model, b)):
            start = int(model.jnt_dofadr[first + i])
            stop = start + (6, 3, 1, 1)[int(model.jnt_type[first + i])]
            fields = {f for f, rows in changed.items() if not rows.isdisjoint(range(start, stop))}
            explicit = tuned and (inertia_changed or not COMPUTED.isdisjoint(fields))
            if explicit:
                fields |= {f for f in COMPUTED if getattr(file, f)[start]}
            if fields:
                values = {
                    f: getattr(mech, f)[..., start:stop] for f in JOINT_ATTRIBUTES if f in fields
                }
                attributes = _joint_attributes(model, values, name, start, first + i)
                attributes |= {SPRING_DAMPER: "0 0"} if explicit else {}
                edits.set(elements.joint(b, i, name), attributes)


def _joint_attributes(
    model: Any, values: Mapping[str, Tensor], name: str, dof: int, joint: int
) -> dict[str, str]:
    """Attributes of a joint, less what its actuators add; nonlinear coefficients are unchanged."""
    attributes, drives = {}, actuator_losses(model)
    for field, x in values.items():
        numbers = [common_value(x, field, name)]
        if field in drives:
            numbers[0] -= float(drives[field][0, dof])
        nonlinear = {"damping": ("dof_dampingpoly", dof), "stiffness": ("jnt_stiffnesspoly", joint)}
        if field in nonlinear and hasattr(model, nonlinear[field][0]):
            higher = np.asarray(getattr(model, nonlinear[field][0]))[nonlinear[field][1]].tolist()
            numbers += higher if any(higher) else []
        attributes[JOINT_ATTRIBUTES[field]] = words(numbers)
    return attributes


def write_placements(
    edits: Edits, elements: ModelElements, mech: Mechanism, file: Mechanism
) -> None:
    """Write the poses of bodies whose joints are placed differently.

    Raises:
        MechanismError: for a joint whose placement is not that of a body: a free joint, or a later one of
            several joints.
    """
    model = elements.model
    changed = {k for field in PLACEMENT for k in changed_rows(mech, file, field)}
    body_of = {body_joints(model, b)[1][0].name: b for b in range(1, model.nbody)}
    for k in sorted(changed):
        name = mech.tree_joint_names[k]
        b = body_of.get(name)
        if b is None or mech.joints.kinds[k].name == "free":
            raise MechanismError(
                f"the placement of joint {name!r} differs from the file.",
                "It follows from the joints before it, or is that of the world.",
                "Restore its joint_rotation and joint_position.",
            )
        T = _carrier_pose(file, body_name(model, int(model.body_parentid[b])))
        B = _pose(rotation_of(model.body_quat[b]), np.array(model.body_pos[b]))
        old, new = (
            _pose(*(getattr(m, field)[k].detach().cpu().double().numpy() for field in PLACEMENT))
            for m in (file, mech)
        )
        body = np.linalg.inv(T) @ new @ np.linalg.inv(old) @ T @ B
        element = elements.body(b)
        edits.drop(element, ORIENTATIONS[1:])
        edits.set(
            element,
            {"pos": words(body[:3, 3]), "quat": words(quaternion_from_matrix(body[:3, :3]))},
        )


def _pose(R: np.ndarray, r: np.ndarray) -> np.ndarray:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, r
    return T


def _carrier_pose(mech: Mechanism, frame: str) -> np.ndarray:
    """Pose of a frame in the body that carries it; the identity for the world."""
    if frame not in mech.frame_names:
        return np.eye(4)
    i = mech.frame_index(frame)
    return _pose(mech.frame_rotation[i].double().numpy(), mech.frame_position[i].double().numpy())


def write_ranges(edits: Edits, elements: ModelElements, mech: Mechanism, file: Mechanism) -> None:
    """Write ranges of hinges and slides, in the file's unit of angles.

    Raises:
        MechanismError: for a limit on one side only, or in a mechanism with coupled joints, whose limits
            combine those of several joints.
    """
    model = elements.model
    changed = {i for field in ("lower", "upper") for i in changed_rows(mech, file, field)}
    if not changed:
        return
    compilers = (e for e in elements.root.children if e.tag == "compiler")
    degrees = not any(e.attributes.get("angle") == "radian" for e in compilers)
    for b in range(1, model.nbody):
        for i, name in enumerate(joint_names(model, b)):
            j = int(model.body_jntadr[b]) + i
            at = int(model.jnt_qposadr[j])
            if at not in changed or int(model.jnt_type[j]) not in (SLIDE, HINGE):
                continue
            limits = [float(mech.lower[at]), float(mech.upper[at])]
            if mech.coupling is not None or math.isfinite(limits[0]) != math.isfinite(limits[1]):
                raise MechanismError(
                    f"the limits {limits} of joint {name!r} differ from the file.",
                    "MJCF has no one-sided limits, and limits of coupled joints depend on each other.",
                    "Set both limits, or restore lower and upper.",
                )
            attributes = {"limited": "false"}
            if math.isfinite(limits[0]):
                in_degrees = degrees and int(model.jnt_type[j]) == HINGE
                values = words(map(math.degrees, limits) if in_degrees else limits)
                attributes = {"limited": "true", "range": values}
            edits.set(elements.joint(b, i, name), attributes)


def write_options(edits: Edits, root: Element, mech: Mechanism, file: Mechanism) -> None:
    """Write gravity and the fluid into the last <option>, or a new one."""
    values = {
        name: words(getattr(mech, name).detach().tolist())
        for name in ("gravity", "wind")
        if changed_rows(mech, file, name)
    }
    for row in changed_rows(mech, file, "medium"):
        values[("density", "viscosity")[row]] = words(mech.medium[row : row + 1].detach().tolist())
    if not values:
        return
    options = [e for e in root.children if e.tag == "option"]
    if options:
        edits.set(options[-1], values)
    else:
        attributes = " ".join(f'{name}="{value}"' for name, value in values.items())
        edits.insert(root, f"<option {attributes}/>")
