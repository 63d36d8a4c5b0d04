"""Construction of robots in code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import torch

from torchsko.constraints.constraint_kinds import constraint_kind
from torchsko.constraints.row_kinds import JointRows
from torchsko.errors import MechanismError, unknown_name
from torchsko.io.common.builder_values import (
    checked_matrix,
    checked_name,
    checked_number,
    checked_vector,
)
from torchsko.io.loading.build import build_mechanism
from torchsko.mechanism.description import (
    FIXED,
    GRAVITY,
    IDENTITY,
    CouplingDescription,
    JointDescription,
    LinkDescription,
    RotorDescription,
    SpringDescription,
)
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.flexible.flexible_body import FlexibleBody
from torchsko.mechanism.flexible.points import flexible_parts
from torchsko.mechanism.joints.registry import JOINT_TYPES
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.robot_description import RobotDescription
from torchsko.mechanism.welded import WORLD

FramePlacement = Sequence[Any] | None
"""A position, or a pair of a rotation matrix and a position; None for the link's frame."""


class MechanismBuilder:
    """Builds a robot from links and joints; `build` returns the mechanism.

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
        self._springs: list[SpringDescription] = []
        self._closures: list[Closure] = []

    def __repr__(self) -> str:
        parts = (("links", self._links), ("joints", self._joints))
        counts = ", ".join(f"{len(items)} {kind}" for kind, items in parts)
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
            com: center of mass in the link frame [m].
            inertia: about the center of mass, 3 x 3 [kg m^2]; zero (a point mass) when left out.
            inertia_rotation: takes coordinates in the axes of `inertia` to link coordinates, 3 x 3; identity
                when left out.

        Raises:
            MechanismError: for a name that is not a string, or an argument of another type or size.
        """
        mass = checked_number(mass, f"mass of link {name!r}")
        link = LinkDescription(
            checked_name(name, "link"), mass, checked_vector(com, f"com of link {name!r}")
        )
        matrices = {"inertia": inertia, "inertia_rotation": inertia_rotation}
        fields = {
            field: checked_matrix(rows, f"{field} of link {name!r}")
            for field, rows in matrices.items()
            if rows is not None
        }
        self._links.append(replace(link, **fields))
        return self

    def flexible_link(self, name: str, body: FlexibleBody) -> MechanismBuilder:
        """Add a flexible body.

        Joints move its frame, the link `name`, as they move a rigid link. Joints attach to its markers, the
        links "NAME/MARKER". Its modal coordinates are the joint "NAME_modes", whose entries of q are named
        "NAME_modes.MODE"; they move the markers and the mass points, which are bodies "NAME/0", "NAME/1", ...

        Args:
            name: of the link.
            body: points, shapes, stiffness and markers.

        Raises:
            MechanismError: for a name that is not a string, or a body of another type.

        Reference: Shabana 2005, chapter 5 (floating frame of reference).

        Example:
            >>> import torchsko as ts
            >>> beam = ts.FlexibleBody.beam(length=1.0, density=0.5, EI_y=2.0, shapes=(2, 0))
            >>> builder = MechanismBuilder("slewing beam").flexible_link("beam", beam)
            >>> mech = builder.joint("hub", "revolute", child="beam", axis=(0, 1, 0)).build()
            >>> mech.coordinate_names
            ('hub', 'beam_modes.y1', 'beam_modes.y2')
        """
        if not isinstance(body, FlexibleBody):
            raise MechanismError(
                f"flexible link {name!r} got {body!r}.",
                "Its shapes are those of a FlexibleBody.",
                "Pass torchsko.FlexibleBody(...), or torchsko.FlexibleBody.beam(...).",
            )
        links, joints = flexible_parts(checked_name(name, "link"), body)
        self._links += links
        self._joints += joints
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
                "universal", "planar", "translation", "spherical", "free", "compound", or a registered type
                (`torchsko.register_joint`).
            child: name of the child link.
            parent: name of the parent link; None for the inertial frame.
            rotation: takes joint-frame coordinates to parent coordinates, 3 x 3; identity when left out.
            position: origin of the joint frame in the parent [m].
            axis: axis of the joint in the joint frame, for a planar joint the plane's normal; normalized at
                build.
            damping: viscous, of each dof [N m s or N s/m].
            friction: Coulomb friction [N m or N].
            armature: reflected rotor inertia [kg m^2 or kg].
            stiffness: spring stiffness [N m/rad or N/m].
            spring_reference: position of the relaxed spring [rad or m].
            lower: lower position limit [rad or m].
            upper: upper position limit [rad or m].
            velocity: velocity limit [rad/s or m/s].
            effort: effort limit [N m or N].
            **data: further parameters of the kind (`JointType.keywords`): `pitch` [m/rad] of a helical joint,
                `second_axis` of a universal joint, `direction` of a planar joint (optional), `motions` of a
                compound joint: a sequence of `torchsko.Turn` and `torchsko.Slide`.

        Raises:
            MechanismError: for an unknown kind or keyword, a name that is not a string, or an argument of
                another type or size.
        """
        if kind not in (*JOINT_TYPES, FIXED):
            raise MechanismError(
                f"joint {name!r} has the unknown kind {kind!r}.",
                f"Known kinds: {', '.join((*JOINT_TYPES, FIXED))}.",
                "Use one of them, or register another with torchsko.register_joint(...).",
            )
        keywords = () if kind == FIXED else JOINT_TYPES[kind].keywords
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
            if key not in keywords:
                raise MechanismError(
                    f"joint {name!r} has the unknown keyword {key!r}.",
                    f"A {kind} joint has the keywords {', '.join((*numbers, *keywords))}.",
                    "Use one of them.",
                )
        checked: dict[str, Any] = {
            key: checked_number(value, f"{key} of joint {name!r}") for key, value in numbers.items()
        }
        joint = JointDescription(
            checked_name(name, "joint"),
            kind,
            WORLD if parent is None else parent,
            child,
            IDENTITY
            if rotation is None
            else checked_matrix(rotation, f"rotation of joint {name!r}"),
            checked_vector(position, f"position of joint {name!r}"),
            checked_vector(axis, f"axis of joint {name!r}"),
            data=data,
            **checked,
        )
        self._joints.append(joint)
        return self

    def couple(
        self, name: str, coefficients: Mapping[str, float], offset: float = 0.0
    ) -> MechanismBuilder:
        """Couple a joint exactly to other joints: q = sum of coefficient * q_j + offset.

        Couplings model mimic joints, gears and differentials. The joint retains its name and link, but has no
        coordinate: the coordinates of the mechanism are those of the independent joints
        (``mech.joint_names``); `torchsko.expand` returns all. Limits, losses, springs, armature and effort of
        the joint act on the joints it follows.

        If no joint has the given name, the coupling is the equation sum of coefficient * q_j = offset of two
        or more joints, and the last one follows the others.

        Args:
            name: of the dependent joint, which is revolute, prismatic or helical and may be added later; or
                of the equation.
            coefficients: by the names of the leading joints, which may themselves be coupled.
            offset: position of the joint at zero positions of the leaders [rad or m], or the right-hand side
                of the equation.

        Raises:
            MechanismError: for an argument that is not a number; at `build`, for an unknown joint, a joint of
                several dofs, a cycle of couplings, or if no independent joint remains.

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
                "They have to be a mapping from names of joints to numbers.",
                f'Type couple({name!r}, {{"joint1": 1.0}}), say.',
            )
        what = f"of the coupling of joint {name!r}"
        row = {j: checked_number(c, f"coefficient {j!r} {what}") for j, c in coefficients.items()}
        self._couplings.append(
            CouplingDescription(name, row, checked_number(offset, f"offset {what}"))
        )
        return self

    def spring(
        self, joint_a: str, joint_b: str, ratio: float, stiffness: float, damping: float = 0.0
    ) -> MechanismBuilder:
        """Connect two joints by a spring and a damper: an elastic gear.

        The energy is stiffness (q_a / ratio - q_b)^2 / 2, and the spring adds to ``mech.modal_stiffness``,
        which has a row for each of the joints; so does the damper to ``mech.modal_damping``. As the stiffness
        grows, the motion approaches that of the coupling ``couple(joint_a, {joint_b: ratio})``.

        Args:
            joint_a: name of the first joint, such as that of a rotor, with one coordinate.
            joint_b: name of the second joint.
            ratio: displacement of the first joint per displacement of the second one at rest.
            stiffness: at the second joint [N m/rad or N/m].
            damping: at the second joint [N m s/rad or N s/m].

        Raises:
            MechanismError: for an argument that is not a number; at `build`, for an unknown joint or one of
                several coordinates, a ratio of zero, and negative stiffness or damping.

        Reference: M. W. Spong, *Modeling and control of elastic joint robots*, Journal of Dynamic Systems,
        Measurement, and Control 109(4), 1987.
        """
        what = f"of the spring of {joint_a!r} and {joint_b!r}"
        named = {"ratio": ratio, "stiffness": stiffness, "damping": damping}
        numbers = (checked_number(x, f"{name} {what}") for name, x in named.items())
        self._springs.append(SpringDescription(joint_a, joint_b, *numbers))
        return self

    def rotor(
        self,
        joint: str,
        ratio: float,
        inertia: float,
        *,
        stiffness: float | None = None,
        damping: float = 0.0,
    ) -> MechanismBuilder:
        """Add the rotor of a geared motor that drives a joint, with its gyroscopic forces.

        The rotor turns about the joint's axis, `ratio` times as fast as the joint, on the joint's parent
        link. It becomes a body named "JOINT_rotor" on a coupled joint of the same name. If the parent link
        does not rotate, ``armature = ratio**2 * inertia`` is equivalent; otherwise armature neglects the
        effect of the parent's rotation on the rotor.

        With a stiffness, the gear is elastic (a series elastic actuator): the rotor has its own coordinate,
        and a spring and a damper connect it to the joint (`spring`). The motor acts on joint "JOINT_rotor".

        Args:
            joint: name of the driven joint, which has one dof and an axis.
            ratio: turns of the rotor per turn of the joint, or per meter [rad/rad or rad/m].
            inertia: about the axis of the rotor [kg m^2]. The mass of the rotor and its inertia at rest have
                to be included in the parent link.
            stiffness: of the gear, at the joint [N m/rad or N/m]; None for a rigid gear.
            damping: of an elastic gear, at the joint [N m s/rad or N s/m].

        Raises:
            MechanismError: for an argument that is not a number; at `build`, for an unknown joint or an
                inertia that is not positive.

        Reference: Jain 2012, Transformations Part II (the geared rotor as an embedded body).
        """
        what = f"of the rotor of joint {joint!r}"
        numbers = checked_number(ratio, f"ratio {what}"), checked_number(inertia, f"inertia {what}")
        k = None if stiffness is None else checked_number(stiffness, f"stiffness {what}")
        d = checked_number(damping, f"damping {what}")
        self._rotors.append(RotorDescription(joint, *numbers, k, d))
        return self

    def close(
        self,
        name: str,
        kind: str,
        body1: str,
        frame1: FramePlacement,
        body2: str,
        frame2: FramePlacement,
        method: str = "embed",
        independent: Sequence[str] | None = None,
        *,
        parameters: Sequence[float] = (),
    ) -> MechanismBuilder:
        """Close a loop by a constraint between frames on two links, or between two joints.

        Args:
            name: of the closure. Placements become frames ``NAME_1`` and ``NAME_2`` of the mechanism, whose
                positions and rotations have gradients.
            kind: "ball", "revolute" or another kind of constraint
                (`torchsko.constraints.constraint_kinds.KINDS`), which states what holds.
            body1: link of the first frame, "world" for the inertial frame; or the joint q1.
            frame1: placement in the link: a position [m], a pair of a rotation matrix and a position, or None
                for the link's frame; None for joints.
            body2: link of the second frame, or the joint q2.
            frame2: placement in that link.
            method: "embed": qd, qdd and tau are those of independent dofs, and all functions satisfy the
                constraint. "cut": they are those of all joints, and `torchsko.constrain` with
                ``mech.closures`` enforces it.
            independent: joints whose rates are independent; chosen at `build` if left out.
            parameters: numbers of the kind: the length of a "distance" [m]; ratio and offset of a "gear",
                q1 = ratio q2 + offset; c0 to c4 of a "joint", q1 = c0 + c1 q2 + ... + c4 q2^4.

        Raises:
            MechanismError: for an unknown kind or method; at `build`, for an unknown link, loops that do not
                close, joints that are not independent, and loops that are singular.

        Reference: Jain 2012, Transformations Part II (constraint embedding).

        Example:
            >>> builder = MechanismBuilder("four-bar")
            >>> for child, parent, x in (("crank", None, 0.0), ("rod", "crank", 0.2), ("rocker", None, 0.5)):
            ...     _ = builder.link(child, mass=1.0, com=(0.1, 0, 0), inertia=torch.eye(3).tolist())
            ...     place = {"parent": parent, "position": (x, 0, 0)}
            ...     _ = builder.joint(f"{child}_joint", "revolute", child=child, **place)
            >>> _ = builder.close("loop", "ball", "rod", (0.5, 0, 0), "rocker", (0.4, 0, 0))
            >>> builder.build().num_dof
            1
        """
        if method not in ("embed", "cut"):
            raise MechanismError(*unknown_name("method of a closure", method, ("embed", "cut")))
        made = constraint_kind(kind)
        ends: dict[str, Any] = {}
        if isinstance(made, JointRows):
            ends["joints"] = (body1, body2)
        else:
            places = ((body1, frame1), (body2, frame2))
            for k, (link, placement) in enumerate(places, 1):
                ends[f"frame{k}"] = self._placed(f"{name}_{k}", link, placement)
        self._closures.append(
            Closure(
                name,
                kind,
                **{"frame1": None, "frame2": None, **ends},
                method=method,
                parameters=tuple(
                    checked_number(x, f"number of closure {name!r}") for x in parameters
                ),
                independent=tuple(independent or ()),
            )
        )
        return self

    def _placed(self, name: str, link: str, placement: FramePlacement) -> str | None:
        """The frame of a placement on a link."""
        at_ground = link == "world" and all(x.name != link for x in self._links)
        if placement is None:
            return None if at_ground else link
        if len(placement) == 2 and not isinstance(placement[0], Real):
            rotation, position = placement
            turn = checked_matrix(rotation, f"rotation of frame {name!r}")
        else:
            turn, position = IDENTITY, placement
        self._links.append(LinkDescription(name))
        at = checked_vector(position, f"position of frame {name!r}")
        self._joints.append(
            JointDescription(name, FIXED, WORLD if at_ground else link, name, turn, at)
        )
        return name

    def description(self) -> RobotDescription:
        """The description of the robot so far."""
        return RobotDescription(
            self._name,
            tuple(self._links),
            tuple(self._joints),
            couplings=tuple(self._couplings),
            rotors=tuple(self._rotors),
            springs=tuple(self._springs),
            closures=tuple(self._closures),
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
        """Build the mechanism; see `build_mechanism` for the arguments.

        Unlike `load`, `build` refuses unphysical inertias by default. ``strict=False`` uses them as written,
        without a warning, and lists them in ``mech.report``.
        """
        links, parents = {x.name for x in self._links}, {x.name: x.parent for x in self._joints}
        for closure in self._closures:
            for frame in (closure.frame1, closure.frame2):
                link = parents.get(frame) if frame in parents else frame
                if link not in (None, WORLD) and link not in links:
                    what, why, advice = unknown_name("link", link, tuple(links))
                    raise MechanismError(f"closure {closure.name!r}: {what}", why, advice)
        return build_mechanism(
            self.description(),
            floating_base=floating_base,
            gravity=gravity,
            strict=strict,
            dtype=dtype,
            device=device,
        )
