"""Parts of a robot description as plain data: links, joints, couplings, and elements without effect.

Numbers are Python floats in SI units; matrices are nested tuples, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Vector = tuple[float, float, float]
Matrix = tuple[Vector, Vector, Vector]
Rows = tuple[tuple[float, ...], ...]
"""A matrix of any size, row by row."""

FIXED = "fixed"
"""Joint type of rigidly connected links, which become one body."""

IDENTITY: Matrix = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
ZERO: Vector = (0.0, 0.0, 0.0)

GRAVITY: Vector = (0.0, 0.0, -9.81)
"""Default gravity [m/s^2]."""

UNRESISTED = "no inertia resists it, so forward dynamics refuses it"
"""Report on a joint whose articulated-body inertia vanishes."""


@dataclass(frozen=True)
class LinkDescription:
    """A link of a robot description.

    Attributes:
        name: unique among the links.
        mass: mass [kg].
        com: center of mass in the link frame [m].
        inertia: about the center of mass, along the axes of the *inertial* frame [kg m^2].
        inertia_rotation: from inertial-frame to link-frame coordinates.
        gravcomp: fraction of its weight that is compensated at the center of mass.
    """

    name: str
    mass: float = 0.0
    com: Vector = ZERO
    inertia: Matrix = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    inertia_rotation: Matrix = IDENTITY
    gravcomp: float = 0.0


@dataclass(frozen=True)
class JointDescription:
    """A joint of a robot description.

    Attributes:
        name: unique among the joints.
        kind: name of a `JointType`, or "fixed".
        parent: name of the parent link.
        child: name of the child link.
        rotation: from joint-frame to parent-link coordinates.
        position: origin of the joint frame in the parent link [m].
        axis: joint axis in the joint frame; need not be a unit vector.
        damping: viscous damping per degree of freedom [N m s or N s/m].
        friction: Coulomb friction [N m or N].
        armature: reflected rotor inertia [kg m^2 or kg].
        stiffness: stiffness of a spring about `spring_reference` [N m/rad or N/m].
        spring_reference: configuration at which the spring is relaxed [rad or m].
        lower: lower limit [rad or m].
        upper: upper limit [rad or m].
        velocity: velocity limit [rad/s or m/s].
        effort: effort limit [N m or N].
        data: parameters of the joint type by keyword (`JointType.keywords`).
        leader: joint before it with the same parent whose coordinates it has; empty for its own. All points
            of a flexible body have one leader.
        modal_stiffness: symmetric stiffness matrix of the coordinates of an elastic leader.
        modal_damping: its damping matrix.
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
    leader: str = ""
    modal_stiffness: Rows = ()
    modal_damping: Rows = ()


@dataclass(frozen=True)
class CouplingDescription:
    """A dependent joint: q = sum of coefficient * q_j + offset.

    If no joint has the name `joint`, it is the equation sum of coefficient * q_j = offset.

    Attributes:
        joint: name of the dependent joint, or of the equation.
        coefficients: coefficient for each joint that it follows, by name.
        offset: constant term [rad or m].
    """

    joint: str
    coefficients: Mapping[str, float]
    offset: float = 0.0


@dataclass(frozen=True)
class SpringDescription:
    """A spring and damper between two joints, of energy stiffness (q_a / ratio - q_b)^2 / 2.

    Attributes:
        joint_a: name of the first joint, such as that of a rotor.
        joint_b: name of the second joint.
        ratio: displacement of the first joint per displacement of the second one at rest.
        stiffness: [N m/rad or N/m].
        damping: [N m s/rad or N s/m].
    """

    joint_a: str
    joint_b: str
    ratio: float
    stiffness: float
    damping: float = 0.0


@dataclass(frozen=True)
class RotorDescription:
    """The rotor of the motor that drives a joint, carried by the joint's parent link.

    Attributes:
        joint: name of the joint.
        ratio: rotation of the rotor relative to the parent link per joint displacement [rad/rad or rad/m].
        inertia: about the joint axis [kg m^2]; the parent link's inertia includes it.
        stiffness: of the spring between the gear and the joint [N m/rad or N/m]; None for a rigid gear.
        damping: of that spring [N m s/rad or N s/m].
    """

    joint: str
    ratio: float
    inertia: float
    stiffness: float | None = None
    damping: float = 0.0

    @property
    def name(self) -> str:
        """Name of the link and of the joint that represent the rotor."""
        return f"{self.joint}_rotor"


STILL = "fixed to the inertial frame, it never moves; floating_base=True gives it a free joint"
"""Reason why the inertia of a link fixed to the inertial frame is not used."""


IN_STEP = "in ts.step and ts.ContactStep only"
"""Reason for soft constraints, which `torchsko.forward_dynamics` does not include."""


@dataclass(frozen=True)
class UnsupportedElement:
    """An element of a robot file that the dynamics does not use.

    Attributes:
        element: the element, by name ("link 'base' <visual>").
        reason: why it is not used.
        fixed_inertia: True for an inertia welded to the inertial frame: it matters once that frame moves.
        affects_forces: True if measured joint forces contain a part due to it, which the model lacks.
        in_contact: True if it exerts forces only while bodies touch.
        in_step: True if it acts in `torchsko.step` and `torchsko.contact.contact_dynamics`.
        absent: True if the mechanism has no description of it, so that `torchsko.save` cannot write it.
    """

    element: str
    reason: str
    fixed_inertia: bool = field(default=False, repr=False)
    affects_forces: bool = field(default=False, repr=False)
    in_contact: bool = field(default=False, repr=False)
    in_step: bool = field(default=False, repr=False)
    absent: bool = field(default=False, repr=False)

    @property
    def changes_dynamics(self) -> bool:
        """True if `torchsko.forward_dynamics` differs from the dynamics of the file because of it."""
        return self.affects_forces or self.in_contact or self.in_step

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
