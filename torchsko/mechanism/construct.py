"""From a description to tensors: root it, merge fixed joints, order bodies depth first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from torchsko.algebra.topology.tree import Tree
from torchsko.errors import MechanismError
from torchsko.mechanism.checks import check_description
from torchsko.mechanism.couplings import NOT_HELD, followers, limits, with_rotors
from torchsko.mechanism.description import (
    FIXED,
    STILL,
    JointDescription,
    LinkDescription,
    RobotDescription,
    Unused,
)
from torchsko.mechanism.geometry import Geometry
from torchsko.mechanism.joints.free import Free
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.joints.registry import joint_type
from torchsko.mechanism.kept import Kept
from torchsko.mechanism.limit_notes import Limits, limit_notes
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.skeleton import skeleton

ROOT_JOINT = "root_joint"
"""Name of the free joint that ``floating_base=True`` adds (Pinocchio's name for it).

Where the file has a moving joint of that name, or several roots, the root link's name is appended.
"""

WORLD = "<inertial frame>"
"""Stands for the inertial frame among link names."""

SNAP = 1e-14
"""Entries of a rotation this close to 0 or +-1 are meant to be exactly that."""


@dataclass(frozen=True)
class Frame:
    """Where a link is: on which moving link (None: the inertial frame), and how."""

    carrier: str | None
    rotation: np.ndarray
    position: np.ndarray


def lower(
    robot: RobotDescription, floating_base: bool, gravity: Sequence[float], strict: bool
) -> Mechanism:
    """The mechanism of a description, in float64 on the CPU; hinges not yet checked.

    Inertias that no rigid body has are refused when `strict`, and in its report otherwise.

    Raises:
        MechanismError: on a parameter that is not physical, an unknown link, or nothing that moves.
        TreeError: when the joints are no tree.
    """
    faults = check_description(robot, (WORLD,), strict)
    robot = with_rotors(replace(robot, report=robot.report + faults))
    joints = _rooted(robot, floating_base)
    robot = replace(robot, unused=robot.unused + _more_roots(robot, joints))
    names = [WORLD, *(link.name for link in robot.links)]
    Tree.from_edges([(j.parent, j.child) for j in joints], names)  # refuses what is no tree
    order = _depth_first(joints)
    frames = _frames(order)
    hinges = [joint for joint in order if joint.kind != FIXED]
    if not hinges:
        raise MechanismError(
            f"{robot.name!r} has no moving joint.\n"
            "A mechanism needs one degree of freedom at least.\n"
            "Add a joint that is not fixed"
            f"{', or pass floating_base=True (--floating-base)' * bool(robot.links)}."
        )
    return _tensors(robot, hinges, frames, gravity, strict)


def _rooted(robot: RobotDescription, floating_base: bool) -> list[JointDescription]:
    """The joints, with one more for each link that none of them moves."""
    taken = {joint.name for joint in robot.joints if joint.kind != FIXED}
    roots, idle = _roots(robot), _idle(robot)
    added = []
    for root in roots:
        name = f"{ROOT_JOINT}_{root}" if len(roots) > 1 or ROOT_JOINT in taken else ROOT_JOINT
        while name in taken:
            name += "_"
        taken.add(name)
        # A stray frame without mass has no motion: afloat, it would leave forward dynamics undefined.
        floats = floating_base and not (len(roots) > 1 and root in idle)
        kind = Free.name if floats else FIXED
        added.append(JointDescription(name, kind, WORLD, root))
    return [*added, *robot.joints]


def _roots(robot: RobotDescription) -> list[str]:
    """Links that no joint moves, in file order."""
    moved = {joint.child for joint in robot.joints}
    return [link.name for link in robot.links if link.name not in moved]


def _idle(robot: RobotDescription) -> set[str]:
    """Links that have no mass, and that no joint hangs on."""
    carrying = {joint.parent for joint in robot.joints}
    return {
        link.name
        for link in robot.links
        if link.name not in carrying and not link.mass and not np.any(link.inertia)
    }


def _more_roots(robot: RobotDescription, joints: list[JointDescription]) -> tuple[Unused, ...]:
    """What became of all roots but the first."""
    first, *others = _roots(robot) or [""]
    how = {
        joint.child: f"hangs on a free joint of its own, {joint.name!r}"
        if joint.kind == Free.name
        else "is welded to the inertial frame"
        for joint in joints
        if joint.parent == WORLD
    }
    return tuple(
        Unused(f"link {root!r}", f"no joint moves it: a root besides {first!r}, it {how[root]}")
        for root in others
    )


def _depth_first(joints: list[JointDescription]) -> list[JointDescription]:
    """Joints from the inertial frame outward, siblings in file order."""
    children: dict[str, list[JointDescription]] = {}
    for joint in joints:
        children.setdefault(joint.parent, []).append(joint)
    order: list[JointDescription] = []
    pending = children.get(WORLD, [])[::-1]
    while pending:
        joint = pending.pop()
        order.append(joint)
        pending += children.get(joint.child, [])[::-1]
    return order


def _frames(order: list[JointDescription]) -> dict[str, Frame]:
    frames = {WORLD: Frame(None, np.eye(3), np.zeros(3))}
    for joint in order:
        if joint.kind == FIXED:
            frames[joint.child] = _compose(frames[joint.parent], joint)
        else:
            frames[joint.child] = Frame(joint.child, np.eye(3), np.zeros(3))
    return frames


def _compose(parent: Frame, joint: JointDescription) -> Frame:
    rotation = _snap(parent.rotation @ _rotation(joint.rotation))
    position = parent.position + parent.rotation @ np.array(joint.position)
    return Frame(parent.carrier, rotation, position)


def _rotation(rows: Sequence[Sequence[float]]) -> np.ndarray:
    return _snap(np.array(rows, dtype=np.float64))


def _snap(matrix: np.ndarray) -> np.ndarray:
    """Entries within SNAP of 0 and +-1 made exactly so: they then vanish from traced programs."""
    near = np.round(matrix)
    return np.where(np.abs(matrix - near) <= SNAP, near + 0.0, matrix)


def _welded(frames: dict[str, Frame]) -> dict[str | None, list[str]]:
    """Names of the links on each carrier, in order."""
    found: dict[str | None, list[str]] = {}
    for name, frame in frames.items():
        found.setdefault(frame.carrier, []).append(name)
    return found


def lump(
    welded: list[str], frames: dict[str, Frame], links: dict[str, LinkDescription]
) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass, centre of mass and inertia about it, of a body: of all links welded to its carrier."""
    masses, coms, inertias = [], [], []
    for name in welded:
        link, frame = links[name], frames[name]
        turn = frame.rotation @ _rotation(link.inertia_rotation)
        masses.append(link.mass)
        coms.append(frame.position + frame.rotation @ np.array(link.com))
        inertias.append(turn @ np.array(link.inertia) @ turn.T)
    mass = sum(masses)
    if len(masses) == 1 or mass == 0:
        return mass, coms[0], np.sum(inertias, axis=0)
    com = np.average(coms, axis=0, weights=masses)
    arms = coms - com
    spread = [
        m * (arm @ arm * np.eye(3) - np.outer(arm, arm))
        for m, arm in zip(masses, arms, strict=True)
    ]
    return mass, com, np.sum(inertias, axis=0) + np.sum(spread, axis=0)


def _compensated(
    welded: list[str], frames: dict[str, Frame], links: dict[str, LinkDescription]
) -> np.ndarray:
    """The share of weight that is compensated, of all links welded to a carrier, and the moment besides."""
    own = [links[name] for name in welded if links[name].mass]
    if len({link.gravcomp for link in own}) < 2:
        return np.array([own[0].gravcomp if own else 0.0, 0.0, 0.0, 0.0])
    masses = np.array([link.mass for link in own])
    lifted = masses * [link.gravcomp for link in own]
    coms = [frames[x.name].position + frames[x.name].rotation @ np.array(x.com) for x in own]
    share = lifted.sum() / masses.sum()
    return np.array([share, *(lifted - share * masses) @ coms])


def _tensors(
    robot: RobotDescription,
    hinges: list[JointDescription],
    frames: dict[str, Frame],
    gravity: Sequence[float],
    strict: bool,
) -> Mechanism:
    number = {joint.child: k for k, joint in enumerate(hinges)}
    placed = [_compose(frames[joint.parent], joint) for joint in hinges]
    links = {link.name: link for link in robot.links}
    welded = _welded(frames)
    lumps = [lump(welded[joint.child], frames, links) for joint in hinges]
    kinds = tuple(joint_type(joint.kind).specialised(joint.name, joint.data) for joint in hinges)
    parents = [-1 if frame.carrier is None else number[frame.carrier] for frame in placed]
    q_sizes, dof_sizes = [kind.num_q for kind in kinds], [kind.num_dof for kind in kinds]
    named = {name: frame for name, frame in frames.items() if name != WORLD}

    def tensor(values: Sequence) -> torch.Tensor:
        return torch.tensor(np.array(values, dtype=np.float64))

    def per(sizes: list[int], field: str) -> torch.Tensor:
        rows = zip(hinges, sizes, strict=True)
        return tensor([getattr(joint, field) for joint, size in rows for _ in range(size)])

    axes = [_unit_axis(joint, kind) for joint, kind in zip(hinges, kinds, strict=True)]
    following = followers(robot, hinges, kinds)
    own = [k for k in range(len(hinges)) if k not in following]
    allowed = limits(hinges, following)
    if strict and allowed.faults:
        raise MechanismError(
            f"{str(allowed.faults[0]).removesuffix(NOT_HELD)}.\n"
            "The limits of a joint and of those that follow it hold together.\n"
            "Correct the limits, the coefficient or the offset."
        )
    has_armature = any(joint.armature != 0.0 for joint in hinges)
    return Mechanism(
        name=robot.name,
        body_names=tuple(number),
        tree_joint_names=tuple(joint.name for joint in hinges),
        frame_names=tuple(named),
        frame_body=tuple(
            -1 if frame.carrier is None else number[frame.carrier] for frame in named.values()
        ),
        mass=tensor([mass for mass, _, _ in lumps]),
        com=tensor([com for _, com, _ in lumps]),
        inertia=tensor([inertia for _, _, inertia in lumps]),
        gravcomp=tensor([_compensated(welded[j.child], frames, links) for j in hinges]),
        joint_rotation=tensor([frame.rotation for frame in placed]),
        joint_position=tensor([frame.position for frame in placed]),
        axis=tensor([_snap(axis) for axis in axes]),
        joint_parameters=_joint_parameters(hinges, kinds),
        coupling_ratio=tensor(
            [c for k in sorted(following) for c in following[k].coefficients.values()]
        ),
        coupling_offset=tensor([following[k].offset for k in sorted(following)]),
        damping=per(dof_sizes, "damping"),
        higher_damping=torch.zeros(sum(dof_sizes), 2, dtype=torch.float64),
        friction=per(dof_sizes, "friction"),
        armature=per(dof_sizes, "armature"),
        stiffness=per(dof_sizes, "stiffness"),
        spring_reference=_spring_reference(hinges, kinds),
        gravity=tensor(gravity),
        lower=tensor([allowed.lower[k] for k in own for _ in range(q_sizes[k])]),
        upper=tensor([allowed.upper[k] for k in own for _ in range(q_sizes[k])]),
        velocity_limit=tensor([allowed.velocity[k] for k in own for _ in range(dof_sizes[k])]),
        effort_limit=tensor([allowed.effort[k] for k in own for _ in range(dof_sizes[k])]),
        frame_rotation=tensor([frame.rotation for frame in named.values()]),
        frame_position=tensor([frame.position for frame in named.values()]),
        **skeleton(
            list(number), parents, kinds, {k: row.coefficients for k, row in following.items()}
        ),
        has_armature=has_armature,
        has_losses=any(joint.damping != 0.0 or joint.friction != 0.0 for joint in hinges),
        has_gravcomp=any(links[n].gravcomp for j in hinges for n in welded[j.child]),
        aligned=all(sorted(map(abs, _snap(axis))) == [0.0, 0.0, 1.0] for axis in axes),
        unused=robot.unused + _still(robot, frames) + limit_notes(_limits(hinges)) + allowed.unused,
        report=robot.report + allowed.faults,
        kept=Kept(closures=robot.closures, initial=_start(robot, hinges, kinds, own)),
        geometry=robot.geometry or Geometry(),
    )


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
    return None if parts == neutral else torch.tensor(parts, dtype=torch.float64)


def _still(robot: RobotDescription, frames: dict[str, Frame]) -> tuple[Unused, ...]:
    """Inertias that no equation of motion holds: those of links that do not move."""
    return tuple(
        Unused(f"link {link.name!r} <inertial>", STILL, held=True)
        for link in robot.links
        if frames[link.name].carrier is None and (link.mass or np.any(link.inertia))
    )


def _unit_axis(joint: JointDescription, kind: JointType) -> np.ndarray:
    # Ball and free joints have no axis: whatever the file says of one is not read.
    axis = np.array(joint.axis if kind.has_axis else (0.0, 0.0, 1.0))
    return axis / np.linalg.norm(axis)


def _joint_parameters(hinges: list[JointDescription], kinds: Sequence[JointType]) -> torch.Tensor:
    """What each kind needs to know besides, joint after joint; directions snapped as axes are."""
    rows = [
        kind.values(joint.name, joint.axis, joint.data)
        for joint, kind in zip(hinges, kinds, strict=True)
    ]
    return torch.tensor(_snap(np.array([x for row in rows for x in row], dtype=np.float64)))


def _spring_reference(hinges: list[JointDescription], kinds: Sequence[JointType]) -> torch.Tensor:
    """Relaxed configuration: the file's number where q is a vector, the neutral one elsewhere."""
    values = [
        value
        for joint, kind in zip(hinges, kinds, strict=True)
        for value in ((joint.spring_reference,) * kind.num_q if kind.vector else kind.neutral())
    ]
    return torch.tensor(values, dtype=torch.float64)
