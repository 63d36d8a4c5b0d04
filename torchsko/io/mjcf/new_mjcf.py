"""A mechanism as a new MJCF file."""

from __future__ import annotations

import math
import warnings
from xml.sax.saxutils import quoteattr

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError, RobotFileWarning, name_list
from torchsko.io.common.new_geometry import mjcf_excludes, mjcf_geoms, tell_left_out
from torchsko.io.common.quaternion import quaternion_from_matrix
from torchsko.io.common.write_back import check_one
from torchsko.io.mjcf.new_states import mjcf_keyframes, mjcf_loops, tell_states_left_out
from torchsko.io.mujoco.mujoco_numbers import FARTHEST
from torchsko.io.mujoco.principal_moments import physical
from torchsko.io.urdf.new_urdf import followed
from torchsko.io.xml.edits import words
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.numbering import motions

ONE = {"revolute": "hinge", "prismatic": "slide", "spherical": "ball", "free": "free"}
"""MuJoCo's types of joints by ours."""

LEAST = 1e-15
"""Of a mass and a moment of inertia that move in MuJoCo (mjMINVAL)."""

Stacked = tuple[str, list[float], list[float]]
"""Type, axis and point of a joint."""


def new_mjcf(mech: Mechanism) -> str:
    """The bodies and joints of a mechanism, its frames as sites, joints that follow others as equalities.

    Its loops are equalities between sites, its keyframes those of the file, without controls.

    Shapes that are primitives are geoms, of which no inertia is inferred.

    A joint of several dofs is a stack of hinges and slides, each of the name that it had where it came from
    such a stack, else named after the joint and its rate.

    Raises:
        MechanismError: on a batch, or what MJCF cannot say: a free joint elsewhere than at the world's own
            frame, a helical one, a joint that follows several others, a body of the world's name, a ball
            joint's spring that is relaxed elsewhere than at the identity.
    """
    check_one(mech)
    tell_left_out(mech, "MJCF")
    tell_states_left_out(mech, "MJCF")
    _tell_limits_left_out(mech)
    gravity, loops, order = words(mech.gravity.tolist()), mjcf_loops(mech), _depth_first(mech)
    lines = [
        f"<mujoco model={quoteattr(mech.name)}>",
        '  <compiler angle="radian" autolimits="true" inertiafromgeom="false"/>',
        f'  <option gravity="{gravity}"/>',
        "  <worldbody>",
        *_sites(mech, -1, 4),
        *(f"    {line}" for line in (*loops.sites.get(-1, ()), *mjcf_geoms(mech, -1))),
    ]
    open_: list[int] = []
    for k in order:
        while open_ and open_[-1] != mech.parents[k]:
            lines.append("  " * (len(open_) + 1) + "</body>")
            open_.pop()
        indent = 2 * len(open_) + 4
        lines += _body(mech, k, indent)
        lines += [f"{' ' * indent}  {line}" for line in loops.sites.get(k, ())]
        open_.append(k)
    lines += ["  " * (depth + 1) + "</body>" for depth in range(len(open_), 0, -1)]
    after = [*_equalities(mech, loops.equalities), *mjcf_excludes(mech)]
    after += mjcf_keyframes(mech, order)
    return "\n".join([*lines, "  </worldbody>", *after, "</mujoco>", ""])


def _depth_first(mech: Mechanism) -> list[int]:
    """The bodies, each followed by those that hang on it: what was appended stands behind all others."""
    children: dict[int, list[int]] = {}
    for k, parent in enumerate(mech.parents):
        children.setdefault(parent, []).append(k)
    order, ahead = [], children.get(-1, [])[::-1]
    while ahead:
        order.append(k := ahead.pop())
        ahead += children.get(k, [])[::-1]
    return order


def _body(mech: Mechanism, k: int, indent: int) -> list[str]:
    R, p = mech.joint_rotation[k], mech.joint_position[k]
    free = mech.joints.kinds[k].name == "free"
    if free and (mech.parents[k] >= 0 or bool((R != torch.eye(3).to(R)).any()) or bool(p.any())):
        raise MechanismError(
            f"joint {mech.tree_joint_names[k]!r} is free, and not from the world's own frame.",
            "In MJCF only bodies of the world float, and their coordinates are those of the world.",
            "Place that joint at the origin, unturned.",
        )
    if mech.body_names[k] == "world":
        raise MechanismError(
            "a body that moves is named 'world'.",
            "In MJCF that is the name of what does not move.",
            "Save to URDF (.urdf), or give the link another name in the robot's own file.",
        )
    place = _start(mech, k) if free else f' pos="{_words(p)}" quat="{_quaternion(R)}"'
    moments, axes = np.linalg.eigh(mech.inertia[k].detach().cpu().double().numpy())
    moments = physical(mech.body_names[k], moments, torch.finfo(mech.dtype).eps)
    _check_resists(mech, k, moments)
    turn = words(quaternion_from_matrix(axes * np.sign(np.linalg.det(axes))))
    own = f'mass="{_words(mech.mass[k : k + 1])}" diaginertia="{words(moments)}"'
    space = " " * indent
    return [
        f"{space}<body name={quoteattr(mech.body_names[k])}{place}{_gravcomp(mech, k)}>",
        f'{space}  <inertial pos="{_words(mech.com[k])}" quat="{turn}" {own}/>',
        *(f"{space}  {line}" for line in _joints(mech, k)),
        *_sites(mech, k, indent + 2),
        *(f"{space}  {line}" for line in mjcf_geoms(mech, k)),
    ]


def _start(mech: Mechanism, k: int) -> str:
    """Where a body that floats begins, in MuJoCo's words the place of the body; nothing at the origin."""
    if mech.file_metadata.initial is None:
        return ""
    q = mech.initial()[mech.q_slice(mech.tree_joint_names[k])]
    return f' pos="{_words(q[:3])}" quat="{_words(q[3:])}"'


def _check_resists(mech: Mechanism, k: int, moments: np.ndarray) -> None:
    if min(float(mech.mass[k]), float(moments.min())) <= LEAST:
        raise MechanismError(
            f"body {mech.body_names[k]!r} has no mass, or no inertia about an axis through its centre.",
            "MuJoCo takes no such body that moves, not even between two joints that a file stacks in one.",
            "Save with like=FILE where it came from MJCF, or give it a little of both: "
            "mech.replace(mass=..., inertia=...).",
        )


def _gravcomp(mech: Mechanism, k: int) -> str:
    """The share of a body's weight that is compensated."""
    share, *besides = mech.gravcomp[k].tolist()
    if not any(map(abs, (share, *besides))):
        return ""
    if max(map(abs, besides)) > 1e-12 * (1.0 + float(mech.mass[k])):
        raise MechanismError(
            f"the weight of body {mech.body_names[k]!r} is not compensated at its centre of mass.",
            "MJCF compensates a share of a body's weight, and nothing elsewhere.",
            "Give all bodies that are welded together one share, or save like the original file.",
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
                    "A ball or free joint has one number for all.",
                    "Give all of them the same.",
                )
            if bool(x[0]):
                values[attribute] = _words(x[:1])
        higher = mech.higher_damping[dof]
        if bool(higher.any()):
            values["damping"] = _words(torch.cat([mech.damping[dof, None], higher]))
        if type_ == "ball":
            _check_relaxed(mech, name)
        if kind.vector and bool(mech.spring_reference[q.start + i]):
            values["springref"] = _words(mech.spring_reference[q.start + i, None])
        text = " ".join(f'{key}="{value}"' for key, value in values.items())
        lines.append(f"<joint name={quoteattr(label)} {text}/>")
    return lines


def _check_relaxed(mech: Mechanism, name: str) -> None:
    """Refuse the spring of a ball joint that is relaxed elsewhere than at the identity."""
    turn = mech.spring_reference[mech.tree_q_slice(name)][1:]
    if bool(turn.any()) and bool(mech.stiffness[mech.tree_dof_slice(name)].any()):
        raise MechanismError(
            f"the spring of joint {name!r} is relaxed at a rotation of its own.",
            "In MJCF springs of ball joints are relaxed where the file has the body.",
            "Turn the joint's frame instead, or save without: mech.replace(stiffness=...).",
        )


def _limits(mech: Mechanism, k: int, i: int) -> tuple[float, float, float]:
    """Lower, upper and effort limit of one dof of an independent joint."""
    name = mech.tree_joint_names[k]
    q, dof = mech.q_slice(name).start + i, mech.dof_slice(name).start + i
    return float(mech.lower[q]), float(mech.upper[q]), float(mech.effort_limit[dof])


def _bounds(mech: Mechanism, k: int, i: int) -> dict[str, str]:
    """Limits of position and force of one dof of an independent joint."""
    if k not in mech.independent_joints:
        return {}
    low, high, effort = _limits(mech, k, i)
    found = {}
    if low < high and (math.isfinite(low) or math.isfinite(high)):  # MuJoCo has both ends, or none
        found["range"] = words([max(low, -FARTHEST), min(high, FARTHEST)])
    if math.isfinite(effort) and effort > 0:
        found["actuatorfrcrange"] = words([-effort, effort])
    return found


def _tell_limits_left_out(mech: Mechanism) -> None:
    """Warn of limits that leave no room, which MuJoCo takes for none, and of those of round joints."""
    lost, round_ = [], []
    for k in mech.independent_joints:
        if (kind := mech.joints.kinds[k]).vector:
            rows = [_limits(mech, k, i) for i in range(kind.num_dof)]
            if any(low == high or effort == 0 for low, high, effort in rows):
                lost.append(mech.tree_joint_names[k])
        elif bool(mech.effort_limit[mech.dof_slice(mech.tree_joint_names[k])].isfinite().any()):
            round_.append(mech.tree_joint_names[k])
    if round_:
        warnings.warn(
            f"limits of effort of {name_list(round_)} are left out of a new file in MJCF.\n"
            "There hinges and slides have such limits, balls and free joints none.\n"
            "Save to URDF (.urdf) to keep them.",
            RobotFileWarning,
            stacklevel=5,
        )
    if lost:
        warnings.warn(
            f"limits of {name_list(lost)} are left out of a new file in MJCF: they leave no room.\n"
            "Of a joint that cannot move, or has no force, MuJoCo takes the limit for none.\n"
            "Lock joints that stand still, mech.lock({name: q}), or save to URDF (.urdf).",
            RobotFileWarning,
            stacklevel=5,
        )


def _stack(mech: Mechanism, k: int) -> list[Stacked]:
    """The joints of MuJoCo that are one of ours."""
    name, kind = mech.tree_joint_names[k], mech.joints.kinds[k].name
    axis, origin = mech.axis[k].tolist(), [0.0] * 3

    def own(what: str) -> Tensor:
        return mech.joint_parameters[mech.parameter_slice(name, what)].reshape(-1, 3)

    if kind in ONE:
        return [(ONE[kind], axis, origin)]
    if kind == "cylindrical":
        return [("hinge", axis, origin), ("slide", axis, origin)]
    if kind == "translation":
        return [("slide", row, origin) for row in torch.eye(3).tolist()]
    if kind == "universal":
        return [("hinge", axis, origin), ("hinge", own("second_axis")[0].tolist(), origin)]
    if kind == "planar":
        (x,) = own("direction")
        y = torch.linalg.cross(mech.axis[k], x)
        return [
            ("slide", x.tolist(), origin),
            ("slide", y.tolist(), origin),
            ("hinge", axis, origin),
        ]
    if kind == "compound":
        turns = [rate.startswith("turn") for rate in mech.joints.kinds[k].coordinates]
        rows = zip(turns, own("axes").tolist(), own("points").tolist(), strict=True)
        return [("hinge" if turn else "slide", e, point) for turn, e, point in rows]
    raise MechanismError(
        f"joint {name!r} is {kind}.",
        "MJCF has hinges, slides, balls and free joints, and stacks of them.",
        "Write it as several joints, coupled where one motion makes another.",
    )


def _sites(mech: Mechanism, body: int, indent: int) -> list[str]:
    """The frames of a body that are no bodies, as sites."""
    return [
        f"{' ' * indent}<site name={quoteattr(name)} "
        f'pos="{_words(mech.frame_position[i])}" quat="{_quaternion(mech.frame_rotation[i])}"/>'
        for i, name in enumerate(mech.frame_names)
        if mech.frame_body[i] == body and name not in mech.body_names
    ]


def _equalities(mech: Mechanism, loops: list[str]) -> list[str]:
    rows = followed(mech)
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
