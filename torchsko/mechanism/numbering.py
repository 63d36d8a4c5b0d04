"""Sizes of the tree of a mechanism, and indices and slices of its named parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.packing import Packing
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.coupling import Coupling
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.joints.groups import JointSet
from torchsko.mechanism.joints.kind import JointType
from torchsko.utils.shapes import broadcast_shapes

Place = tuple[int, int | None]
"""Index of a joint of the tree, and index of one of its coordinates; None for all."""


class TreeNumbering:
    """The tree and the couplings of a mechanism, with sizes, indices and slices.

    Loops are no part of it, so that their structure can refer to it. `Mechanism` documents the attributes.
    """

    name: str
    body_names: tuple[str, ...]
    frame_body: tuple[int, ...]
    tree_joint_names: tuple[str, ...]
    frame_names: tuple[str, ...]
    mass: Tensor
    joint_rotation: Tensor
    joint_position: Tensor
    axis: Tensor
    joint_parameters: Tensor
    frame_rotation: Tensor
    frame_position: Tensor
    coupling_ratio: Tensor
    coupling_offset: Tensor
    fluid_bodies: tuple[int, ...]
    layout: Layout
    coordinates: Packing
    joints: JointSet
    coupling: Coupling | None

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters."""
        return self.mass.dtype

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.mass.device

    @property
    def batch_shape(self) -> torch.Size:
        """Batch dimensions of the dynamic parameters, broadcast together."""
        shapes = [
            x.shape[: x.ndim - len(shape)]
            for name, shape in PARAMETERS.items()
            if (x := getattr(self, name)).ndim > len(shape)
        ]
        return broadcast_shapes(*shapes) if shapes else torch.Size()

    @property
    def num_modes(self) -> int:
        """Number of modal coordinates of flexible bodies, and of joints connected by springs."""
        return self.joints.modes[0].shape[0]

    @property
    def num_bodies(self) -> int:
        """Number of moving bodies."""
        return len(self.body_names)

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names of the independent joints, whose coordinates make up q, in file order."""
        return tuple(self.tree_joint_names[k] for k in self.independent_joints)

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """A name for each entry of q: the name of its joint, with the coordinate's if there are several."""
        names: list[str] = []
        for name, k in zip(self.joint_names, self.independent_joints, strict=True):
            own = self.joints.kinds[k].coordinates
            names += [name] if len(own) == 1 else [f"{name}.{x}" for x in own]
        return tuple(names)

    @property
    def dependent_joint_names(self) -> tuple[str, ...]:
        """Names of the dependent joints, which follow others, in file order."""
        dependent = () if self.coupling is None else self.coupling.dependent
        return tuple(self.tree_joint_names[k] for k in dependent)

    @property
    def independent_joints(self) -> tuple[int, ...]:
        """Indices of the joints in `joint_names`; of joints that share coordinates only the leader."""
        return self._leaders if self.coupling is None else self.coupling.independent

    @property
    def joint_types(self) -> tuple[JointType, ...]:
        """Type of each joint in `joint_names`."""
        return tuple(self.joints.kinds[k] for k in self.independent_joints)

    @property
    def joint_kinds(self) -> tuple[str, ...]:
        """Name of the type of each joint in `joint_names`: "revolute", "spherical", ..."""
        return tuple(kind.name for kind in self.joint_types)

    @property
    def num_q(self) -> int:
        """Length of a configuration q."""
        return self.coordinates.total if self.coupling is None else self.coupling.num_q

    @property
    def num_tree_q(self) -> int:
        """Length of a configuration of all joints, dependent ones included."""
        return self.coordinates.total

    @property
    def num_tree_dof(self) -> int:
        """Number of degrees of freedom of all joints, dependent ones included."""
        return self.layout.dofs.total

    @property
    def num_dependent(self) -> int:
        """Number of joints that follow others."""
        return self.coupling_offset.shape[-1]

    @property
    def num_ratios(self) -> int:
        """Number of coefficients of all couplings."""
        return self.coupling_ratio.shape[-1]

    @property
    def num_joint_parameters(self) -> int:
        """Length of `joint_parameters`; zero if no joint type has parameters."""
        return self.joints.num_parameters

    @property
    def num_fluid_shapes(self) -> int:
        """Number of shapes with fluid forces."""
        return len(self.fluid_bodies)

    @property
    def num_frames(self) -> int:
        """Number of named frames: the links of the file."""
        return len(self.frame_names)

    @property
    def parents(self) -> tuple[int, ...]:
        """Parent body of each body; -1 for the inertial frame."""
        return self.layout.tree.parent

    def body_index(self, name: str) -> int:
        """Index of the body with this name.

        Raises:
            MechanismError: when no body has this name.
        """
        return _index("body", name, self.body_names)

    def joint_index(self, name: str) -> int:
        """Index of the joint with this name and of the body that it moves.

        Raises:
            MechanismError: when no moving joint has this name.
        """
        if name in self.tree_joint_names:
            return self.tree_joint_names.index(name)
        advice = None
        if name in self.body_names:
            joint = self.tree_joint_names[self.body_names.index(name)]
            advice = f"{name!r} is a body, moved by joint {joint!r}. Pass {joint!r}."
        if (found := self._motion(name)) is not None:
            joint = self.tree_joint_names[found[0]]
            advice = f"{name!r} is one motion of joint {joint!r}. Pass {joint!r}."
        return _index("moving joint", name, self.tree_joint_names, advice)

    def frame_index(self, name: str) -> int:
        """Index of the frame with this name.

        Raises:
            MechanismError: when no frame has this name.
        """
        advice = None
        if name in self.tree_joint_names:
            body = self.body_names[self.tree_joint_names.index(name)]
            advice = f"{name!r} is a joint, which moves body {body!r}. Pass {body!r}."
        return _index("frame", name, self.frame_names, advice)

    def joint_place(self, name: str) -> Place:
        """Index of the joint with this name, or of the joint with a motion of this name and of that motion.

        A compound joint "hip_x+hip_z" has the motions "hip_x" and "hip_z"; a planar joint "base" has
        "base_x", "base_y" and "base_angle"; see `motions`.

        Raises:
            MechanismError: when no joint or motion has this name.
        """
        if name in self.tree_joint_names:
            return self.tree_joint_names.index(name), None
        return self._motion(name) or (self.joint_index(name), None)

    def _motion(self, name: str) -> tuple[int, int] | None:
        """Indices of the joint with a motion of this name and of the motion; None if there is none."""
        for k, joint in enumerate(self.tree_joint_names):
            if name in (parts := motions(joint, self.joints.kinds[k])):
                return k, parts.index(name)
        return None

    def q_slice(self, joint: str) -> slice:
        """Slice of q with the coordinates of an independent joint, or of one of its motions.

        Raises:
            MechanismError: when no independent joint has this name.
        """
        return self._independent_slice(self.coordinates, joint)

    def tree_dof_slice(self, joint: str) -> slice:
        """Slice of damping, friction, armature and stiffness with the dofs of a joint."""
        return self._slice(self.layout.dofs, joint, self._leaders)

    def tree_q_slice(self, joint: str) -> slice:
        """Slice of `torchsko.expand(mech, q)` and `spring_reference` with the coordinates of a joint."""
        return self._slice(self.coordinates, joint, self._leaders)

    @property
    def _leaders(self) -> tuple[int, ...]:
        """Indices of all joints of the tree; of joints that share coordinates only the leader."""
        return tuple(dict.fromkeys(self.coordinates.leaders))

    def _independent_slice(self, packing: Packing, joint: str) -> slice:
        if self.coordinates.leaders[self.joint_place(joint)[0]] not in self.independent_joints:
            raise MechanismError(
                f"joint {joint!r} of {self.name!r} is a dependent joint, so q has no entries for it.",
                "Coordinates of all joints are torchsko.expand(mech, q).",
                f"Type mech.tree_q_slice({joint!r}) or mech.tree_dof_slice({joint!r}).",
            )
        return self._slice(packing, joint, self.independent_joints)

    def _slice(self, packing: Packing, joint: str, joints: Sequence[int]) -> slice:
        """Slice of the packed coordinates of some joints with a joint or one of its motions."""
        k, part = self.joint_place(joint)
        k = self.coordinates.leaders[k]
        start = sum(packing.sizes[j] for j in joints[: joints.index(k)]) + (part or 0)
        return slice(start, start + (packing.sizes[k] if part is None else 1))

    def parameter_slice(self, joint: str, name: str) -> slice:
        """Slice of `joint_parameters` with a parameter of a joint, such as its pitch.

        Raises:
            MechanismError: when no moving joint has this name, or its type no such parameter.
        """
        k = self.joint_index(joint)
        kinds, parameters = self.joints.kinds, self.joints.kinds[k].parameters
        place = _index(f"parameter of joint {joint!r}", name, tuple(p.name for p in parameters))
        start = sum(kind.num_parameters for kind in kinds[:k]) + sum(
            p.size for p in parameters[:place]
        )
        return slice(start, start + parameters[place].size)


def motions(joint: str, kind: JointType) -> tuple[str, ...]:
    """Names of the motions of a joint with several scalar coordinates; empty for other joints.

    They are the names in MJCF: the parts of a stacked name ("hip_x+hip_z"), or the name of the joint and of
    the rate ("base_x").
    """
    if not kind.vector or kind.num_dof == 1:
        return ()
    stacked = tuple(joint.split("+"))
    if len(stacked) == kind.num_dof:
        return stacked
    return tuple(f"{joint}_{rate}" for rate in kind.rates)


def _index(kind: str, name: str, names: tuple[str, ...], advice: str | None = None) -> int:
    if name in names:
        return names.index(name)
    said = {} if advice is None else {"advice": advice}
    raise MechanismError(*unknown_name(kind, name, names, **said))
