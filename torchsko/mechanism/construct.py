"""From a description to a mechanism: root it, order its joints depth first, merge what is fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchsko.algebra.topology.tree import Tree
from torchsko.errors import MechanismError
from torchsko.mechanism.checks import check_description
from torchsko.mechanism.couplings import with_rotors
from torchsko.mechanism.description import (
    FIXED,
    JointDescription,
    RobotDescription,
    UnsupportedElement,
)
from torchsko.mechanism.joints.free import Free
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.tensors import mechanism_of
from torchsko.mechanism.welded import WORLD, frames_of

ROOT_JOINT = "root_joint"
"""Name of the free joint that ``floating_base=True`` adds (Pinocchio's name for it).

Where the file has a moving joint of that name, or several roots, the root link's name is appended.
"""


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
    hinges = [joint for joint in order if joint.kind != FIXED]
    if not hinges:
        raise MechanismError(
            f"{robot.name!r} has no moving joint.",
            "A mechanism needs one degree of freedom at least.",
            "Add a joint that is not fixed"
            f"{', or pass floating_base=True (--floating-base)' * bool(robot.links)}.",
        )
    return mechanism_of(robot, hinges, frames_of(order), gravity, strict)


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


def _more_roots(
    robot: RobotDescription, joints: list[JointDescription]
) -> tuple[UnsupportedElement, ...]:
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
        UnsupportedElement(
            f"link {root!r}", f"no joint moves it: a root besides {first!r}, it {how[root]}"
        )
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
