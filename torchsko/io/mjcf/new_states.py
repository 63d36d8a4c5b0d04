"""Keyframes and loops in new files.

In MJCF a loop is an equality between two sites, which does not depend on MuJoCo's initial configuration. In
URDF it is a <loop> of URDF+. Keyframes have no controls and activations, since a new file has no actuators.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

import numpy as np

from torchsko.constraints.constraint_kinds import SYNONYMS
from torchsko.errors import RobotFileWarning, name_list
from torchsko.io.common.loop_ends import WITH_AXIS
from torchsko.io.common.numbers import as_matrix, as_vector, quaternion_from_matrix
from torchsko.io.conventions.conversion import conventions
from torchsko.io.urdf.edit_urdf import rpy_from_rotation
from torchsko.io.xml.edits import words
from torchsko.mechanism.description import IDENTITY, Matrix, Vector
from torchsko.mechanism.file_data.file_metadata import Closure, FrameName
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.numbering import motions

MJCF_KINDS = ("ball", "weld", "revolute", "gear", "joint")
"""Kinds of loops in new MJCF files."""

URDF_KINDS = ("ball", "weld", "revolute", "prismatic")
"""Kinds of loops in new URDF files, as <loop> of URDF+."""

HINGE_OFFSET = 0.1
"""Distance of the two points that a revolute loop connects in MJCF [m]."""


@dataclass(frozen=True)
class LoopLines:
    """The loops of a mechanism as lines of a file.

    Attributes:
        sites: new sites, by the body that carries them; -1: the world.
        equalities: equalities between sites.
    """

    sites: dict[int, list[str]]
    equalities: list[str]


def mjcf_loops(mech: Mechanism) -> LoopLines:
    """Loops that MuJoCo supports; a revolute loop is two points on its axis."""
    sites: dict[int, list[str]] = {}
    taken, lines = set(mech.frame_names), []

    def site(name: str, frame: FrameName, point: Vector, rotation: Matrix) -> str:
        """Name of a site at the point of a frame."""
        identity = not np.any(point) and bool((np.array(rotation) == np.eye(3)).all())
        if frame is not None and frame not in mech.body_names and identity:
            return frame  # the frame is a site already
        name = unique_name(name, taken)
        taken.add(name)
        body, line = _site(mech, name, frame, point, rotation)
        sites.setdefault(body, []).append(line)
        return name

    for c in (c for c in mech.closures if _kind(c) in MJCF_KINDS):
        numbers = (("solref", c.solref), ("solimp", c.solimp))
        more = "".join(f' {key}="{words(x)}"' for key, x in numbers if x)
        more += "" if c.active else ' active="false"'
        more += "" if c.torque_scale == 1 else f' torquescale="{c.torque_scale!r}"'
        if c.joints:
            one, two = map(quoteattr, c.joints)
            slopes = c.parameters if _kind(c) == "joint" else (*c.parameters[::-1], 0.0, 0.0, 0.0)
            lines.append(
                f"    <joint name={quoteattr(c.name)} joint1={one} joint2={two} "
                f'polycoef="{words(slopes)}"{more}/>'
            )
            continue
        tag = "weld" if _kind(c) == "weld" else "connect"
        axis2 = np.array(c.rotation)[2]  # the z axis of the first frame in the second
        for k in range(2 if _kind(c) == "revolute" else 1):
            name = unique_name(f"{c.name}_axis", {x.name for x in mech.closures}) if k else c.name
            first = np.array(c.position1) + k * HINGE_OFFSET * np.array((0.0, 0.0, 1.0))
            second = np.array(c.position2) + k * HINGE_OFFSET * axis2
            one = site(
                f"{name}_1", c.frame1, as_vector(first), c.rotation if tag == "weld" else IDENTITY
            )
            two = site(f"{name}_2", c.frame2, as_vector(second), IDENTITY)
            lines.append(
                f"    <{tag} name={quoteattr(name)} site1={quoteattr(one)} "
                f"site2={quoteattr(two)}{more}/>"
            )
    return LoopLines(sites, lines)


def urdf_loops(mech: Mechanism, root: str) -> list[str]:
    """Loops as <loop> of URDF+; `root` is the link that coincides with the inertial frame."""
    lines = []
    types = {"ball": "spherical", "weld": "fixed"}
    for c in (c for c in mech.closures if _kind(c) in URDF_KINDS and c.active):
        lines.append(f'  <loop name={quoteattr(c.name)} type="{types.get(_kind(c), _kind(c))}">')
        turned = as_matrix(np.array(c.rotation).T)
        for tag, frame, R, p in (
            ("predecessor", c.frame1, IDENTITY, c.position1),
            ("successor", c.frame2, turned, c.position2),
        ):
            link = quoteattr(root if frame is None else frame)
            rpy = words(rpy_from_rotation(R))
            place = f'<origin xyz="{words(p)}" rpy="{rpy}"/>'
            lines.append(f"    <{tag} link={link}>{place}</{tag}>")
        lines += ['    <axis xyz="0 0 1"/>'] if _kind(c) in WITH_AXIS else []
        lines.append("  </loop>")
    return lines


def _kind(closure: Closure) -> str:
    return SYNONYMS.get(closure.kind, closure.kind)


def mjcf_keyframes(mech: Mechanism, order: Sequence[int]) -> list[str]:
    """The <keyframe> element of a mechanism; empty without keyframes.

    Args:
        mech: the mechanism.
        order: its joints in the order of the file.
    """
    names = []
    for k in order:
        joint = mech.tree_joint_names[k]
        names += motions(joint, mech.joints.kinds[k]) or (joint,)
    if not mech.keyframes:
        return []
    mujoco = conventions("mujoco", mech, names)
    lines = []
    for key in mech.keyframes.values():
        q, qd = (x.detach().tolist() for x in (mujoco.q_to(key.q), mujoco.qd_to(key.q, key.qd)))
        lines.append(
            f'    <key name={quoteattr(key.name)} time="{key.time!r}" qpos="{words(q)}" '
            f'qvel="{words(qd)}"/>'
        )
    return ["  <keyframe>", *lines, "  </keyframe>"]


def warn_unsupported_states(mech: Mechanism, format: str) -> None:
    """Warn of keyframes, loops, sensors, tendons and initial positions that are left out of a new file."""
    mjcf = format == "MJCF"
    kinds = MJCF_KINDS if mjcf else URDF_KINDS
    loops = [c.name for c in mech.closures if _kind(c) not in kinds or not (mjcf or c.active)]
    lost = [f"loops {name_list(loops)}"] * bool(loops)
    lost += [f"keyframes {name_list(list(mech.keyframes))}"] * (not mjcf and bool(mech.keyframes))
    actuated = [k.name for k in mech.keyframes.values() if len(k.ctrl) or len(k.activation)]
    controls = f"controls and activations of keyframes {name_list(actuated)}"
    lost += [controls] * (mjcf and bool(actuated))
    sensors = [sensor.name for sensor in mech.file_metadata.sensors]
    lost += [f"sensors {name_list(sensors)}"] * bool(sensors)
    tendons = [tendon.name for tendon in mech.file_metadata.tendons]
    lost += [f"tendons {name_list(tendons)}"] * bool(tendons)
    differ = mech.initial() != mech.neutral()
    started = [
        name
        for name, kind in zip(mech.joint_names, mech.joint_kinds, strict=True)
        if not (mjcf and kind == "free") and bool(differ[mech.q_slice(name)].any())
    ]
    lost += [f"initial positions of joints {name_list(started)} (mech.initial())"] * bool(started)
    why = (
        "It has no actuators, sensors and tendons, and its joints start at 0"
        if mjcf
        else "URDF does not support them"
    )
    if lost:
        warnings.warn(
            f"{', '.join(lost)} of {mech.name!r} are left out of the new {format} file.\n"
            f"{why}.\nPass like=FILE with the original file to preserve them.",
            RobotFileWarning,
            stacklevel=5,
        )


def _site(
    mech: Mechanism, name: str, frame: FrameName, point: Vector, rotation: Matrix
) -> tuple[int, str]:
    """A site at the point of a loop, and the body that carries it."""
    body, R, p = -1, np.array(rotation), np.array(point)
    if frame is not None:
        i = mech.frame_index(frame)
        body = mech.frame_body[i]
        frame_R, frame_p = (
            getattr(mech, field)[i].detach().cpu().double().numpy()
            for field in ("frame_rotation", "frame_position")
        )
        R, p = frame_R @ R, frame_R @ p + frame_p
    quat = words(quaternion_from_matrix(R))
    return body, f'<site name={quoteattr(name)} pos="{words(p)}" quat="{quat}"/>'


def unique_name(name: str, taken: Collection[str]) -> str:
    """The name, with underscores appended until it is not taken."""
    while name in taken:
        name += "_"
    return name
