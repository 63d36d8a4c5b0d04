"""What a robot file says, before any tensor exists: links, joints, and what was left unused.

Readers (`torchsko.io`) and people write descriptions; `torchsko.build_mechanism` turns one into a
`Mechanism`. Numbers are plain Python floats in SI units; matrices are nested tuples, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchsko.mechanism.file_metadata import Closure
    from torchsko.mechanism.geometry import Geometry

Vector = tuple[float, float, float]
Matrix = tuple[Vector, Vector, Vector]

FIXED = "fixed"
"""Kind of a joint that is none: links so joined are one body."""

IDENTITY: Matrix = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
ZERO: Vector = (0.0, 0.0, 0.0)

GRAVITY: Vector = (0.0, 0.0, -9.81)
"""Of a file that says nothing of it [m/s^2]."""

UNRESISTED = "no inertia resists it: forward dynamics refuse it"
"""The fault of a joint that nothing resists."""


@dataclass(frozen=True)
class LinkDescription:
    """A rigid body as a file gives it.

    Attributes:
        name: unique among the links.
        mass: [kg].
        com: centre of mass in the link frame [m].
        inertia: about the centre of mass, along the axes of the *inertial* frame [kg m^2].
        inertia_rotation: takes inertial-frame coordinates to link-frame coordinates.
        gravcomp: share of its weight that is compensated, at the centre of mass.
    """

    name: str
    mass: float = 0.0
    com: Vector = ZERO
    inertia: Matrix = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    inertia_rotation: Matrix = IDENTITY
    gravcomp: float = 0.0


@dataclass(frozen=True)
class JointDescription:
    """A joint as a file gives it.

    Attributes:
        name: unique among the joints.
        kind: how the child moves in the parent: the name of a `JointType`, or "fixed".
        parent: name of the parent link.
        child: name of the child link.
        rotation: takes joint-frame coordinates to parent-link coordinates.
        position: origin of the joint frame in the parent link [m].
        axis: of a kind of joint that has one, in the joint frame; need not be a unit vector.
        damping: viscous, per degree of freedom [N m s or N s/m].
        friction: Coulomb [N m or N].
        armature: reflected rotor inertia [kg m^2 or kg].
        stiffness: spring [N m/rad or N/m] about `spring_reference` [rad or m].
        spring_reference: configuration at which the spring is relaxed [rad or m].
        lower: lower limit [rad or m].
        upper: upper limit [rad or m].
        velocity: velocity limit [rad/s or m/s].
        effort: effort limit [N m or N].
        data: what its kind needs besides, by keyword (`JointType.keywords`).
    """

    name: str
    kind: str
    parent: str
    child: str
    rotation: Matrix = IDENTITY
    position: Vector = ZERO
    axis: Vector = (0.0, 0.0, 1.0)
    damping: float = 0.0
    friction: float = 0.0
    armature: float = 0.0
    stiffness: float = 0.0
    spring_reference: float = 0.0
    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    effort: float = math.inf
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CouplingDescription:
    """A joint that follows others: q = sum of coefficient * q_j + offset.

    Under a name that no joint has: the equation sum of coefficient * q_j = offset.

    Attributes:
        joint: name of the dependent joint, or of the equation.
        coefficients: by the names of the joints that it follows.
        offset: [rad or m].
    """

    joint: str
    coefficients: Mapping[str, float]
    offset: float = 0.0


@dataclass(frozen=True)
class RotorDescription:
    """The rotor of the motor that drives a joint, carried by the joint's parent link.

    Attributes:
        joint: name of the joint.
        ratio: turns of the rotor against its carrier per turn of the joint [rad/rad or rad/m].
        inertia: about the rotor's axis, which is the joint's [kg m^2]; part of the carrier's inertia.
    """

    joint: str
    ratio: float
    inertia: float

    @property
    def name(self) -> str:
        """Of the link and of the joint that stand for it."""
        return f"{self.joint}_rotor"


STILL = "fixed to the inertial frame, it never moves; floating_base=True gives it a free joint"
"""Why an inertia is not used that no equation of motion holds."""


@dataclass(frozen=True)
class UnsupportedElement:
    """An element of a robot file that the dynamics does not use.

    Attributes:
        element: the element, by name ("link 'base' <visual>").
        reason: why it is not used.
        fixed_inertia: True for an inertia welded to the inertial frame: it matters once that frame moves.
        affects_forces: True if measured joint forces contain a part due to it, which the model lacks.
    """

    element: str
    reason: str
    fixed_inertia: bool = field(default=False, repr=False)
    affects_forces: bool = field(default=False, repr=False)

    def __str__(self) -> str:
        return f"{self.element}: {self.reason}"


@dataclass(frozen=True)
class Fault:
    """An error in a robot file that leaves its dynamics defined.

    Attributes:
        element: the element at fault, by name ("link 'hand' <inertia>").
        reason: what is wrong, and how it was read instead.
        why: why that is an error.
        advice: how to correct the file.
    """

    element: str
    reason: str
    why: str = field(default="", repr=False)
    advice: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.element}: {self.reason}"


@dataclass(frozen=True)
class RobotDescription:
    """Links, joints, leftovers, couplings, rotors, faults, shapes, loops of one robot file, in file order.

    ``gravity`` is what the file says of it [m/s^2]; None where it says nothing. ``starts`` are positions [m]
    and quaternions w x y z, by name, of links that no joint moves.
    """

    name: str
    links: tuple[LinkDescription, ...]
    joints: tuple[JointDescription, ...] = ()
    unused: tuple[UnsupportedElement, ...] = field(default=())
    couplings: tuple[CouplingDescription, ...] = ()
    rotors: tuple[RotorDescription, ...] = ()
    report: tuple[Fault, ...] = ()
    geometry: Geometry | None = None
    closures: tuple[Closure, ...] = ()
    gravity: Vector | None = None
    starts: tuple[tuple[str, tuple[float, ...]], ...] = ()
