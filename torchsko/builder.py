"""How a robot comes in: from a file, or written in code."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence, Sized
from dataclasses import replace
from typing import Any, Literal

import torch

from torchsko.bridge.hinges import checked
from torchsko.errors import MechanismError
from torchsko.io.urdf import read_urdf
from torchsko.mechanism.checks import check_gravity
from torchsko.mechanism.construct import WORLD, lower
from torchsko.mechanism.description import (
    FIXED,
    IDENTITY,
    JointDescription,
    LinkDescription,
    Matrix,
    RobotDescription,
    Vector,
)
from torchsko.mechanism.joints.registry import JOINT_TYPES
from torchsko.mechanism.magnitudes import within_range
from torchsko.mechanism.mechanism import Mechanism, check_device, check_dtype


def load(
    source: str | os.PathLike[str],
    *,
    floating_base: bool = False,
    gravity: Sequence[float] = (0.0, 0.0, -9.81),
    mimic: Literal["couple", "independent"] = "couple",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Mechanism:
    """Load a robot file.

    Args:
        source: path of a URDF file, or its text.
        floating_base: put a free joint named "root_joint" under the root link; named
            "root_joint_LINK" where a moving joint of the file has that name, or several links are roots.
        gravity: in the inertial frame [m/s^2].
        mimic: "independent" loads a joint with a <mimic> tag as one of its own; "couple" refuses it by
            name (the exact coupling is not there yet).
        dtype: torch.float32 or torch.float64.
        device: of all tensors.

    Returns:
        The mechanism; its ``unused`` lists what the file holds and the dynamics does not use, and why.

    Raises:
        RobotFileError: when the file cannot be read; names the element.
        MechanismError: when what it says is no mechanism, or a number is so large that products of
            it overflow (see `torchsko.mechanism.magnitudes`).
        TreeError: when its joints form no tree.

    Example:
        >>> import torchsko as ts
        >>> ts.load(ts.robots.panda)
        Mechanism('panda': 7 bodies, 7 dofs, 7 revolute; torch.float64, cpu)
    """
    return build_mechanism(
        read_urdf(source, mimic=mimic),
        floating_base=floating_base,
        gravity=gravity,
        dtype=dtype,
        device=device,
    )


def build_mechanism(
    robot: RobotDescription,
    *,
    floating_base: bool = False,
    gravity: Sequence[float] = (0.0, 0.0, -9.81),
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Mechanism:
    """Turn a description into a mechanism, checked.

    Links that no joint moves hang on the inertial frame: welded to it, or by a free joint named
    "root_joint" with `floating_base` (see `load`); all but the first are reported in ``unused``.
    Fixed joints are merged: masses add up, frames keep their names.

    Args:
        robot: links and joints.
        floating_base: put a free joint under the root link.
        gravity: in the inertial frame [m/s^2].
        dtype: torch.float32 or torch.float64.
        device: of all tensors.

    Raises:
        MechanismError: on a parameter that is not physical or too large, an unknown link, nothing that
            moves, or another dtype.
        TreeError: when the joints are no tree: a cycle, or a link with two parents.
    """
    check_dtype(robot.name, dtype)
    check_device(robot.name, device)
    check_gravity(gravity)
    mech = lower(within_range(robot, gravity, dtype), floating_base, gravity)
    return checked(mech).to(dtype).to(device)


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
            MechanismError: on what is no number, or a vector that has not three components.
        """
        mass = _number(mass, f"mass of link {name!r}")
        link = LinkDescription(name, mass, _vector(com, f"com of link {name!r}"))
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
            MechanismError: on an unknown kind or keyword, what is no number, or a vector that has not three
                components.
        """
        if kind not in (*JOINT_TYPES, FIXED):
            raise MechanismError(
                f"joint {name!r} has the unknown kind {kind!r}.\n"
                f"Known kinds: {', '.join((*JOINT_TYPES, FIXED))}.\n"
                "Use one of them, or make yours known: torchsko.register_joint(...)."
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
                    f"joint {name!r} was given the unknown {key!r}.\n"
                    f"Known to a {kind} joint: {', '.join((*numbers, *own))}.\nUse one of them."
                )
        joint = JointDescription(
            name,
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

    def description(self) -> RobotDescription:
        """What was written so far, as a robot file would give it."""
        return RobotDescription(self._name, tuple(self._links), tuple(self._joints))

    def build(
        self,
        *,
        floating_base: bool = False,
        gravity: Sequence[float] = (0.0, 0.0, -9.81),
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Mechanism:
        """The mechanism; see `build_mechanism`."""
        return build_mechanism(
            self.description(),
            floating_base=floating_base,
            gravity=gravity,
            dtype=dtype,
            device=device,
        )


def _number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise MechanismError(
            f"the {what} is {value!r}.\nIt is one number, in SI units.\nPass 0.5, say."
        ) from None


def _vector(values: Sequence[float], what: str) -> Vector:
    x, y, z = (_number(value, what) for value in _three(values, what))
    return x, y, z


def _matrix(rows: Sequence[Sequence[float]], what: str) -> Matrix:
    x, y, z = (_vector(row, f"row of the {what}") for row in _three(rows, what))
    return x, y, z


def _three(values: Sequence[Any], what: str) -> Sequence[Any]:
    count = len(values) if isinstance(values, Sized) else 1
    if count != 3:
        raise MechanismError(
            f"the {what} has {count} components.\n"
            "Space has three dimensions.\nPass three numbers, or three rows of three."
        )
    return values
