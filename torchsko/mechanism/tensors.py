"""Tensors of a mechanism from a description whose joints are rooted and ordered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism import couplings
from torchsko.mechanism.closed_chains.embedded_nodes import with_loops
from torchsko.mechanism.couplings import IGNORED, Follower, followers
from torchsko.mechanism.description import (
    STILL,
    JointDescription,
    SpringDescription,
    UnsupportedElement,
)
from torchsko.mechanism.fields import FIELDS
from torchsko.mechanism.file_data.file_metadata import FileMetadata
from torchsko.mechanism.geometry import Geometry
from torchsko.mechanism.joints.free import Free
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.joints.registry import joint_type
from torchsko.mechanism.limit_notes import Limits, limit_notes
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.robot_description import RobotDescription
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
    """Build the mechanism whose body k is moved by joint ``hinges[k]``.

    Args:
        robot: description without rotors.
        hinges: moving joints, depth first.
        frames: placement of each link and of the inertial frame.
        gravity: gravity [m/s^2].
        strict: whether to refuse limits that allow no position; otherwise they are reported.

    Raises:
        MechanismError: on such limits, an invalid coupling, or an unknown joint type.
    """
    kinds = tuple(joint_type(joint.kind).specialize(joint.name, joint.data) for joint in hinges)
    following = followers(robot, hinges, kinds)
    names = [joint.name for joint in hinges]
    _refuse_springs(robot.springs, dict(zip(names, kinds, strict=True)))
    sprung = {joint for spring in robot.springs for joint in (spring.joint_a, spring.joint_b)}
    kinds = tuple(
        replace(kind, elastic=True) if name in sprung else kind
        for name, kind in zip(names, kinds, strict=True)
    )
    leaders = [names.index(joint.leader or joint.name) for joint in hinges]
    independent = [k for k in dict.fromkeys(leaders) if k not in following]
    allowed = couplings.limits(hinges, following)
    if strict:
        _refuse_faults(allowed)
    number = {joint.child: k for k, joint in enumerate(hinges)}
    placed = [compose(frames[joint.parent], joint) for joint in hinges]
    followed = {k: row.coefficients for k, row in following.items()}
    mech = Mechanism(
        name=robot.name,
        gravity=_tensor(gravity),
        **_of_fluid(),
        **_of_bodies(robot, hinges, frames),
        **_of_joints(hinges, kinds, placed),
        **_of_losses_and_springs(hinges, kinds, list(dict.fromkeys(leaders)), robot.springs),
        modal_stiffness=_modal(hinges, kinds, robot.springs, "stiffness"),
        modal_damping=_modal(hinges, kinds, robot.springs, "damping"),
        **_of_couplings(following),
        **_of_limits(allowed, kinds, independent),
        **_of_frames(frames, number),
        **skeleton(list(number), _carriers(placed, number), kinds, followed, leaders),
        unused=robot.unused + _still(robot, frames) + limit_notes(_limits(hinges)) + allowed.unused,
        report=robot.report + allowed.faults,
        file_metadata=FileMetadata(
            closures=robot.closures,
            initial=_initial(robot, hinges, kinds, independent),
            links=robot.links,
        ),
        geometry=robot.geometry or Geometry(),
    )
    return with_loops(mech)


def _refuse_faults(allowed: couplings.Limits) -> None:
    if allowed.faults:
        raise MechanismError(
            f"{str(allowed.faults[0]).removesuffix(IGNORED)}.",
            "Limits of a joint and of its dependent joints apply together.",
            "Correct the limits, the coefficient or the offset.",
        )


def _of_bodies(
    robot: RobotDescription, hinges: Sequence[JointDescription], frames: Mapping[str, Frame]
) -> dict[str, Any]:
    """Inertial parameters of bodies, including the links welded to them."""
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
    """Placements, axes and parameters of joints."""
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
    hinges: Sequence[JointDescription],
    kinds: Sequence[JointType],
    leaders: Sequence[int],
    springs: Sequence[SpringDescription],
) -> dict[str, Any]:
    """Damping, friction, armature and springs; zero in fields of dofs that a description lacks."""
    hinges, kinds = [hinges[k] for k in leaders], [kinds[k] for k in leaders]
    each = [joint for joint, kind in zip(hinges, kinds, strict=True) for _ in range(kind.num_dof)]
    fields = ("damping", "friction", "armature", "stiffness")
    of_dofs = {name: field.shape[1:] for name, field in FIELDS.items() if field.owner == "dof"}
    return {
        **{name: _zeros(len(each), *shape) for name, shape in of_dofs.items()},
        **{field: _tensor([getattr(joint, field) for joint in each]) for field in fields},
        "spring_reference": _spring_reference(hinges, kinds),
        "has_armature": any(joint.armature != 0.0 for joint in hinges),
        "has_losses": any(j.damping or j.friction or np.any(j.modal_damping) for j in hinges)
        or any(spring.damping for spring in springs),
    }


def _of_fluid() -> dict[str, torch.Tensor]:
    """The vacuum, without shapes."""
    shapes = {"rotation": (3, 3), "position": (3,), "size": (3,), "coefficients": (12,)}
    empty = {f"fluid_{name}": _zeros(0, *shape) for name, shape in shapes.items()}
    return {"medium": _zeros(2), "wind": _zeros(3), **empty}


def _of_couplings(following: Mapping[int, Follower]) -> dict[str, Any]:
    """Coefficients and offsets of couplings, in the order of the dependent joints."""
    rows = [following[k] for k in sorted(following)]
    return {
        "coupling_ratio": _tensor([c for row in rows for c in row.coefficients.values()]),
        "coupling_offset": _tensor([row.offset for row in rows]),
    }


def _of_limits(
    allowed: couplings.Limits, kinds: Sequence[JointType], independent: Sequence[int]
) -> dict[str, Any]:
    """Limits of the independent joints: positions for each coordinate, speeds and forces for each dof."""
    per_q = [k for k in independent for _ in range(kinds[k].num_q)]
    per_dof = [k for k in independent for _ in range(kinds[k].num_dof)]
    return {
        "lower": _tensor([allowed.lower[k] for k in per_q]),
        "upper": _tensor([allowed.upper[k] for k in per_q]),
        "velocity_limit": _tensor([allowed.velocity[k] for k in per_dof]),
        "effort_limit": _tensor([allowed.effort[k] for k in per_dof]),
    }


def _of_frames(frames: Mapping[str, Frame], number: Mapping[str, int]) -> dict[str, Any]:
    """Names, bodies and placements of the frames of all links."""
    named = {name: frame for name, frame in frames.items() if name != WORLD}
    return {
        "frame_names": tuple(named),
        "frame_body": tuple(_carriers(named.values(), number)),
        "frame_rotation": _tensor([frame.rotation for frame in named.values()]),
        "frame_position": _tensor([frame.position for frame in named.values()]),
    }


def _carriers(frames: Iterable[Frame], number: Mapping[str, int]) -> list[int]:
    """Indices of the bodies of frames; -1 for the inertial frame."""
    return [-1 if frame.carrier is None else number[frame.carrier] for frame in frames]


def _zeros(*shape: Any) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def _tensor(values: Sequence[Any] | np.ndarray) -> torch.Tensor:
    return torch.tensor(np.array(values, dtype=np.float64))


def _limits(hinges: Sequence[JointDescription]) -> list[Limits]:
    return [Limits(j.name, j.lower, j.upper, j.velocity, j.effort) for j in hinges]


def _modal(
    hinges: Sequence[JointDescription],
    kinds: Sequence[JointType],
    springs: Sequence[SpringDescription],
    field: str,
) -> torch.Tensor:
    """Stiffness or damping matrix of the modal coordinates and of the joints of springs."""
    blocks, start = {}, 0
    for joint, kind in zip(hinges, kinds, strict=True):
        if kind.elastic and not joint.leader:
            blocks[joint.name] = start
            start += kind.num_dof
    matrix = np.zeros((start, start))
    for joint in hinges:
        if rows := getattr(joint, f"modal_{field}"):
            at = slice(blocks[joint.name], blocks[joint.name] + len(rows))
            matrix[at, at] = rows
    for spring in springs:
        row = np.zeros(start)
        row[blocks[spring.joint_a]], row[blocks[spring.joint_b]] = 1 / spring.ratio, -1.0
        matrix += getattr(spring, field) * np.outer(row, row)
    return _tensor(matrix)


def _refuse_springs(springs: Sequence[SpringDescription], kinds: Mapping[str, JointType]) -> None:
    """Refuse springs between unknown joints, or joints of several coordinates, and unphysical numbers."""
    for spring in springs:
        for name in (spring.joint_a, spring.joint_b):
            if name not in kinds:
                raise MechanismError(*unknown_name("joint of a spring", name, tuple(kinds)))
            if not kinds[name].num_q == kinds[name].num_dof == 1:
                raise MechanismError(
                    f"a spring acts on joint {name!r}, which is {kinds[name].name}.",
                    "Springs connect joints with one coordinate.",
                    "Use revolute or prismatic joints.",
                )
        numbers = spring.ratio, spring.stiffness, spring.damping
        if not (spring.ratio and np.isfinite(numbers).all() and min(numbers[1:]) >= 0):
            raise MechanismError(
                f"the spring of {spring.joint_a!r} and {spring.joint_b!r} has ratio {spring.ratio}, "
                f"stiffness {spring.stiffness} and damping {spring.damping}.",
                "Stiffness and damping are nonnegative, and the ratio is not zero.",
                "Pass for example ratio=100.0, stiffness=1e3, damping=1.0.",
            )


def _initial(
    robot: RobotDescription,
    hinges: Sequence[JointDescription],
    kinds: Sequence[JointType],
    independent: Sequence[int],
) -> torch.Tensor | None:
    """Initial configuration with the file's poses of floating links; None if it is the neutral one."""
    places, parts, neutral = dict(robot.starts), [], []
    for k in independent:
        joint, zero = hinges[k], kinds[k].neutral()
        floats = joint.kind == Free.name and joint.parent == WORLD
        parts += places.get(joint.child, zero) if floats else zero
        neutral += zero
    return None if parts == neutral else _tensor(parts)


def _still(robot: RobotDescription, frames: Mapping[str, Frame]) -> tuple[UnsupportedElement, ...]:
    """Notes on inertias of links fixed to the inertial frame."""
    return tuple(
        UnsupportedElement(f"link {link.name!r} <inertial>", STILL, fixed_inertia=True)
        for link in robot.links
        if frames[link.name].carrier is None and (link.mass or np.any(link.inertia))
    )


def _unit_axis(joint: JointDescription, kind: JointType) -> np.ndarray:
    # The axis of ball and free joints is ignored.
    axis = np.array(joint.axis if kind.has_axis else (0.0, 0.0, 1.0))
    return snapped(axis / np.linalg.norm(axis))


def _joint_parameters(
    hinges: Sequence[JointDescription], kinds: Sequence[JointType]
) -> torch.Tensor:
    """Parameters of joint types, joint after joint, with snapped directions."""
    rows = [
        kind.parameter_values(joint.name, joint.axis, joint.data)
        for joint, kind in zip(hinges, kinds, strict=True)
    ]
    return _tensor(snapped(np.array([x for row in rows for x in row], dtype=np.float64)))


def _spring_reference(
    hinges: Sequence[JointDescription], kinds: Sequence[JointType]
) -> torch.Tensor:
    """Relaxed configuration: the description's value for vector coordinates, else the neutral one."""
    values = [
        value
        for joint, kind in zip(hinges, kinds, strict=True)
        for value in ((joint.spring_reference,) * kind.num_q if kind.vector else kind.neutral())
    ]
    return _tensor(values)
