"""How a robot comes in: from a file, or written in code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from torchsko.algebra.innovations import innovations
from torchsko.assemble import assemble
from torchsko.errors import MechanismError
from torchsko.io.urdf import read_urdf
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
from torchsko.mechanism.lower import WORLD, lower
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.verb import verb


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
        floating_base: put a free joint named "root_joint" under the root link.
        gravity: in the inertial frame [m/s^2].
        mimic: "independent" loads a joint with a <mimic> tag as one of its own; "couple" refuses it by
            name (the exact coupling is not there yet).
        dtype: torch.float32 or torch.float64.
        device: of all tensors.

    Returns:
        The mechanism; its ``unused`` lists what the file holds and no field of it does, and why.

    Raises:
        RobotFileError: when the file cannot be read; names the element.
        MechanismError: when what it says is no mechanism.
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
    "root_joint" with `floating_base`. Fixed joints are merged: masses add up, frames keep their names.

    Args:
        robot: links and joints.
        floating_base: put a free joint under the root link.
        gravity: in the inertial frame [m/s^2].
        dtype: torch.float32 or torch.float64.
        device: of all tensors.

    Raises:
        MechanismError: on a parameter that is not physical, an unknown link, nothing that moves, or
            another dtype.
        TreeError: when the joints are no tree: a cycle, or a link with two parents.
    """
    mech = checked(lower(robot, floating_base, gravity))
    return mech.to(dtype).to(device)


@verb
def checked(mech: Mechanism) -> Mechanism:
    """The mechanism with the verdict on its hinges made anew: which of them have no inertia at all.

    A hinge inertia D(k) that vanishes in general (a massless link at the end of a chain, say) leaves
    inverse dynamics and the mass matrix well defined, but no acceleration follows from a force. The
    verdict is reached here, at three random states in float64, so that no later call has to look at
    values. Call it after `replace` has given such a link mass or armature.

    Args:
        mech: a mechanism; its parameters may carry batch dimensions.

    Returns:
        The same mechanism with `singular_joints` and `bare_joints` set: the joints that are so in any
        of its robots.
    """
    exact = mech.to(torch.float64).replace(singular_joints=())
    bare = _bare_joints(exact)
    bad: set[str] = set()
    # A hinge found singular is locked by a huge armature and the rest judged again, so that what it
    # does to the inertias below it is not held against them.
    while found := _vanishing_hinges(exact) - bad:
        bad |= found
        dofs = [exact.dof_slice(name) for name in bad]
        locked = [i for dof in dofs for i in range(dof.start, dof.stop)]
        index = torch.tensor(locked, device=exact.device)
        exact = exact.replace(armature=exact.armature.index_fill(-1, index, 1e6))
    singular = tuple(name for name in mech.joint_names if name in bad)
    return mech.replace(singular_joints=singular, bare_joints=bare)


def _bare_joints(mech: Mechanism) -> tuple[str, ...]:
    """Joints whose H M H* + S is no more than rounding of M, in configurations in general position."""
    generator = torch.Generator(device=mech.device).manual_seed(0)
    batch = (3, *mech.batch_shape)
    model = assemble(mech, mech.random_state(*batch, generator=generator)[0])
    H, M, dofs = model.joint_map, model.inertia, model.layout.dofs
    S = 0.0 if model.armature is None else model.armature
    D = H @ M @ H.mT + torch.diag_embed((S + dofs.padding[..., None].to(M.dtype))[..., 0])
    rounding = 64 * torch.finfo(torch.float64).eps * M.abs().amax((-1, -2))
    small = torch.linalg.eigvalsh(D)[..., 0] <= rounding
    in_state = mech.layout.tree_order(small, -1).expand(*batch, mech.num_bodies)
    verdict = in_state.all(0).reshape(-1, mech.num_bodies).any(0).tolist()
    return tuple(name for name, bare in zip(mech.joint_names, verdict, strict=True) if bare)


def _vanishing_hinges(mech: Mechanism) -> set[str]:
    """Joints whose hinge inertia is no more than rounding of the inertia it is taken from."""
    generator = torch.Generator(device=mech.device).manual_seed(0)
    batch = (3, *mech.batch_shape)
    q, _ = mech.random_state(*batch, generator=generator)
    riccati = innovations(assemble(mech, q)).riccati
    found: set[str] = set()
    levels = zip(mech.layout.tree.levels, riccati.hinge_inertia, riccati.art_inertia, strict=True)
    for level, D, P in levels:
        rounding = 64 * torch.finfo(torch.float64).eps * P.abs().amax((-1, -2))
        finite = D.isfinite().all(-1).all(-1)  # what lies below a vanishing hinge is judged later
        smallest = torch.linalg.eigvalsh(D.nan_to_num(posinf=0.0, neginf=0.0))[..., 0]
        in_state = (finite & (smallest <= rounding)).expand(*batch, len(level))
        verdict = in_state.all(0).reshape(-1, len(level)).any(0).tolist()
        found |= {mech.joint_names[k] for k, bad in zip(level, verdict, strict=True) if bad}
    return found


JOINT_DATA = (
    "damping", "friction", "armature", "stiffness", "spring_reference", "lower", "upper", "velocity",
    "effort",
)  # fmt: skip
"""What `MechanismBuilder.joint` takes besides the placement; see `JointDescription`."""


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
            MechanismError: on a vector that has not three components.
        """
        link = LinkDescription(name, float(mass), _vector(com, f"com of link {name!r}"))
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
            **data: any of `JOINT_DATA`, SI units; and what the kind needs besides (`JointType.keywords`):
                `pitch` [m/rad] of a helical joint, `second_axis` of a universal one, `direction` of a
                planar one (may be left out), `motions` of a compound one, a sequence of `torchsko.Turn`
                and `torchsko.Slide`.

        Raises:
            MechanismError: on an unknown kind, unknown data, or a vector that has not three components.
        """
        if kind not in (*JOINT_TYPES, FIXED):
            raise MechanismError(
                f"joint {name!r} has the unknown kind {kind!r}.\n"
                f"Known kinds: {', '.join((*JOINT_TYPES, FIXED))}.\n"
                "Use one of them, or make yours known: torchsko.register_joint(...)."
            )
        own = () if kind == FIXED else JOINT_TYPES[kind].keywords
        for key in data:
            if key not in (*JOINT_DATA, *own):
                raise MechanismError(
                    f"joint {name!r} was given the unknown {key!r}.\n"
                    f"Known to a {kind} joint: {', '.join((*JOINT_DATA, *own))}.\nUse one of them."
                )
        bare = JointDescription(
            name,
            kind,
            WORLD if parent is None else parent,
            child,
            IDENTITY if rotation is None else _matrix(rotation, f"rotation of joint {name!r}"),
            _vector(position, f"position of joint {name!r}"),
            _vector(axis, f"axis of joint {name!r}"),
        )
        numbers: dict[str, Any] = {k: float(v) for k, v in data.items() if k not in own}
        kind_data = {k: v for k, v in data.items() if k in own}
        self._joints.append(replace(bare, data=kind_data, **numbers))
        return self

    def description(self) -> RobotDescription:
        """What was written so far, as a robot file would give it."""
        return RobotDescription(self._name, tuple(self._links), tuple(self._joints))

    def build(
        self,
        *,
        gravity: Sequence[float] = (0.0, 0.0, -9.81),
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Mechanism:
        """The mechanism; see `build_mechanism`."""
        return build_mechanism(self.description(), gravity=gravity, dtype=dtype, device=device)


def _vector(values: Sequence[float], what: str) -> Vector:
    x, y, z = (float(v) for v in _three(values, what))
    return x, y, z


def _matrix(rows: Sequence[Sequence[float]], what: str) -> Matrix:
    x, y, z = (_vector(row, f"row of the {what}") for row in _three(rows, what))
    return x, y, z


def _three(values: Sequence[Any], what: str) -> Sequence[Any]:
    if len(values) != 3:
        raise MechanismError(
            f"the {what} has {len(values)} components.\n"
            "Space has three dimensions.\nPass three numbers, or three rows of three."
        )
    return values
