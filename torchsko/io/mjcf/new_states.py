"""What a mechanism keeps besides its dynamics, in a new MJCF file: keyframes, and loops between sites.

A loop holds two points, and frames where it is a weld, of two bodies; in the file they are sites, so that it
is the same loop wherever MuJoCo begins. Controls and activations of keyframes are those of actuators, which a
new file has not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

import numpy as np

from torchsko.errors import RobotFileWarning, name_list
from torchsko.io.common.quaternion import quaternion_from_matrix
from torchsko.io.conventions.conversion import conventions
from torchsko.io.xml.edits import words
from torchsko.mechanism.description import IDENTITY, Matrix, Vector
from torchsko.mechanism.file_metadata import Closure, FrameName
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.numbering import motions

LOOPS = ("connect", "weld")
"""Kinds of loops that MuJoCo has."""


@dataclass(frozen=True)
class LoopLines:
    """The loops of a mechanism, as lines of a file.

    Attributes:
        sites: those that are not there yet, by the body that carries them, -1 for the world.
        equalities: between sites.
    """

    sites: dict[int, list[str]]
    equalities: list[str]


def mjcf_loops(mech: Mechanism) -> LoopLines:
    """Loops that MuJoCo has, in its words."""
    sites: dict[int, list[str]] = {}
    taken, lines = set(mech.frame_names), []
    for c in filter(_has_word, mech.file_metadata.closures):
        ends = []
        for end, (frame, point, turn) in enumerate(
            ((c.frame1, c.position1, c.rotation), (c.frame2, c.position2, IDENTITY)), 1
        ):
            if frame is not None and frame not in mech.body_names and not _moved(point, turn):
                ends.append(frame)  # a site of the file already
                continue
            name = _unused(f"{c.name}_{end}", taken)
            taken.add(name)
            ends.append(name)
            body, line = _site(mech, name, frame, point, turn)
            sites.setdefault(body, []).append(line)
        numbers = (("solref", c.solref), ("solimp", c.solimp))
        more = "".join(f' {key}="{words(x)}"' for key, x in numbers if x)
        more += "" if c.active else ' active="false"'
        one, two = map(quoteattr, ends)
        lines.append(f"    <{c.kind} name={quoteattr(c.name)} site1={one} site2={two}{more}/>")
    return LoopLines(sites, lines)


def mjcf_keyframes(mech: Mechanism, order: Sequence[int]) -> list[str]:
    """The <keyframe>s of a mechanism, none where it has none.

    Args:
        mech: the mechanism.
        order: of its joints in the file.
    """
    names = []
    for k in order:
        joint = mech.tree_joint_names[k]
        names += motions(joint, mech.joints.kinds[k]) or (joint,)
    if not mech.keyframes:
        return []
    there = conventions("mujoco", mech, names)
    lines = []
    for key in mech.keyframes.values():
        q, qd = (x.detach().tolist() for x in (there.q_to(key.q), there.qd_to(key.q, key.qd)))
        lines.append(
            f'    <key name={quoteattr(key.name)} time="{key.time!r}" qpos="{words(q)}" '
            f'qvel="{words(qd)}"/>'
        )
    return ["  <keyframe>", *lines, "  </keyframe>"]


def tell_states_left_out(mech: Mechanism, format: str) -> None:
    """Warn of keyframes, loops and starts that a new file does not have."""
    mjcf = format == "MJCF"
    loops = [c.name for c in mech.file_metadata.closures if not (mjcf and _has_word(c))]
    lost = [f"loops {name_list(loops)}"] * bool(loops)
    lost += [f"keyframes {name_list(list(mech.keyframes))}"] * (not mjcf and bool(mech.keyframes))
    acted = [k.name for k in mech.keyframes.values() if len(k.ctrl) or len(k.activation)]
    lost += [f"controls and activations of keyframes {name_list(acted)}"] * (mjcf and bool(acted))
    begun = _started(mech, ("free",) if mjcf else ())
    lost += [f"starts of joints {name_list(begun)} (mech.initial())"] * bool(begun)
    if lost:
        warnings.warn(
            f"{', '.join(lost)} of {mech.name!r} are left out of a new file in {format}.\n"
            f"{'It has no actuators, and joints begin at 0' if mjcf else 'It has no words for them'}.\n"
            "Save like the original file to keep all of it.",
            RobotFileWarning,
            stacklevel=5,
        )


def _started(mech: Mechanism, kinds: Sequence[str]) -> list[str]:
    """Joints that begin elsewhere than at their neutral position, but for those of some kinds."""
    start, neutral = mech.initial(), mech.neutral()
    return [
        name
        for name, kind in zip(mech.joint_names, mech.joint_kinds, strict=True)
        if kind not in kinds and bool((start != neutral)[mech.q_slice(name)].any())
    ]


def _has_word(closure: Closure) -> bool:
    return closure.kind in LOOPS


def _moved(point: Vector, turn: Matrix) -> bool:
    return bool(np.any(point)) or bool((np.array(turn) != np.eye(3)).any())


def _site(
    mech: Mechanism, name: str, frame: FrameName, point: Vector, turn: Matrix
) -> tuple[int, str]:
    """A site where a loop holds a frame, and the body that carries it."""
    body, R, p = -1, np.array(turn), np.array(point)
    if frame is not None:
        i = mech.frame_index(frame)
        body = mech.frame_body[i]
        place, shift = (
            getattr(mech, field)[i].detach().cpu().double().numpy()
            for field in ("frame_rotation", "frame_position")
        )
        R, p = place @ R, place @ p + shift
    quat = words(quaternion_from_matrix(R))
    return body, f'<site name={quoteattr(name)} pos="{words(p)}" quat="{quat}"/>'


def _unused(name: str, taken: Iterable[str]) -> str:
    names = set(taken)
    while name in names:
        name += "_"
    return name
