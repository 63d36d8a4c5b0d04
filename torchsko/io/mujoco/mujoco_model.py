"""A compiled MuJoCo model as a robot description: what its bodies, joints and linear equalities say.

MuJoCo's own parser reads MJCF; what is read here is the compiled ``mujoco.MjModel``, so every default,
class, include and unit of the format is resolved already. Coordinates come out in MuJoCo's order: q is qpos,
and qd is qvel but for free joints, whose velocity MuJoCo gives as [linear in the world; angular in the body].

A body's joints are stacked: each acts in the frame that those before it have moved, about its own anchor.
One hinge or slide through the body's origin is a revolute or prismatic joint; others, and several, a compound
one. Displacements count from ``qpos0``: T(q - q0) = T(-q0) T(q) about one axis, and the constants T(-q0) are
carried inboard through the motions before them, into the placement of the joint.

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
from torchsko.io.mujoco.mujoco_flags import switched_off, without_passive
from torchsko.io.mujoco.mujoco_geometry import read_geoms
from torchsko.io.mujoco.mujoco_names import body_name, joint_names
from torchsko.io.mujoco.mujoco_numbers import (
    FREE,
    HINGE,
    SLIDE,
    dof_numbers,
    joint_limits,
    q_numbers,
)
from torchsko.io.mujoco.mujoco_unused import unused
from torchsko.mechanism.description import (
    FIXED,
    JointDescription,
    LinkDescription,
    Matrix,
    RobotDescription,
    Vector,
)
from torchsko.mechanism.joints.compound import Slide, Turn
from torchsko.mechanism.limit_notes import limit_notes


@dataclass(frozen=True)
class ModelDescription:
    """A model of MuJoCo as links and joints, and numbers that each dof has of its own.

    Attributes:
        robot: links and joints.
        gravity: [m/s^2].
        dof_numbers: per dof of the tree, in MuJoCo's order: damping (also of higher order), friction,
            armature, stiffness, velocity and effort limits.
        q_numbers: per coordinate: lower and upper limits, positions in which springs are relaxed.
        site_frames: names of the frames of named sites, by the number of the site.
    """

    robot: RobotDescription
    gravity: Vector
    dof_numbers: dict[str, list[float]]
    q_numbers: dict[str, list[float]]
    site_frames: dict[int, str]


def describe(model: Any) -> ModelDescription:
    """Read a compiled model.

    Args:
        model: ``mujoco.MjModel``.
    """
    links, joints = [], []
    for b in range(1, model.nbody):
        links.append(_link(model, b))
        more, chain = body_joints(model, b)
        links += more
        joints += chain
    taken = {link.name for link in links}
    sites = _sites(model, taken)
    for link, joint in sites.values():
        links.append(link)
        joints.append(joint)
    couplings, broken = couplings_of(model, {joint.name for joint in joints})
    robot = RobotDescription(
        name=_model_name(model),
        links=tuple(links),
        joints=tuple(joints),
        unused=(*unused(model), *broken, *limit_notes(joint_limits(model))),
        couplings=couplings,
        geometry=read_geoms(model, (None, *(body_name(model, b) for b in range(1, model.nbody)))),
    )
    weightless = "gravity" in switched_off(model)
    gravity = (0.0, 0.0, 0.0) if weightless else as_vector(model.opt.gravity)
    frames = {i: link.name for (kind, i), (link, _) in sites.items() if kind == "site"}
    return ModelDescription(robot, gravity, dof_numbers(model), q_numbers(model), frames)


def _model_name(model: Any) -> str:
    return bytes(model.names).split(b"\0", 1)[0].decode() or "robot"


def _link(model: Any, b: int) -> LinkDescription:
    # Where the inertial frame is nearly the body's, MuJoCo computes with the body's (body_sameframe). Read is
    # the frame that the file says, so that what is saved loads as it was.
    return LinkDescription(
        name=body_name(model, b),
        mass=float(model.body_mass[b]),
        com=as_vector(model.body_ipos[b]),
        inertia=as_matrix(np.diag(model.body_inertia[b])),
        inertia_rotation=matrix_of(model.body_iquat[b]),
        gravcomp=0.0 if without_passive(model) else float(model.body_gravcomp[b]),
    )


def body_joints(model: Any, b: int) -> tuple[list[LinkDescription], list[JointDescription]]:
    """The joints from a body's parent to it, and the massless links between them."""
    body, parent = body_name(model, b), body_name(model, int(model.body_parentid[b]))
    first, names = int(model.body_jntadr[b]), joint_names(model, b)
    R, r = turn_of(model.body_quat[b]), np.array(model.body_pos[b])
    steps: list[tuple[str, str, np.ndarray, np.ndarray, dict]] = []  # name, kind, placement, data
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
    between = [f"{body}_{k}" for k in range(len(steps) - 1)]
    ends = [parent, *between, body]
    joints = [
        JointDescription(
            name,
            kind,
            ends[k],
            ends[k + 1],
            as_matrix(turn),
            as_vector(shift),
            as_vector(data.pop("axis", (0.0, 0.0, 1.0))),
            data=data,
        )
        for k, (name, kind, turn, shift, data) in enumerate(steps)
    ]
    return [LinkDescription(name) for name in between], joints


def _stacked(
    model: Any, stack: Sequence[int], names: Sequence[str], first: int, R: np.ndarray, r: np.ndarray
) -> tuple[str, str, np.ndarray, np.ndarray, dict]:
    """Hinges and slides in sequence as one joint, its placement moved by their displacements q0."""
    K, k = np.eye(3), np.zeros(3)  # what is carried inboard
    motions: list[Turn | Slide] = []
    for j in reversed(stack):
        axis, q0 = K.T @ np.array(model.jnt_axis[j]), float(model.qpos0[model.jnt_qposadr[j]])
        if int(model.jnt_type[j]) == SLIDE:
            motions.insert(0, Slide(as_vector(axis)))
            k = k - K @ axis * q0
            continue
        anchor = K.T @ (np.array(model.jnt_pos[j]) - k)
        motions.insert(0, Turn(as_vector(axis), as_vector(anchor)))
        back = _rotation(axis, -q0)
        K, k = K @ back, k + K @ (anchor - back @ anchor)
    name = "+".join(names[j - first] for j in stack)
    R, r = R @ K, r + R @ k
    (only,) = motions if len(motions) == 1 else (None,)
    if isinstance(only, Slide):
        return name, "prismatic", R, r, {"axis": only.axis}
    if isinstance(only, Turn) and not np.any(only.point):
        return name, "revolute", R, r, {"axis": only.axis}
    return name, "compound", R, r, {"motions": tuple(motions)}


def _sites(
    model: Any, taken: set[str]
) -> dict[tuple[str, int], tuple[LinkDescription, JointDescription]]:
    """Named sites and cameras as frames, by kind and number."""
    found = {}
    kinds = (
        ("site", model.nsite, model.site, model.site_bodyid, model.site_pos, model.site_quat),
        ("camera", model.ncam, model.cam, model.cam_bodyid, model.cam_pos, model.cam_quat),
    )
    for kind, count, named, body, position, turn in kinds:
        for i in range(count):
            name = named(i).name
            if not name:
                continue
            while name in taken:
                name = f"{name}_{kind}"
            taken.add(name)
            joint = JointDescription(
                f"{name}_fixed",
                FIXED,
                body_name(model, int(body[i])),
                name,
                matrix_of(turn[i]),
                as_vector(position[i]),
            )
            found[kind, i] = LinkDescription(name), joint
    return found


def matrix_of(quaternion: Any) -> Matrix:
    """Rotation matrix of a quaternion w x y z, as floats."""
    return as_matrix(turn_of(quaternion))


def turn_of(quaternion: Any) -> np.ndarray:
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
    return turn_of([math.cos(half), *(math.sin(half) * axis)])
