"""The fields of a mechanism, from hinges and links that are rooted, ordered and placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torchsko.errors import MechanismError
from torchsko.mechanism import couplings
from torchsko.mechanism.couplings import NOT_HELD, Follower, followers
from torchsko.mechanism.description import (
    STILL,
    JointDescription,
    RobotDescription,
    UnsupportedElement,
)
from torchsko.mechanism.file_metadata import FileMetadata
from torchsko.mechanism.geometry import Geometry
from torchsko.mechanism.joints.free import Free
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.joints.registry import joint_type
from torchsko.mechanism.limit_notes import Limits, limit_notes
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.skeleton import skeleton
from torchsko.mechanism.welded import (
    WORLD,
    Frame,
    compensated,
    compose,
    lump,
    snapped,
    welded_links,
)


def mechanism_of(
    robot: RobotDescription,
    hinges: Sequence[JointDescription],
    frames: Mapping[str, Frame],
    gravity: Sequence[float],
    strict: bool,
) -> Mechanism:
    """The mechanism whose body k is what joint ``hinges[k]`` moves.

    Args:
        robot: the description, its rotors resolved.
        hinges: joints that move, depth first.
        frames: where each link is, the inertial frame among them.
        gravity: [m/s^2].
        strict: refuse limits that leave a joint no position; they are in its report otherwise.

    Raises:
        MechanismError: on such limits, a coupling that cannot be, or an unknown kind of joint.
    """
    kinds = tuple(joint_type(joint.kind).specialise(joint.name, joint.data) for joint in hinges)
    following = followers(robot, hinges, kinds)
    own = [k for k in range(len(hinges)) if k not in following]
    allowed = couplings.limits(hinges, following)
    if strict:
        _refuse_faults(allowed)
    number = {joint.child: k for k, joint in enumerate(hinges)}
    placed = [compose(frames[joint.parent], joint) for joint in hinges]
    followed = {k: row.coefficients for k, row in following.items()}
    return Mechanism(
        name=robot.name,
        gravity=_tensor(gravity),
        **_of_bodies(robot, hinges, frames),
        **_of_joints(hinges, kinds, placed),
        **_of_losses_and_springs(hinges, kinds),
        **_of_couplings(following),
        **_of_limits(allowed, kinds, own),
        **_of_frames(frames, number),
        **skeleton(list(number), _carriers(placed, number), kinds, followed),
        unused=robot.unused + _still(robot, frames) + limit_notes(_limits(hinges)) + allowed.unused,
        report=robot.report + allowed.faults,
        file_metadata=FileMetadata(
            closures=robot.closures, initial=_start(robot, hinges, kinds, own)
        ),
        geometry=robot.geometry or Geometry(),
    )


def _refuse_faults(allowed: couplings.Limits) -> None:
    if allowed.faults:
        raise MechanismError(
            f"{str(allowed.faults[0]).removesuffix(NOT_HELD)}.",
            "The limits of a joint and of those that follow it hold together.",
            "Correct the limits, the coefficient or the offset.",
        )


def _of_bodies(
    robot: RobotDescription, hinges: Sequence[JointDescription], frames: Mapping[str, Frame]
) -> dict[str, Any]:
    """What bodies weigh, each with all links that are welded to it."""
    links = {link.name: link for link in robot.links}
    on = welded_links(frames)
    welded = [on[joint.child] for joint in hinges]
    mass, com, inertia = zip(*(lump(names, frames, links) for names in welded), strict=True)
    return {
        "body_names": tuple(joint.child for joint in hinges),
        "mass": _tensor(mass),
        "com": _tensor(com),
        "inertia": _tensor(inertia),
        "gravcomp": _tensor([compensated(names, frames, links) for names in welded]),
        "has_gravcomp": any(links[name].gravcomp for names in welded for name in names),
    }


def _of_joints(
    hinges: Sequence[JointDescription], kinds: Sequence[JointType], placed: Sequence[Frame]
) -> dict[str, Any]:
    """Where joints are on what carries them, and how they move."""
    axes = [_unit_axis(joint, kind) for joint, kind in zip(hinges, kinds, strict=True)]
    return {
        "tree_joint_names": tuple(joint.name for joint in hinges),
        "joint_rotation": _tensor([frame.rotation for frame in placed]),
        "joint_position": _tensor([frame.position for frame in placed]),
        "axis": _tensor(axes),
        "aligned": all(sorted(map(abs, axis)) == [0.0, 0.0, 1.0] for axis in axes),
        "joint_parameters": _joint_parameters(hinges, kinds),
    }


def _of_losses_and_springs(
    hinges: Sequence[JointDescription], kinds: Sequence[JointType]
) -> dict[str, Any]:
    """What acts at each dof besides motors."""
    each = [joint for joint, kind in zip(hinges, kinds, strict=True) for _ in range(kind.num_dof)]
    fields = ("damping", "friction", "armature", "stiffness")
    return {
        **{field: _tensor([getattr(joint, field) for joint in each]) for field in fields},
        "higher_damping": torch.zeros(len(each), 2, dtype=torch.float64),
        "spring_reference": _spring_reference(hinges, kinds),
        "has_armature": any(joint.armature != 0.0 for joint in hinges),
        "has_losses": any(joint.damping != 0.0 or joint.friction != 0.0 for joint in hinges),
    }


def _of_couplings(following: Mapping[int, Follower]) -> dict[str, Any]:
    """How joints follow others, in the order of those that follow."""
    rows = [following[k] for k in sorted(following)]
    return {
        "coupling_ratio": _tensor([c for row in rows for c in row.coefficients.values()]),
        "coupling_offset": _tensor([row.offset for row in rows]),
    }


def _of_limits(
    allowed: couplings.Limits, kinds: Sequence[JointType], own: Sequence[int]
) -> dict[str, Any]:
    """Limits of the robot's own joints: of positions for each coordinate, of others for each dof."""
    per_q = [k for k in own for _ in range(kinds[k].num_q)]
    per_dof = [k for k in own for _ in range(kinds[k].num_dof)]
    return {
        "lower": _tensor([allowed.lower[k] for k in per_q]),
        "upper": _tensor([allowed.upper[k] for k in per_q]),
        "velocity_limit": _tensor([allowed.velocity[k] for k in per_dof]),
        "effort_limit": _tensor([allowed.effort[k] for k in per_dof]),
    }


def _of_frames(frames: Mapping[str, Frame], number: Mapping[str, int]) -> dict[str, Any]:
    """Where every link of the file is, those that no joint moves by themselves among them."""
    named = {name: frame for name, frame in frames.items() if name != WORLD}
    return {
        "frame_names": tuple(named),
        "frame_body": tuple(_carriers(named.values(), number)),
        "frame_rotation": _tensor([frame.rotation for frame in named.values()]),
        "frame_position": _tensor([frame.position for frame in named.values()]),
    }


def _carriers(frames: Iterable[Frame], number: Mapping[str, int]) -> list[int]:
    """The numbers of the bodies that frames are on; -1 for the inertial frame."""
    return [-1 if frame.carrier is None else number[frame.carrier] for frame in frames]


def _tensor(values: Sequence[Any] | np.ndarray) -> torch.Tensor:
    return torch.tensor(np.array(values, dtype=np.float64))


def _limits(hinges: Sequence[JointDescription]) -> list[Limits]:
    return [Limits(j.name, j.lower, j.upper, j.velocity, j.effort) for j in hinges]


def _start(
    robot: RobotDescription,
    hinges: Sequence[JointDescription],
    kinds: Sequence[JointType],
    own: Sequence[int],
) -> torch.Tensor | None:
    """Where the file puts links that float; None where that is where their joints are zero."""
    places, parts, neutral = dict(robot.starts), [], []
    for k in own:
        joint, zero = hinges[k], kinds[k].neutral()
        floats = joint.kind == Free.name and joint.parent == WORLD
        parts += places.get(joint.child, zero) if floats else zero
        neutral += zero
    return None if parts == neutral else _tensor(parts)


def _still(robot: RobotDescription, frames: Mapping[str, Frame]) -> tuple[UnsupportedElement, ...]:
    """Inertias that no equation of motion holds: those of links that do not move."""
    return tuple(
        UnsupportedElement(f"link {link.name!r} <inertial>", STILL, fixed_inertia=True)
        for link in robot.links
        if frames[link.name].carrier is None and (link.mass or np.any(link.inertia))
    )


def _unit_axis(joint: JointDescription, kind: JointType) -> np.ndarray:
    # Ball and free joints have no axis: whatever the file says of one is not read.
    axis = np.array(joint.axis if kind.has_axis else (0.0, 0.0, 1.0))
    return snapped(axis / np.linalg.norm(axis))


def _joint_parameters(
    hinges: Sequence[JointDescription], kinds: Sequence[JointType]
) -> torch.Tensor:
    """What each kind needs to know besides, joint after joint; directions snapped as axes are."""
    rows = [
        kind.parameter_values(joint.name, joint.axis, joint.data)
        for joint, kind in zip(hinges, kinds, strict=True)
    ]
    return _tensor(snapped(np.array([x for row in rows for x in row], dtype=np.float64)))


def _spring_reference(
    hinges: Sequence[JointDescription], kinds: Sequence[JointType]
) -> torch.Tensor:
    """Relaxed configuration: the file's number where q is a vector, the neutral one elsewhere."""
    values = [
        value
        for joint, kind in zip(hinges, kinds, strict=True)
        for value in ((joint.spring_reference,) * kind.num_q if kind.vector else kind.neutral())
    ]
    return _tensor(values)
