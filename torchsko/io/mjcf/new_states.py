"""Keyframes and loops in new MJCF files.

A loop is an equality between two sites, which does not depend on MuJoCo's initial configuration. Keyframes
have no controls and activations, since a new file has no actuators.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

import numpy as np

from torchsko.errors import RobotFileWarning, name_list
from torchsko.io.common.numbers import quaternion_from_matrix
from torchsko.io.conventions.conversion import conventions
from torchsko.io.xml.edits import words
from torchsko.mechanism.description import IDENTITY, Matrix, Vector
from torchsko.mechanism.file_data.file_metadata import Closure, FrameName
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.numbering import motions

LOOP_KINDS = ("connect", "weld")
"""Kinds of loops that MuJoCo supports."""


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
    """Loops that MuJoCo supports."""
    sites: dict[int, list[str]] = {}
    taken, lines = set(mech.frame_names), []
    for c in filter(_is_supported, mech.file_metadata.closures):
        names = []
        for end, (frame, point, rotation) in enumerate(
            ((c.frame1, c.position1, c.rotation), (c.frame2, c.position2, IDENTITY)), 1
        ):
            identity = not np.any(point) and bool((np.array(rotation) == np.eye(3)).all())
            if frame is not None and frame not in mech.body_names and identity:
                names.append(frame)  # the frame is a site already
                continue
            name = unique_name(f"{c.name}_{end}", taken)
            taken.add(name)
            names.append(name)
            body, line = _site(mech, name, frame, point, rotation)
            sites.setdefault(body, []).append(line)
        numbers = (("solref", c.solref), ("solimp", c.solimp))
        more = "".join(f' {key}="{words(x)}"' for key, x in numbers if x)
        more += "" if c.active else ' active="false"'
        first, second = map(quoteattr, names)
        lines.append(f"    <{c.kind} name={quoteattr(c.name)} site1={first} site2={second}{more}/>")
    return LoopLines(sites, lines)


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
    """Warn of keyframes, loops, sensors and initial positions that are left out of a new file."""
    mjcf = format == "MJCF"
    loops = [c.name for c in mech.file_metadata.closures if not (mjcf and _is_supported(c))]
    lost = [f"loops {name_list(loops)}"] * bool(loops)
    lost += [f"keyframes {name_list(list(mech.keyframes))}"] * (not mjcf and bool(mech.keyframes))
    actuated = [k.name for k in mech.keyframes.values() if len(k.ctrl) or len(k.activation)]
    controls = f"controls and activations of keyframes {name_list(actuated)}"
    lost += [controls] * (mjcf and bool(actuated))
    sensors = [sensor.name for sensor in mech.file_metadata.sensors]
    lost += [f"sensors {name_list(sensors)}"] * bool(sensors)
    differ = mech.initial() != mech.neutral()
    started = [
        name
        for name, kind in zip(mech.joint_names, mech.joint_kinds, strict=True)
        if not (mjcf and kind == "free") and bool(differ[mech.q_slice(name)].any())
    ]
    lost += [f"initial positions of joints {name_list(started)} (mech.initial())"] * bool(started)
    why = (
        "It has no actuators and sensors, and its joints start at 0"
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


def _is_supported(closure: Closure) -> bool:
    return closure.kind in LOOP_KINDS


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
