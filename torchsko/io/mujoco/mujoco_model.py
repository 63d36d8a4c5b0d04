"""Conversion of a compiled MuJoCo model to a robot description.

MuJoCo compiles MJCF, so defaults, classes, includes and units are already resolved. Coordinates are in
MuJoCo's
order: q is qpos, and qd is qvel except for free joints, whose velocity is [linear in the world; angular in
the body] in MuJoCo.

The joints of a body are stacked: each moves in the frame of the previous ones, about its anchor. A single
hinge or slide through the body's origin becomes a revolute or prismatic joint, other stacks a compound joint.
Displacements count from ``qpos0``: T(q - q0) = T(-q0) T(q) about one axis. The constants T(-q0) are moved
inboard through the preceding motions into the placement of the joint.

Reference: MuJoCo documentation, "Modeling" and "XML reference".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsko.io.common.numbers import as_matrix, as_vector
from torchsko.io.mujoco.mujoco_couplings import couplings_of
from torchsko.io.mujoco.mujoco_fields import (
    FREE,
    HIGHER,
    HINGE,
    SLIDE,
    all_joint_names,
    body_name,
    disabled_flags,
    dof_numbers,
    joint_limits,
    joint_names,
    q_numbers,
    without_passive_forces,
)
from torchsko.io.mujoco.mujoco_geometry import read_geoms
from torchsko.io.mujoco.mujoco_unused import unused
from torchsko.mechanism.checks import NOT_NEGATIVE, negative_parameter
from torchsko.mechanism.description import (
    FIXED,
    Fault,
    JointDescription,
    LinkDescription,
    Matrix,
    Vector,
)
from torchsko.mechanism.joints.compound import Slide, Turn
from torchsko.mechanism.limit_notes import limit_notes
from torchsko.mechanism.robot_description import RobotDescription


@dataclass(frozen=True)
class ModelDescription:
    """Links and joints of a MuJoCo model, and its values for each dof and coordinate.

    Attributes:
        robot: links and joints.
        gravity: [m/s^2].
        dof_numbers: for each dof of the tree: damping and stiffness (also nonlinear), friction, armature, and
            effort limits.
        q_numbers: for each coordinate: lower and upper limits, and spring references.
        site_frames: names of the frames of named sites, by site index.
        closures: indices of the equalities that are closures.
        coupled: indices of the equalities that are couplings, in the order of those of the robot.
    """

    robot: RobotDescription
    gravity: Vector
    dof_numbers: dict[str, list[float]]
    q_numbers: dict[str, list[float]]
    site_frames: dict[int, str]
    closures: tuple[int, ...]
    coupled: tuple[int, ...]


def describe(model: Any, mimic: str = "couple") -> ModelDescription:
    """Read a compiled model.

    Args:
        model: ``mujoco.MjModel``.
        mimic: "couple" or "independent", as in `torchsko.load`.
    """
    links, joints = [], []
    for b in range(1, model.nbody):
        links.append(_link(model, b))
        massless, chain = body_joints(model, b)
        links += massless
        joints += chain
    taken = {link.name for link in links}
    sites, faults = _sites(model, taken)
    for link, joint in sites.values():
        links.append(link)
        joints.append(joint)
    geometry = read_geoms(model, (None, *(body_name(model, b) for b in range(1, model.nbody))))
    couplings = couplings_of(model, {joint.name for joint in joints}, mimic)
    robot = RobotDescription(
        name=_model_name(model),
        links=tuple(links),
        joints=tuple(joints),
        unused=(
            *unused(model, geometry),
            *couplings.unsupported,
            *limit_notes(joint_limits(model)),
        ),
        couplings=couplings.found,
        report=(*faults, *_negative_parameters(model)),
        geometry=geometry,
    )
    weightless = "gravity" in disabled_flags(model)
    gravity = (0.0, 0.0, 0.0) if weightless else as_vector(model.opt.gravity)
    frames = {i: link.name for (kind, i), (link, _) in sites.items() if kind == "site"}
    numbers = dof_numbers(model), q_numbers(model)
    return ModelDescription(robot, gravity, *numbers, frames, couplings.closures, couplings.coupled)


def _model_name(model: Any) -> str:
    return bytes(model.names).split(b"\0", 1)[0].decode() or "robot"


def _link(model: Any, b: int) -> LinkDescription:
    # MuJoCo uses the body's frame if the inertial frame is close to it (body_sameframe). The file's frame is
    # read here, so that a saved file loads with the same values.
    return LinkDescription(
        name=body_name(model, b),
        mass=float(model.body_mass[b]),
        com=as_vector(model.body_ipos[b]),
        inertia=as_matrix(np.diag(model.body_inertia[b])),
        inertia_rotation=matrix_of(model.body_iquat[b]),
        gravcomp=0.0 if without_passive_forces(model) else float(model.body_gravcomp[b]),
    )


def body_joints(model: Any, b: int) -> tuple[list[LinkDescription], list[JointDescription]]:
    """The joints between a body and its parent, and the massless links between these joints."""
    body, parent = body_name(model, b), body_name(model, int(model.body_parentid[b]))
    first, names = int(model.body_jntadr[b]), joint_names(model, b)
    R, r = rotation_of(model.body_quat[b]), np.array(model.body_pos[b])
    steps: list[tuple[str, str, np.ndarray, np.ndarray, dict]] = []  # name, kind, R, r, data
    stack: list[int] = []
    for j in range(first, first + len(names)):
        kind = int(model.jnt_type[j])
        if kind in (SLIDE, HINGE):
            stack.append(j)
            continue
        if stack:
            steps.append(_stacked(model, stack, names, first, R, r))
            R, r, stack = np.eye(3), np.zeros(3), []
        if kind == FREE:
            steps.append((names[j - first], "free", np.eye(3), np.zeros(3), {}))
            R, r = np.eye(3), np.zeros(3)
        else:
            anchor = np.array(model.jnt_pos[j])
            steps.append((names[j - first], "spherical", R, r + R @ anchor, {}))
            R, r = np.eye(3), -anchor
    if stack:
        steps.append(_stacked(model, stack, names, first, R, r))
        R, r = np.eye(3), np.zeros(3)
    if not steps or r.any():
        steps.append((f"{body}_fixed", FIXED, R, r, {}))
    massless = [f"{body}_{k}" for k in range(len(steps) - 1)]
    chain = [parent, *massless, body]
    joints = [
        JointDescription(
            name,
            kind,
            chain[k],
            chain[k + 1],
            as_matrix(rotation),
            as_vector(position),
            as_vector(data.pop("axis", (0.0, 0.0, 1.0))),
            data=data,
        )
        for k, (name, kind, rotation, position, data) in enumerate(steps)
    ]
    return [LinkDescription(name) for name in massless], joints


def _stacked(
    model: Any, stack: Sequence[int], names: Sequence[str], first: int, R: np.ndarray, r: np.ndarray
) -> tuple[str, str, np.ndarray, np.ndarray, dict]:
    """A sequence of hinges and slides as one joint, whose placement includes their displacements q0."""
    K, k = np.eye(3), np.zeros(3)  # accumulated constants T(-q0)
    motions: list[Turn | Slide] = []
    for j in reversed(stack):
        axis, q0 = K.T @ np.array(model.jnt_axis[j]), float(model.qpos0[model.jnt_qposadr[j]])
        if int(model.jnt_type[j]) == SLIDE:
            motions.insert(0, Slide(as_vector(axis)))
            k = k - K @ axis * q0
            continue
        anchor = K.T @ (np.array(model.jnt_pos[j]) - k)
        motions.insert(0, Turn(as_vector(axis), as_vector(anchor)))
        constant = _rotation(axis, -q0)
        K, k = K @ constant, k + K @ (anchor - constant @ anchor)
    name = "+".join(names[j - first] for j in stack)
    R, r = R @ K, r + R @ k
    (only,) = motions if len(motions) == 1 else (None,)
    if isinstance(only, Slide):
        return name, "prismatic", R, r, {"axis": only.axis}
    if isinstance(only, Turn) and not np.any(only.point):
        return name, "revolute", R, r, {"axis": only.axis}
    return name, "compound", R, r, {"motions": tuple(motions)}


def _negative_parameters(model: Any) -> list[Fault]:
    """Faults of joints whose losses or armature are negative."""
    numbers, joint, names = dof_numbers(model), model.dof_jntid, all_joint_names(model)
    fields = (*NOT_NEGATIVE, *(f"{power}_damping" for power in HIGHER))
    return [
        negative_parameter(names[j], field, min(values))
        for j in range(model.njnt)
        for field in fields
        if (values := [x for x, k in zip(numbers[field], joint, strict=True) if k == j])
        and min(values) < 0
    ]


def _sites(
    model: Any, taken: set[str]
) -> tuple[dict[tuple[str, int], tuple[LinkDescription, JointDescription]], list[Fault]]:
    """Named sites and cameras as frames, by kind and index; and faults of names that are taken."""
    found, faults = {}, []
    kinds = (
        ("site", model.nsite, model.site, model.site_bodyid, model.site_pos, model.site_quat),
        ("camera", model.ncam, model.cam, model.cam_bodyid, model.cam_pos, model.cam_quat),
    )
    for kind, count, accessor, body, position, quaternion in kinds:
        for i in range(count):
            name = accessor(i).name
            if not name:
                continue
            given = name
            while name in taken:
                name = f"{name}_{kind}"
            taken.add(name)
            if name != given:
                faults.append(
                    Fault(
                        f"{kind} {given!r}",
                        f"has the name of another frame: its frame is {name!r}",
                        "Bodies, sites and cameras are frames, whose names are unique.",
                        f"Use {name!r}, or rename the {kind} in the file.",
                    )
                )
            joint = JointDescription(
                f"{name}_fixed",
                FIXED,
                body_name(model, int(body[i])),
                name,
                matrix_of(quaternion[i]),
                as_vector(position[i]),
            )
            found[kind, i] = LinkDescription(name), joint
    return found, faults


def matrix_of(quaternion: Any) -> Matrix:
    """Rotation matrix of a quaternion w x y z, as nested tuples."""
    return as_matrix(rotation_of(quaternion))


def rotation_of(quaternion: Any) -> np.ndarray:
    """Rotation matrix of a quaternion w x y z."""
    w, x, y, z = np.asarray(quaternion, dtype=np.float64) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """Rotation about a unit axis."""
    half = angle / 2
    return rotation_of([math.cos(half), *(math.sin(half) * axis)])
