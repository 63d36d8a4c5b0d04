"""Resolution of the couplings and rotors of a description, and the limits that they imply."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.description import (
    FIXED,
    CouplingDescription,
    Fault,
    JointDescription,
    LinkDescription,
    RotorDescription,
    SpringDescription,
    UnsupportedElement,
)
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.limit_notes import FOLLOWER_LIMITS
from torchsko.mechanism.robot_description import RobotDescription

IGNORED = "; they are ignored"
"""Report on limits of a dependent joint that leave the joint it follows no position."""

Solved = dict[str, tuple[dict[str, float], float]]
"""For each dependent joint, coefficients of independent joints by name, and an offset."""


@dataclass(frozen=True)
class Follower:
    """A dependent joint: q = sum of coefficient * q_j + offset over independent joints j.

    Attributes:
        coefficients: coefficients by index of the independent joint.
        offset: constant term [rad or m].
    """

    coefficients: Mapping[int, float]
    offset: float


def with_rotors(robot: RobotDescription) -> RobotDescription:
    """Replace each rotor by a massless link on a revolute joint coupled to the joint that it drives.

    A spring connects it to that joint if its gear is elastic.
    A rotor has only an inertia about its axis, which robot files include in the inertia of the link that
    carries it. The inertia is moved from that link to the rotor, so gyroscopic forces are included.

    Raises:
        MechanismError: on an unknown or fixed joint, an invalid ratio or inertia, or a duplicate name.
    """
    if not robot.rotors:
        return robot
    joints, links = list(robot.joints), {link.name: link for link in robot.links}
    couplings, springs = list(robot.couplings), list(robot.springs)
    by_name = {joint.name: joint for joint in robot.joints}
    for rotor in robot.rotors:
        driven = _driven(rotor, by_name, links)
        axis = np.array(driven.axis, dtype=np.float64) / np.linalg.norm(driven.axis)
        spin = rotor.inertia * np.outer(axis, axis)
        if driven.parent in links:
            links[driven.parent] = _without_rotor(links[driven.parent], driven, spin)
        links[rotor.name] = LinkDescription(rotor.name, inertia=_rows(spin))
        place = joints.index(driven) + 1
        joints.insert(
            place,
            JointDescription(
                rotor.name,
                "revolute",
                driven.parent,
                rotor.name,
                driven.rotation,
                driven.position,
                driven.axis,
                effort=0.0 if rotor.stiffness is None else math.inf,
            ),
        )
        if rotor.stiffness is None:
            couplings.append(CouplingDescription(rotor.name, {driven.name: rotor.ratio}))
        else:
            ends = rotor.name, driven.name, rotor.ratio
            springs.append(SpringDescription(*ends, rotor.stiffness, rotor.damping))
    return replace(
        robot,
        links=tuple(links.values()),
        joints=tuple(joints),
        couplings=tuple(couplings),
        springs=tuple(springs),
        rotors=(),
    )


def _driven(
    rotor: RotorDescription,
    joints: Mapping[str, JointDescription],
    links: Mapping[str, LinkDescription],
) -> JointDescription:
    if rotor.joint not in joints:
        raise MechanismError(*unknown_name("joint that a rotor drives", rotor.joint, tuple(joints)))
    if not (math.isfinite(rotor.ratio) and 0 < rotor.inertia < math.inf):
        raise MechanismError(
            f"the rotor of joint {rotor.joint!r} has ratio {rotor.ratio} and inertia {rotor.inertia}.",
            "The ratio (turns of the rotor per turn of the joint) is finite, and the inertia about the "
            "rotor's axis is positive.",
            "Pass for example ratio=100.0, inertia=1e-4.",
        )
    if rotor.name in links or rotor.name in joints:
        raise MechanismError(
            f"the rotor of joint {rotor.joint!r} would be named {rotor.name!r}, as a link or joint is.",
            "A rotor is a link named after the joint that it drives, and a joint has one rotor.",
            f"Rename {rotor.name!r}.",
        )
    return joints[rotor.joint]


def _without_rotor(
    link: LinkDescription, driven: JointDescription, spin: np.ndarray
) -> LinkDescription:
    """The link without the rotor's inertia about its axis."""
    turn, mount = np.array(link.inertia_rotation), np.array(driven.rotation)
    left = turn @ np.array(link.inertia) @ turn.T - mount @ spin @ mount.T
    return replace(link, inertia=_rows(left), inertia_rotation=_rows(np.eye(3)))


def _rows(matrix: np.ndarray) -> tuple:
    return tuple(tuple(float(x) for x in row) for row in matrix)


def followers(
    robot: RobotDescription, hinges: Sequence[JointDescription], kinds: Sequence[JointType]
) -> dict[int, Follower]:
    """Express every dependent joint, by index, in terms of independent joints.

    Raises:
        MechanismError: when a coupling names an unknown or fixed joint or one with several dofs, when a joint
            follows itself or has two couplings, or when no independent joint remains.
    """
    number = {joint.name: k for k, joint in enumerate(hinges)}
    by_joint: dict[str, CouplingDescription] = {}
    equations = []
    for coupling in robot.couplings:
        equation = _is_equation(coupling, robot)
        for name in (*(() if equation else (coupling.joint,)), *coupling.coefficients):
            _refuse_unfit(robot, name, coupling, number, kinds)
        if coupling.joint in by_joint:
            raise MechanismError(
                f"joint {coupling.joint!r} has two couplings.",
                "One coupling determines its position.",
                "Remove one of them, or make another joint the dependent one.",
            )
        numbers = (coupling.offset, *coupling.coefficients.values())
        if not all(map(math.isfinite, numbers)):
            raise MechanismError(
                f"the coupling {coupling.joint!r} has the numbers {numbers}.",
                "Coefficients and offsets are finite.",
                "Correct its coefficients or offset.",
            )
        if equation:
            equations.append(coupling)
        else:
            by_joint[coupling.joint] = coupling
    for coupling in equations:
        follower = _solve_equation(coupling, by_joint)
        by_joint[follower.joint] = follower
    solved: Solved = {}
    for name in by_joint:
        _resolve(name, by_joint, solved)
    if solved and len(solved) == len(hinges):
        raise MechanismError(
            f"every joint of {robot.name!r} is dependent: {', '.join(map(repr, solved))}.",
            "A mechanism needs at least one degree of freedom.",
            "Remove one of these couplings.",
        )
    return {
        number[name]: Follower({number[j]: c for j, c in row.items()}, offset)
        for name, (row, offset) in solved.items()
    }


def _is_equation(coupling: CouplingDescription, robot: RobotDescription) -> bool:
    """True if a coupling is an equation: no joint has its name or a similar one."""
    joints = [joint.name for joint in robot.joints]
    alone = sum(c != 0 for c in coupling.coefficients.values()) < 2
    meant = alone or difflib.get_close_matches(coupling.joint, joints, cutoff=0.8)
    return coupling.joint not in joints and not meant


def _solve_equation(
    coupling: CouplingDescription, by_joint: Mapping[str, CouplingDescription]
) -> CouplingDescription:
    """Solve the equation sum of coefficient * q_j = offset for its last independent joint."""
    solved: Solved = {}
    for j in coupling.coefficients:
        if j in by_joint:
            _resolve(j, by_joint, solved)
    row, shift = _substituted(coupling, solved)
    smallest = 1e-12 * max(map(abs, coupling.coefficients.values()))
    free = [j for j, c in row.items() if abs(c) > smallest]
    if not free:
        raise MechanismError(
            f"the coupling {coupling.joint!r} is redundant, or contradicts the other couplings.",
            "With the couplings before it, no independent joint remains in it.",
            "Remove it.",
        )
    joint = ([j for j in coupling.coefficients if j in free] or free)[-1]
    pivot = row.pop(joint)
    rest = {j: -c / pivot for j, c in row.items() if j in free}
    return CouplingDescription(joint, rest, (coupling.offset - shift) / pivot)


def _refuse_unfit(
    robot: RobotDescription,
    name: str,
    coupling: CouplingDescription,
    number: Mapping[str, int],
    kinds: Sequence[JointType],
) -> None:
    if name in number and kinds[number[name]].num_dof == kinds[number[name]].num_q == 1:
        return
    if name in number:
        k = kinds[number[name]]
        why = f"is {k.name}, with {k.num_dof} dofs and {k.num_q} coordinates"
    elif any(joint.name == name and joint.kind == FIXED for joint in robot.joints):
        why = "is fixed"
    else:
        near = ", ".join(map(repr, difflib.get_close_matches(name, number) or list(number)[:8]))
        raise MechanismError(
            f"the coupling {coupling.joint!r} names the joint {name!r}, which does not exist.",
            f"There are {len(number)} moving joints, such as {near}.",
            "Correct the name, remove the coupling, or load the file with mimic='independent'.",
        )
    raise MechanismError(
        f"the coupling {coupling.joint!r} names joint {name!r}, which {why}.",
        "Couplings need moving joints with one coordinate: revolute, prismatic, helical, or a compound "
        "joint with one motion.",
        "Correct the name, remove the coupling, or load the file with mimic='independent'.",
    )


def _resolve(
    name: str,
    by_joint: Mapping[str, CouplingDescription],
    solved: Solved,
) -> None:
    """Add the coupling of a joint to `solved`, in terms of independent joints."""
    pending = [name]
    while pending:
        top = pending[-1]
        below = [j for j in by_joint[top].coefficients if j in by_joint and j not in solved]
        if circle := [j for j in below if j in pending]:
            cycle = pending[pending.index(circle[0]) :]
            raise MechanismError(
                f"joints {' follows '.join(map(repr, [*cycle, cycle[0]]))}.",
                "Dependent joints follow independent ones, directly or through other joints.",
                "Make one of them independent.",
            )
        if below:
            pending += below[:1]
            continue
        row, shift = _substituted(by_joint[top], solved)
        solved[top] = row, by_joint[top].offset + shift
        pending.pop()


def _substituted(coupling: CouplingDescription, solved: Solved) -> tuple[dict[str, float], float]:
    """Coefficients of a coupling for independent joints, and the sum of the substituted offsets."""
    row: dict[str, float] = {}
    total = 0.0
    for j, c in coupling.coefficients.items():
        terms, shift = solved.get(j, ({j: 1.0}, 0.0))
        total += c * shift
        for i, x in terms.items():
            row[i] = row.get(i, 0.0) + c * x
    return row, total


@dataclass(frozen=True)
class Limits:
    """Limits by joint index, combined with the limits of dependent joints.

    Attributes:
        lower: lower position limits.
        upper: upper position limits.
        velocity: largest speeds.
        effort: largest forces.
        unused: limits that bound no single joint, and joints with changed limits.
        faults: ignored position limits of dependent joints, which allow no position.
    """

    lower: dict[int, float]
    upper: dict[int, float]
    velocity: dict[int, float]
    effort: dict[int, float]
    unused: tuple[UnsupportedElement, ...]
    faults: tuple[Fault, ...]


def limits(hinges: Sequence[JointDescription], following: Mapping[int, Follower]) -> Limits:
    """Combine the limits of dependent joints with those of the joints that they follow.

    Position and velocity limits of a dependent joint bound the joint that it follows. Its effort limit e adds
    |coefficient| e to that joint's, because tau = X* tau_tree. If it follows several joints, its position and
    velocity limits bound none of them alone and are reported, as are joints with changed limits. Position
    limits that allow no position are ignored and reported as a fault.
    """
    names = ("lower", "upper", "velocity", "effort")
    found = {n: {k: getattr(j, n) for k, j in enumerate(hinges)} for n in names}
    unused, faults = [], []
    for k, follower in following.items():
        joint = hinges[k]
        terms = {j: c for j, c in follower.coefficients.items() if c}
        for j, c in terms.items():
            found["effort"][j] += abs(c) * joint.effort
        bounded = any(map(math.isfinite, (joint.lower, joint.upper, joint.velocity)))
        if len(terms) > 1 and bounded:
            unused.append(
                UnsupportedElement(
                    f"limits of position and velocity of joint {joint.name!r}",
                    "it follows several joints, so its limits bound none of them alone",
                )
            )
        if len(terms) != 1:
            continue
        ((j, c),) = terms.items()
        found["velocity"][j] = min(found["velocity"][j], joint.velocity / abs(c))
        ends = sorted((x - follower.offset) / c for x in (joint.lower, joint.upper))
        low, high = max(found["lower"][j], ends[0]), min(found["upper"][j], ends[1])
        if low > high:
            faults.append(_no_position(hinges[j].name, joint.name, ends))
            continue
        found["lower"][j], found["upper"][j] = low, high
    unused += _changed_limits(hinges, found)
    return Limits(**found, unused=tuple(unused), faults=tuple(faults))


def _no_position(joint: str, follower: str, ends: Sequence[float]) -> Fault:
    """Report on position limits of a dependent joint that exclude all positions of the joint it follows."""
    return Fault(
        f"limits of position of joint {follower!r}",
        f"they allow [{ends[0]:.6g}, {ends[1]:.6g}] for joint {joint!r}, which it follows, outside of that "
        f"joint's limits{IGNORED}",
    )


def _changed_limits(
    hinges: Sequence[JointDescription], found: Mapping[str, Mapping[int, float]]
) -> list[UnsupportedElement]:
    """Notes on joints whose limits changed because of their dependent joints."""
    notes = []
    for j, hinge in enumerate(hinges):
        old = {name: getattr(hinge, name) for name in found}
        changed = [f"{name} {old[name]:.4g}" for name, new in found.items() if new[j] != old[name]]
        if changed:
            notes.append(
                UnsupportedElement(
                    f"limits of joint {hinge.name!r} in the file, {', '.join(changed)}",
                    FOLLOWER_LIMITS,
                )
            )
    return notes
