"""Couplings and rotors of a description, resolved: which joints follow which independent ones, and how."""

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
    RobotDescription,
    RotorDescription,
    UnsupportedElement,
)
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.limit_notes import LED

NOT_HELD = "; they are not held"
"""What becomes of limits of a follower that leave what it follows no position."""

Solved = dict[str, tuple[dict[str, float], float]]
"""What dependent joints follow, by name: coefficients of joints that follow none, and an offset."""


@dataclass(frozen=True)
class Follower:
    """A dependent joint: q = sum of coefficient * q_j + offset over independent joints j.

    Attributes:
        coefficients: by the number of the independent joint.
        offset: [rad or m].
    """

    coefficients: Mapping[int, float]
    offset: float


def with_rotors(robot: RobotDescription) -> RobotDescription:
    """The description with each rotor as a link of its own, on a joint coupled to the one it drives.

    A rotor is its inertia about its axis alone: its mass, and that inertia while it does not spin, belong
    to the link that carries it, as robot files have it. So they are taken from that link here, and what is
    left is the rotor as a body, gyroscopic forces included.

    Raises:
        MechanismError: on an unknown or fixed joint, a ratio or inertia that is none, or a name taken.
    """
    if not robot.rotors:
        return robot
    joints, links = list(robot.joints), {link.name: link for link in robot.links}
    couplings = list(robot.couplings)
    by_name = {joint.name: joint for joint in robot.joints}
    for rotor in robot.rotors:
        driven = _driven(rotor, by_name, links)
        axis = np.array(driven.axis, dtype=np.float64) / np.linalg.norm(driven.axis)
        spin = rotor.inertia * np.outer(axis, axis)
        if driven.parent in links:
            links[driven.parent] = _lightened(links[driven.parent], driven, spin)
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
                effort=0.0,
            ),
        )
        couplings.append(CouplingDescription(rotor.name, {driven.name: rotor.ratio}))
    return replace(
        robot,
        links=tuple(links.values()),
        joints=tuple(joints),
        couplings=tuple(couplings),
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
            "The ratio is a finite number, turns of the rotor per turn of the joint; the inertia, about "
            "the rotor's axis, is positive.",
            "Pass ratio=100.0, inertia=1e-4, say.",
        )
    if rotor.name in links or rotor.name in joints:
        raise MechanismError(
            f"the rotor of joint {rotor.joint!r} would be named {rotor.name!r}, and a link or joint is.",
            "A rotor is a body of its own, named after its joint.",
            "A joint has one rotor; rename what has its name.",
        )
    return joints[rotor.joint]


def _lightened(
    link: LinkDescription, driven: JointDescription, spin: np.ndarray
) -> LinkDescription:
    """The link without the inertia of the rotor about its axis."""
    turn, mount = np.array(link.inertia_rotation), np.array(driven.rotation)
    left = turn @ np.array(link.inertia) @ turn.T - mount @ spin @ mount.T
    return replace(link, inertia=_rows(left), inertia_rotation=_rows(np.eye(3)))


def _rows(matrix: np.ndarray) -> tuple:
    return tuple(tuple(float(x) for x in row) for row in matrix)


def followers(
    robot: RobotDescription, hinges: Sequence[JointDescription], kinds: Sequence[JointType]
) -> dict[int, Follower]:
    """The dependent joints by number, couplings of couplings resolved.

    Raises:
        MechanismError: when a coupling names an unknown or fixed joint, or one of several dofs, when a joint
            follows itself, in a circle, or by two couplings, or when none is left to move; names them.
    """
    number = {joint.name: k for k, joint in enumerate(hinges)}
    given: dict[str, CouplingDescription] = {}
    equations = []
    for coupling in robot.couplings:
        equation = _is_equation(coupling, robot)
        for name in (*(() if equation else (coupling.joint,)), *coupling.coefficients):
            _refuse_unfit(robot, name, coupling, number, kinds)
        if coupling.joint in given:
            raise MechanismError(
                f"joint {coupling.joint!r} follows others by two couplings.",
                "One says where it is.",
                "Leave one of them out, or make another joint the dependent one.",
            )
        numbers = (coupling.offset, *coupling.coefficients.values())
        if not all(map(math.isfinite, numbers)):
            raise MechanismError(
                f"the coupling {coupling.joint!r} has the numbers {numbers}.",
                "Every number of a robot is finite.",
                "Correct its coefficients or offset.",
            )
        if equation:
            equations.append(coupling)
        else:
            given[coupling.joint] = coupling
    for coupling in equations:
        follower = _solved_for_one(coupling, given)
        given[follower.joint] = follower
    solved: Solved = {}
    for name in given:
        _solve(name, given, solved)
    if solved and len(solved) == len(hinges):
        raise MechanismError(
            f"couplings hold every joint of {robot.name!r}: {', '.join(map(repr, solved))}.",
            "A mechanism needs one degree of freedom at least.",
            "Leave one of these couplings out.",
        )
    return {
        number[name]: Follower({number[j]: c for j, c in row.items()}, offset)
        for name, (row, offset) in solved.items()
    }


def _is_equation(coupling: CouplingDescription, robot: RobotDescription) -> bool:
    """Whether a coupling's name is its own, and no joint's, nor nearly one's."""
    joints = [joint.name for joint in robot.joints]
    alone = sum(c != 0 for c in coupling.coefficients.values()) < 2
    meant = alone or difflib.get_close_matches(coupling.joint, joints, cutoff=0.8)
    return coupling.joint not in joints and not meant


def _solved_for_one(
    coupling: CouplingDescription, given: Mapping[str, CouplingDescription]
) -> CouplingDescription:
    """The equation sum of coefficient * q_j = offset, solved for the last of its joints that is free."""
    solved: Solved = {}
    for j in coupling.coefficients:
        if j in given:
            _solve(j, given, solved)
    row, shift = _substituted(coupling, solved)
    smallest = 1e-12 * max(map(abs, coupling.coefficients.values()))
    free = [j for j, c in row.items() if abs(c) > smallest]
    if not free:
        raise MechanismError(
            f"the coupling {coupling.joint!r} says nothing, or what contradicts the others.",
            "With the couplings before it no joint is left in it.",
            "Leave it out.",
        )
    own = [j for j in coupling.coefficients if j in free] or free
    pivot = row.pop(own[-1])
    rest = {j: -c / pivot for j, c in row.items() if j in free}
    return CouplingDescription(own[-1], rest, (coupling.offset - shift) / pivot)


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
            f"the coupling {coupling.joint!r} names the joint {name!r}, which is not there.",
            f"There are {len(number)} moving joints, among them: {near}.",
            "Correct the name, leave the coupling out, or load the file with mimic='independent'.",
        )
    raise MechanismError(
        f"the coupling {coupling.joint!r} names joint {name!r}, which {why}.",
        "Couplings join joints that move and have one coordinate: revolute, prismatic, helical, or a "
        "compound of one motion.",
        "Correct the name, leave the coupling out, or load the file with mimic='independent'.",
    )


def _solve(
    name: str,
    given: Mapping[str, CouplingDescription],
    solved: Solved,
) -> None:
    """Put what a joint follows into `solved`, in terms of joints that follow none."""
    pending = [name]
    while pending:
        top = pending[-1]
        below = [j for j in given[top].coefficients if j in given and j not in solved]
        if circle := [j for j in below if j in pending]:
            cycle = pending[pending.index(circle[0]) :]
            raise MechanismError(
                f"joints {' follows '.join(map(repr, [*cycle, cycle[0]]))}.",
                "What follows is given by what does not, in the end.",
                "Make one of them independent.",
            )
        if below:
            pending += below[:1]
            continue
        row, shift = _substituted(given[top], solved)
        solved[top] = row, given[top].offset + shift
        pending.pop()


def _substituted(coupling: CouplingDescription, solved: Solved) -> tuple[dict[str, float], float]:
    """The sum of a coupling in joints that follow none, and what their couplings' offsets add to it."""
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
    """Limits of the independent joints, with what the dependent ones allow; by joint number.

    Attributes:
        lower: of position.
        upper: of position.
        velocity: largest.
        effort: largest.
        unused: limits that bound no joint alone, and joints whose limits are not their own.
        faults: limits of position that leave the joint followed none, and do not bound it.
    """

    lower: dict[int, float]
    upper: dict[int, float]
    velocity: dict[int, float]
    effort: dict[int, float]
    unused: tuple[UnsupportedElement, ...]
    faults: tuple[Fault, ...]


def limits(hinges: Sequence[JointDescription], following: Mapping[int, Follower]) -> Limits:
    """Limits of the joints, those of followers handed to what they follow.

    A follower's position and velocity limits bound the one joint that it follows; its effort e adds
    |coefficient| e to what acts on each joint that it follows, as tau = X* tau_tree says. Where it follows
    several, its limits of position and velocity bound none of them alone, and are reported; so is a joint
    whose limits are then not its own. Limits that leave no position are a fault: those of the follower do not
    bound then.
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
                    "it follows several joints, and bounds none of them alone",
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
    unused += _tightened(hinges, found)
    return Limits(**found, unused=tuple(unused), faults=tuple(faults))


def _no_position(joint: str, follower: str, ends: Sequence[float]) -> Fault:
    """Limits of a follower that none of the positions of what it follows is within."""
    return Fault(
        f"limits of position of joint {follower!r}",
        f"they allow joint {joint!r}, which it follows, [{ends[0]:.6g}, {ends[1]:.6g}] only, where it has "
        f"no position{NOT_HELD}",
    )


def _tightened(
    hinges: Sequence[JointDescription], found: Mapping[str, Mapping[int, float]]
) -> list[UnsupportedElement]:
    """Joints whose limits are not their own, for the sake of others that follow them."""
    notes = []
    for j, hinge in enumerate(hinges):
        own = {name: getattr(hinge, name) for name in found}
        told = [f"{name} {own[name]:.4g}" for name, new in found.items() if new[j] != own[name]]
        if told:
            notes.append(
                UnsupportedElement(f"limits of joint {hinge.name!r} alone, {', '.join(told)}", LED)
            )
    return notes
