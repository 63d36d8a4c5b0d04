"""New MJCF files of mechanisms."""

from __future__ import annotations

import math
import warnings
from xml.sax.saxutils import quoteattr

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError, RobotFileWarning, name_list
from torchsko.io.common.new_geometry import mjcf_excludes, mjcf_geoms, warn_unsupported_shapes
from torchsko.io.common.numbers import quaternion_from_matrix
from torchsko.io.common.write_back import check_unbatched
from torchsko.io.mjcf.new_states import mjcf_keyframes, mjcf_loops, warn_unsupported_states
from torchsko.io.mjcf.principal_inertia import principal_inertia
from torchsko.io.mujoco.mujoco_fields import MAX_POSITION
from torchsko.io.urdf.new_urdf import single_leaders
from torchsko.io.xml.edits import words
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.numbering import motions

JOINT_TYPES = {"revolute": "hinge", "prismatic": "slide", "spherical": "ball", "free": "free"}
"""MuJoCo's joint types by kind."""

MIN_INERTIA = 1e-15
"""Smallest mass and moment of inertia of a moving body in MuJoCo (mjMINVAL)."""

StackedJoint = tuple[str, list[float], list[float]]
"""Type, axis and anchor of a joint."""


def new_mjcf(mech: Mechanism) -> str:
    """Text of an MJCF file with the bodies, joints, frames, shapes, loops and keyframes of a mechanism.

    Frames are sites, coupled joints and loops are equalities, primitive shapes are geoms without mass.
    Keyframes have no controls. A joint of several dofs is a stack of hinges and slides. They have the names
    of the stack from which the joint was read, or the name of the joint with that of the rate.

    Raises:
        MechanismError: for a batch, or features that MJCF does not support: a free joint away from the
            world's frame, a helical joint, a joint that follows several others, a body named "world", and a
            ball joint with a spring that is not relaxed at the identity.
    """
    check_unbatched(mech)
    warn_unsupported_shapes(mech, "MJCF")
    warn_unsupported_states(mech, "MJCF")
    _warn_unsupported_limits(mech)
    gravity, loops, order = words(mech.gravity.tolist()), mjcf_loops(mech), _depth_first(mech)
    lines = [
        f"<mujoco model={quoteattr(mech.name)}>",
        '  <compiler angle="radian" autolimits="true" inertiafromgeom="false"/>',
        f'  <option gravity="{gravity}"/>',
        "  <worldbody>",
        *_sites(mech, -1, 4),
        *(f"    {line}" for line in (*loops.sites.get(-1, ()), *mjcf_geoms(mech, -1))),
    ]
    open_bodies: list[int] = []
    for k in order:
        while open_bodies and open_bodies[-1] != mech.parents[k]:
            lines.append("  " * (len(open_bodies) + 1) + "</body>")
            open_bodies.pop()
        indent = 2 * len(open_bodies) + 4
        lines += _body(mech, k, indent)
        lines += [f"{' ' * indent}  {line}" for line in loops.sites.get(k, ())]
        open_bodies.append(k)
    lines += ["  " * (depth + 1) + "</body>" for depth in range(len(open_bodies), 0, -1)]
    sections = [*_equalities(mech, loops.equalities), *mjcf_excludes(mech)]
    sections += mjcf_keyframes(mech, order)
    return "\n".join([*lines, "  </worldbody>", *sections, "</mujoco>", ""])


def _depth_first(mech: Mechanism) -> list[int]:
    """Bodies in depth-first order; appended bodies have another order in the mechanism."""
    children: dict[int, list[int]] = {}
    for k, parent in enumerate(mech.parents):
        children.setdefault(parent, []).append(k)
    order, pending = [], children.get(-1, [])[::-1]
    while pending:
        order.append(k := pending.pop())
        pending += children.get(k, [])[::-1]
    return order


def _body(mech: Mechanism, k: int, indent: int) -> list[str]:
    R, p = mech.joint_rotation[k], mech.joint_position[k]
    free = mech.joints.kinds[k].name == "free"
    if free and (mech.parents[k] >= 0 or bool((R != torch.eye(3).to(R)).any()) or bool(p.any())):
        raise MechanismError(
            f"joint {mech.tree_joint_names[k]!r} is free, and not placed at the world's frame.",
            "In MJCF a floating body is a child of the world, and has the world's coordinates.",
            "Place the joint at the origin of the inertial frame, without a rotation.",
        )
    if mech.body_names[k] == "world":
        raise MechanismError(
            "a moving body is named 'world'.",
            "In MJCF this is the name of the inertial frame.",
            "Save to URDF (.urdf), or rename the link in the robot's own file.",
        )
    place = _start(mech, k) if free else f' pos="{_words(p)}" quat="{_quaternion(R)}"'
    inertia, eps = mech.inertia[k].detach().cpu().double().numpy(), torch.finfo(mech.dtype).eps
    moments, quaternion = principal_inertia(mech.body_names[k], inertia, eps)
    _check_inertia(mech, k, moments)
    values = f'mass="{_words(mech.mass[k : k + 1])}" diaginertia="{words(moments)}"'
    space = " " * indent
    return [
        f"{space}<body name={quoteattr(mech.body_names[k])}{place}{_gravcomp(mech, k)}>",
        f'{space}  <inertial pos="{_words(mech.com[k])}" quat="{words(quaternion)}" {values}/>',
        *(f"{space}  {line}" for line in _joints(mech, k)),
        *_sites(mech, k, indent + 2),
        *(f"{space}  {line}" for line in mjcf_geoms(mech, k)),
    ]


def _start(mech: Mechanism, k: int) -> str:
    """Initial pose of a floating body, which MuJoCo takes from the body's placement."""
    if mech.file_metadata.initial is None:
        return ""
    q = mech.initial()[mech.q_slice(mech.tree_joint_names[k])]
    return f' pos="{_words(q[:3])}" quat="{_words(q[3:])}"'


def _check_inertia(mech: Mechanism, k: int, moments: np.ndarray) -> None:
    if min(float(mech.mass[k]), float(moments.min())) <= MIN_INERTIA:
        raise MechanismError(
            f"body {mech.body_names[k]!r} has no mass, or a zero principal moment of inertia.",
            "MuJoCo refuses a moving body without mass or inertia.",
            "For a robot from MJCF pass like=FILE; otherwise set small values with "
            "mech.replace(mass=..., inertia=...).",
        )


def _gravcomp(mech: Mechanism, k: int) -> str:
    """The attribute for the compensated share of a body's weight."""
    share, *moment = mech.gravcomp[k].tolist()
    if not any(map(abs, (share, *moment))):
        return ""
    if max(map(abs, moment)) > 1e-12 * (1.0 + float(mech.mass[k])):
        raise MechanismError(
            f"the weight of body {mech.body_names[k]!r} is not compensated at its centre of mass.",
            "MJCF only supports compensation at the centre of mass.",
            "Use the same gravcomp for all links welded together, or pass like=FILE.",
        )
    return f' gravcomp="{share!r}"'


def _joints(mech: Mechanism, k: int) -> list[str]:
    name, kind = mech.tree_joint_names[k], mech.joints.kinds[k]
    dofs, q = mech.tree_dof_slice(name), mech.tree_q_slice(name)
    stack, lines = _stack(mech, k), []
    labels = motions(name, kind) if len(stack) > 1 else (name,)
    for i, (type_, axis, point) in enumerate(stack):
        label = labels[i]
        dof = dofs.start + i
        values = {"type": type_, "pos": words(point)}
        if type_ in ("hinge", "slide"):
            values["axis"] = words(axis)
            values |= _bounds(mech, k, i)
        for field, attribute in (("damping", "damping"), ("friction", "frictionloss"),
                                 ("armature", "armature"), ("stiffness", "stiffness")):  # fmt: skip
            x = getattr(mech, field)[dof : dof + (dofs.stop - dofs.start if len(stack) == 1 else 1)]
            if bool((x != x[0]).any()):
                raise MechanismError(
                    f"{field} of joint {name!r} differs among its dofs: {x.tolist()}.",
                    "A ball or free joint has one value for all dofs.",
                    "Set all of them to the same value.",
                )
            if bool(x[0]):
                values[attribute] = _words(x[:1])
        higher = mech.higher_damping[dof]
        if bool(higher.any()):
            values["damping"] = _words(torch.cat([mech.damping[dof, None], higher]))
        if type_ == "ball":
            _check_ball_spring(mech, name)
        if kind.vector and bool(mech.spring_reference[q.start + i]):
            values["springref"] = _words(mech.spring_reference[q.start + i, None])
        text = " ".join(f'{key}="{value}"' for key, value in values.items())
        lines.append(f"<joint name={quoteattr(label)} {text}/>")
    return lines


def _check_ball_spring(mech: Mechanism, name: str) -> None:
    """Refuse a ball joint with a spring that is not relaxed at the identity."""
    vector = mech.spring_reference[mech.tree_q_slice(name)][1:]
    if bool(vector.any()) and bool(mech.stiffness[mech.tree_dof_slice(name)].any()):
        raise MechanismError(
            f"the spring of ball joint {name!r} is not relaxed at the identity rotation.",
            "MJCF does not support another reference.",
            "Rotate the joint's frame instead, or remove the spring with mech.replace(stiffness=...).",
        )


def _limits(mech: Mechanism, k: int, i: int) -> tuple[float, float, float]:
    """Lower, upper and effort limit of one dof of an independent joint."""
    name = mech.tree_joint_names[k]
    q, dof = mech.q_slice(name).start + i, mech.dof_slice(name).start + i
    return float(mech.lower[q]), float(mech.upper[q]), float(mech.effort_limit[dof])


def _bounds(mech: Mechanism, k: int, i: int) -> dict[str, str]:
    """Attributes for the limits of one dof of an independent joint."""
    if k not in mech.independent_joints:
        return {}
    low, high, effort = _limits(mech, k, i)
    attributes = {}
    if low < high and (math.isfinite(low) or math.isfinite(high)):  # MuJoCo needs both
        attributes["range"] = words([max(low, -MAX_POSITION), min(high, MAX_POSITION)])
    if math.isfinite(effort) and effort > 0:
        attributes["actuatorfrcrange"] = words([-effort, effort])
    return attributes


def _warn_unsupported_limits(mech: Mechanism) -> None:
    """Warn of effort limits of ball and free joints, and of limits that permit a single value only."""
    lost, round_joints = [], []
    for k in mech.independent_joints:
        if (kind := mech.joints.kinds[k]).vector:
            rows = [_limits(mech, k, i) for i in range(kind.num_dof)]
            if any(low == high or effort == 0 for low, high, effort in rows):
                lost.append(mech.tree_joint_names[k])
        elif bool(mech.effort_limit[mech.dof_slice(mech.tree_joint_names[k])].isfinite().any()):
            round_joints.append(mech.tree_joint_names[k])
    if round_joints:
        warnings.warn(
            f"effort limits of {name_list(round_joints)} are left out of the new MJCF file.\n"
            "Only hinges and slides have effort limits in MJCF.\n"
            "Save to URDF (.urdf) to preserve them.",
            RobotFileWarning,
            stacklevel=5,
        )
    if lost:
        warnings.warn(
            f"limits of {name_list(lost)} are left out of the new MJCF file.\n"
            "They permit a single position or no effort, which MuJoCo treats as no limit.\n"
            "Lock fixed joints with mech.lock({name: q}), or save to URDF (.urdf).",
            RobotFileWarning,
            stacklevel=5,
        )


def _stack(mech: Mechanism, k: int) -> list[StackedJoint]:
    """MuJoCo's joints that are equivalent to a joint."""
    name, kind = mech.tree_joint_names[k], mech.joints.kinds[k].name
    axis, origin = mech.axis[k].tolist(), [0.0] * 3

    def vectors(parameter: str) -> Tensor:
        return mech.joint_parameters[mech.parameter_slice(name, parameter)].reshape(-1, 3)

    if kind in JOINT_TYPES:
        return [(JOINT_TYPES[kind], axis, origin)]
    if kind == "cylindrical":
        return [("hinge", axis, origin), ("slide", axis, origin)]
    if kind == "translation":
        return [("slide", row, origin) for row in torch.eye(3).tolist()]
    if kind == "universal":
        return [("hinge", axis, origin), ("hinge", vectors("second_axis")[0].tolist(), origin)]
    if kind == "planar":
        (x,) = vectors("direction")
        y = torch.linalg.cross(mech.axis[k], x)
        return [
            ("slide", x.tolist(), origin),
            ("slide", y.tolist(), origin),
            ("hinge", axis, origin),
        ]
    if kind == "compound":
        turns = [rate.startswith("turn") for rate in mech.joints.kinds[k].coordinates]
        rows = zip(turns, vectors("axes").tolist(), vectors("points").tolist(), strict=True)
        return [("hinge" if turn else "slide", e, point) for turn, e, point in rows]
    raise MechanismError(
        f"joint {name!r} is {kind}.",
        "MJCF supports hinges, slides, balls and free joints, and stacks of them.",
        "Replace it by several joints, with couplings between dependent motions.",
    )


def _sites(mech: Mechanism, body: int, indent: int) -> list[str]:
    """Sites for the further frames of a body."""
    return [
        f"{' ' * indent}<site name={quoteattr(name)} "
        f'pos="{_words(mech.frame_position[i])}" quat="{_quaternion(mech.frame_rotation[i])}"/>'
        for i, name in enumerate(mech.frame_names)
        if mech.frame_body[i] == body and name not in mech.body_names
    ]


def _equalities(mech: Mechanism, loops: list[str]) -> list[str]:
    rows = single_leaders(mech)
    if not rows and not loops:
        return []
    names = mech.tree_joint_names
    lines = [
        f"    <joint joint1={quoteattr(names[k])} joint2={quoteattr(names[j])} "
        f'polycoef="{words([offset, c, 0, 0, 0])}"/>'
        for k, (j, c, offset) in rows.items()
    ]
    return ["  <equality>", *lines, *loops, "  </equality>"]


def _words(x: Tensor) -> str:
    return words(x.detach().tolist())


def _quaternion(R: Tensor) -> str:
    return words(quaternion_from_matrix(R.detach().cpu().double().numpy()))
