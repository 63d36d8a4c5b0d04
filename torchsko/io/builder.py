"""A robot written in code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

import torch

from torchsko.errors import MechanismError
from torchsko.io.loading.build import build_mechanism
from torchsko.mechanism.description import (
    FIXED,
    GRAVITY,
    IDENTITY,
    CouplingDescription,
    JointDescription,
    LinkDescription,
    Matrix,
    RobotDescription,
    RotorDescription,
    Vector,
)
from torchsko.mechanism.joints.registry import JOINT_TYPES
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.welded import WORLD


class MechanismBuilder:
    """Write a robot in code: links, joints, then `build`.

    Args:
        name: of the robot.

    Example:
        >>> builder = MechanismBuilder("pendulum")
        >>> _ = builder.link("rod", mass=2.0, com=(0.0, 0.0, -0.5))
        >>> _ = builder.joint("hinge", "revolute", child="rod", axis=(0.0, 1.0, 0.0), damping=0.1)
        >>> builder.build()
        Mechanism('pendulum': 1 bodies, 1 dofs, 1 revolute; torch.float64, cpu)
    """

    def __init__(self, name: str = "robot") -> None:
        self._name = name
        self._links: list[LinkDescription] = []
        self._joints: list[JointDescription] = []
        self._couplings: list[CouplingDescription] = []
        self._rotors: list[RotorDescription] = []

    def __repr__(self) -> str:
        parts = (("links", self._links), ("joints", self._joints))
        counts = ", ".join(f"{len(held)} {kind}" for kind, held in parts)
        return f"MechanismBuilder({self._name!r}: {counts})"

    def link(
        self,
        name: str,
        *,
        mass: float = 0.0,
        com: Sequence[float] = (0.0, 0.0, 0.0),
        inertia: Sequence[Sequence[float]] | None = None,
        inertia_rotation: Sequence[Sequence[float]] | None = None,
    ) -> MechanismBuilder:
        """Add a rigid body.

        Args:
            name: of the link.
            mass: [kg].
            com: centre of mass in the link frame [m].
            inertia: about the centre of mass, 3 x 3 [kg m^2]; zero (a point mass) when left out.
            inertia_rotation: takes the axes of `inertia` to the link's, 3 x 3; identity when left out.

        Raises:
            MechanismError: on a name that is no text, what is no number, or a vector that has not three
                components.
        """
        mass = _number(mass, f"mass of link {name!r}")
        link = LinkDescription(_name(name, "link"), mass, _vector(com, f"com of link {name!r}"))
        matrices = {"inertia": inertia, "inertia_rotation": inertia_rotation}
        given = {
            field: _matrix(rows, f"{field} of link {name!r}")
            for field, rows in matrices.items()
            if rows is not None
        }
        self._links.append(replace(link, **given))
        return self

    def joint(
        self,
        name: str,
        kind: str,
        *,
        child: str,
        parent: str | None = None,
        rotation: Sequence[Sequence[float]] | None = None,
        position: Sequence[float] = (0.0, 0.0, 0.0),
        axis: Sequence[float] = (0.0, 0.0, 1.0),
        damping: float = 0.0,
        friction: float = 0.0,
        armature: float = 0.0,
        stiffness: float = 0.0,
        spring_reference: float = 0.0,
        lower: float = -math.inf,
        upper: float = math.inf,
        velocity: float = math.inf,
        effort: float = math.inf,
        **data: Any,
    ) -> MechanismBuilder:
        """Add a joint; its links may be added later.

        Args:
            name: of the joint.
            kind: "fixed", or the name of a `JointType`: "revolute", "prismatic", "helical", "cylindrical",
                "universal", "planar", "translation", "spherical", "free", "compound", or one of your own
                (`torchsko.register_joint`).
            child: link that it moves.
            parent: link that it hangs on; None for the inertial frame.
            rotation: joint frame to parent coordinates, 3 x 3; identity when left out.
            position: origin of the joint frame in the parent [m].
            axis: of a joint that has one, in the joint frame (of a planar joint: the plane's normal);
                normalised at build.
            damping: viscous, of each dof [N m s or N s/m].
            friction: Coulomb [N m or N].
            armature: reflected rotor inertia [kg m^2 or kg].
            stiffness: of a spring [N m/rad or N/m].
            spring_reference: position in which that is relaxed [rad or m].
            lower: lower limit of position [rad or m].
            upper: upper limit of position [rad or m].
            velocity: limit [rad/s or m/s].
            effort: limit [N m or N].
            **data: what the kind needs besides (`JointType.keywords`): `pitch` [m/rad] of a helical
                joint, `second_axis` of a universal one, `direction` of a planar one (may be left out),
                `motions` of a compound one, a sequence of `torchsko.Turn` and `torchsko.Slide`.

        Raises:
            MechanismError: on a name that is no text, an unknown kind or keyword, what is no number, or a
                vector that has not three components.
        """
        if kind not in (*JOINT_TYPES, FIXED):
            raise MechanismError(
                f"joint {name!r} has the unknown kind {kind!r}.",
                f"Known kinds: {', '.join((*JOINT_TYPES, FIXED))}.",
                "Use one of them, or make yours known: torchsko.register_joint(...).",
            )
        own = () if kind == FIXED else JOINT_TYPES[kind].keywords
        numbers = {
            "damping": damping,
            "friction": friction,
            "armature": armature,
            "stiffness": stiffness,
            "spring_reference": spring_reference,
            "lower": lower,
            "upper": upper,
            "velocity": velocity,
            "effort": effort,
        }
        for key in data:
            if key not in own:
                raise MechanismError(
                    f"joint {name!r} was given the unknown {key!r}.",
                    f"Known to a {kind} joint: {', '.join((*numbers, *own))}.",
                    "Use one of them.",
                )
        joint = JointDescription(
            _name(name, "joint"),
            kind,
            WORLD if parent is None else parent,
            child,
            IDENTITY if rotation is None else _matrix(rotation, f"rotation of joint {name!r}"),
            _vector(position, f"position of joint {name!r}"),
            _vector(axis, f"axis of joint {name!r}"),
            data=data,
            **{key: _number(value, f"{key} of joint {name!r}") for key, value in numbers.items()},
        )
        self._joints.append(joint)
        return self

    def couple(
        self, name: str, coefficients: Mapping[str, float], offset: float = 0.0
    ) -> MechanismBuilder:
        """Let a joint follow others: q = sum of coefficient * q_j + offset, exactly.

        Mimic joints, gears, differentials. The joint keeps its name and its link; the coordinates of the
        mechanism are those of the independent joints (``mech.joint_names``), and `torchsko.expand` gives
        all. Its limits, losses, springs, armature and effort act on what it follows.

        Under a name of its own, which no joint has, a coupling of two joints or more is the equation
        sum of coefficient * q_j = offset; the last joint named in it follows the others.

        Args:
            name: of the joint that follows: revolute, prismatic or helical; it may be added later. Or of the
                equation.
            coefficients: by the names of the joints it follows, each of which may follow others itself.
            offset: its position where theirs are zero [rad or m], or the equation's right side.

        Raises:
            MechanismError: on what is no number; at `build`, on an unknown joint, one of several dofs, or
                joints that follow each other in a circle, or where couplings leave none to move.

        Example:
            >>> builder = MechanismBuilder("gear")
            >>> for wheel, y in (("small", 0.0), ("large", 0.3)):
            ...     _ = builder.link(wheel, mass=1.0, inertia=((0.01, 0, 0), (0, 0.01, 0), (0, 0, 0.02)))
            ...     _ = builder.joint(f"{wheel}_axle", "revolute", child=wheel, position=(0, y, 0))
            >>> builder.couple("large_axle", {"small_axle": -0.5}).build()
            Mechanism('gear': 2 bodies, 1 dofs, 1 revolute, 1 dependent; torch.float64, cpu)
        """
        if not isinstance(coefficients, Mapping):
            raise MechanismError(
                f"the coefficients of the coupling of joint {name!r} are {coefficients!r}.",
                "They say how much of each joint it follows.",
                f'Type couple({name!r}, {{"joint1": 1.0}}), say.',
            )
        what = f"of the coupling of joint {name!r}"
        row = {j: _number(c, f"coefficient {j!r} {what}") for j, c in coefficients.items()}
        self._couplings.append(CouplingDescription(name, row, _number(offset, f"offset {what}")))
        return self

    def rotor(self, joint: str, ratio: float, inertia: float) -> MechanismBuilder:
        """Add the rotor of the motor that drives a joint through a gear, gyroscopic forces included.

        The rotor turns about the joint's axis, `ratio` times as fast as the joint, on the joint's parent
        link. It becomes a body named "JOINT_rotor", on a joint of that name which follows the driven one.
        Where the rotor's axis need not be moved, ``armature = ratio**2 * inertia`` is the same; elsewhere
        that leaves out what the turning of the parent link does to the rotor.

        Args:
            joint: that it drives; one dof, with an axis.
            ratio: turns of the rotor per turn of the joint, or per metre [rad/rad or rad/m].
            inertia: about the axis of the rotor [kg m^2]. Its mass, and its inertia at rest, belong to the
                parent link: they are expected in that link's numbers already.

        Raises:
            MechanismError: on what is no number; at `build`, on an unknown joint, or an inertia that is not
                positive.

        Reference: Jain 2012, Transformations Part II (the geared rotor as an embedded body).
        """
        what = f"of the rotor of joint {joint!r}"
        numbers = _number(ratio, f"ratio {what}"), _number(inertia, f"inertia {what}")
        self._rotors.append(RotorDescription(joint, *numbers))
        return self

    def description(self) -> RobotDescription:
        """What was written so far, as a robot file would give it."""
        return RobotDescription(
            self._name,
            tuple(self._links),
            tuple(self._joints),
            couplings=tuple(self._couplings),
            rotors=tuple(self._rotors),
        )

    def build(
        self,
        *,
        floating_base: bool = False,
        gravity: Sequence[float] = GRAVITY,
        strict: bool = True,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Mechanism:
        """The mechanism; see `build_mechanism`.

        An inertia that no rigid body has is refused: who writes a robot in code can correct it there,
        unlike who loads a file of others. ``strict=False`` uses it as written, without a warning, and
        keeps it in ``mech.report``.
        """
        return build_mechanism(
            self.description(),
            floating_base=floating_base,
            gravity=gravity,
            strict=strict,
            dtype=dtype,
            device=device,
        )


def _name(name: Any, what: str) -> str:
    if not isinstance(name, str):
        raise MechanismError(
            f"a {what} was given the name {name!r}.",
            "Names are text: files hold them, and users find things by them.",
            f"Pass {str(name)!r}.",
        )
    return name


def _number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise MechanismError(
            f"the {what} is {value!r}.",
            "It is one number, in SI units.",
            "Pass 0.5, say.",
        ) from None


def _vector(values: Sequence[float], what: str) -> Vector:
    x, y, z = (_number(value, what) for value in _three(values, what))
    return x, y, z


def _matrix(rows: Sequence[Sequence[float]], what: str) -> Matrix:
    given = _three(rows, what)
    if not any(isinstance(row, Sized) and getattr(row, "ndim", 1) for row in given):
        raise MechanismError(
            f"the {what} is a row of numbers.",
            "It is a matrix, three rows of three.",
            "Pass [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]], with zeros beside a diagonal.",
        )
    x, y, z = (_vector(row, f"row of the {what}") for row in given)
    return x, y, z


def _three(values: Sequence[Any], what: str) -> Sequence[Any]:
    count = len(values) if isinstance(values, Sized) else 1
    if count != 3:
        raise MechanismError(
            f"the {what} has {count} components.",
            "Space has three dimensions.",
            "Pass three numbers, or three rows of three.",
        )
    return values
