"""Mechanism from a description: add root joints, order joints depth first, merge fixed links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchsko.algebra.topology.tree import Tree
from torchsko.errors import MechanismError
from torchsko.mechanism.checks import check_description
from torchsko.mechanism.couplings import with_rotors
from torchsko.mechanism.description import FIXED, JointDescription, UnsupportedElement
from torchsko.mechanism.joints.free import Free
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.robot_description import RobotDescription
from torchsko.mechanism.tensors import mechanism_of
from torchsko.mechanism.welded import WORLD, frames_of

ROOT_JOINT = "root_joint"
"""Name of the free joint added by ``floating_base=True``, as in Pinocchio.

The root link's name is appended if a moving joint has this name, or if there are several roots.
"""


def lower(
    robot: RobotDescription, floating_base: bool, gravity: Sequence[float], strict: bool
) -> Mechanism:
    """Build the mechanism of a description, in float64 on the CPU, without `torchsko.mark_singular_joints`.

    Unphysical inertias are refused if `strict`, and reported otherwise.

    Raises:
        MechanismError: on an unphysical parameter, an unknown link, or a robot without moving joints.
        TreeError: when the joints do not form a tree.
    """
    faults = check_description(robot, (WORLD,), strict)
    robot = with_rotors(replace(robot, report=robot.report + faults))
    joints = _rooted(robot, floating_base)
    robot = replace(robot, unused=robot.unused + _more_roots(robot, joints))
    names = [WORLD, *(link.name for link in robot.links)]
    Tree.from_edges([(j.parent, j.child) for j in joints], names)  # raises unless it is a tree
    order = _depth_first(joints)
    hinges = [joint for joint in order if joint.kind != FIXED]
    if not hinges:
        raise MechanismError(
            f"{robot.name!r} has no moving joint.",
            "A mechanism needs at least one degree of freedom.",
            "Add a moving joint"
            f"{', or pass floating_base=True (--floating-base)' * bool(robot.links)}.",
        )
    return mechanism_of(robot, hinges, frames_of(order), gravity, strict)


def _rooted(robot: RobotDescription, floating_base: bool) -> list[JointDescription]:
    """The joints, and one root joint for each link without a parent joint."""
    names = {joint.name for joint in robot.joints if joint.kind != FIXED}
    roots, idle = _roots(robot), _idle(robot)
    added = []
    for root in roots:
        name = f"{ROOT_JOINT}_{root}" if len(roots) > 1 or ROOT_JOINT in names else ROOT_JOINT
        while name in names:
            name += "_"
        names.add(name)
        # A massless link on a free joint would make forward dynamics singular.
        floats = floating_base and not (len(roots) > 1 and root in idle)
        kind = Free.name if floats else FIXED
        added.append(JointDescription(name, kind, WORLD, root))
    return [*added, *robot.joints]


def _roots(robot: RobotDescription) -> list[str]:
    """Links without a parent joint, in file order."""
    moved = {joint.child for joint in robot.joints}
    return [link.name for link in robot.links if link.name not in moved]


def _idle(robot: RobotDescription) -> set[str]:
    """Massless links without child joints."""
    carrying = {joint.parent for joint in robot.joints}
    return {
        link.name
        for link in robot.links
        if link.name not in carrying and not link.mass and not np.any(link.inertia)
    }


def _more_roots(
    robot: RobotDescription, joints: list[JointDescription]
) -> tuple[UnsupportedElement, ...]:
    """Notes on all root links but the first."""
    first, *further = _roots(robot) or [""]
    how = {
        joint.child: f"has the free joint {joint.name!r}"
        if joint.kind == Free.name
        else "is welded to the inertial frame"
        for joint in joints
        if joint.parent == WORLD
    }
    return tuple(
        UnsupportedElement(
            f"link {root!r}",
            f"a further root besides {first!r}, without a parent joint: it {how[root]}",
        )
        for root in further
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
