"""A mechanism: frozen tensors and names, no state, no cache.

Bodies and joints come in file order, depth first; body k is moved by joint k. Fixed joints are merged at
build, the frames of the links they carried are kept by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.packing import Packing
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.coordinates import all_q, all_rates, uncoupled
from torchsko.mechanism.coupling import Coupling
from torchsko.mechanism.description import Fault, UnsupportedElement
from torchsko.mechanism.dispatch import MechanismSource
from torchsko.mechanism.file_metadata import FileMetadata, Keyframe
from torchsko.mechanism.geometry import Geometry
from torchsko.mechanism.joints.configuration import (
    neutral_configuration,
    random_configuration,
)
from torchsko.mechanism.joints.groups import JointSet
from torchsko.mechanism.limit_notes import LIMITS, without_gone
from torchsko.mechanism.numbering import Numbering
from torchsko.mechanism.validation import check_batch, check_device, check_dtype, check_parameter
from torchsko.utils.shapes import broadcast_shapes

PARAMETERS = {
    "mass": ("num_bodies",),
    "com": ("num_bodies", 3),
    "inertia": ("num_bodies", 3, 3),
    "gravcomp": ("num_bodies", 4),
    "joint_rotation": ("num_bodies", 3, 3),
    "joint_position": ("num_bodies", 3),
    "axis": ("num_bodies", 3),
    "joint_parameters": ("num_joint_parameters",),
    "coupling_ratio": ("num_ratios",),
    "coupling_offset": ("num_dependent",),
    "damping": ("num_tree_dof",),
    "higher_damping": ("num_tree_dof", 2),
    "friction": ("num_tree_dof",),
    "armature": ("num_tree_dof",),
    "stiffness": ("num_tree_dof",),
    "spring_reference": ("num_tree_q",),
    "gravity": (3,),
    "lower": ("num_q",),
    "upper": ("num_q",),
    "velocity_limit": ("num_dof",),
    "effort_limit": ("num_dof",),
    "frame_rotation": ("num_frames", 3, 3),
    "frame_position": ("num_frames", 3),
}
"""Every tensor of a mechanism with its shape for one robot; any may carry leading batch dimensions."""


@dataclass(frozen=True, eq=False)
class Mechanism(Numbering, MechanismSource):
    """A robot as frozen tensors and names; see `torchsko.load` and `MechanismBuilder`.

    Every parameter may carry leading batch dimensions, which broadcast with those of the state: a
    different robot for every sample. SI units, radians; frames as in the README's conventions.

    Where joints follow others (`MechanismBuilder.couple`, mimic joints of a file, rotors), q, qd and forces
    are those of the independent joints, and so are the limits, which count what dependent joints allow. What
    each joint has of its own (damping, friction, armature, springs) keeps one number for every joint of the
    tree, and reaches the independent ones as the chain rule says: tau = X* tau_tree.

    Attributes:
        name: of the robot.
        body_names: moving bodies, in file order (depth first).
        tree_joint_names: the joint that moves each body.
        frame_names: every link of the file, merged ones included.
        frame_body: the body that carries each frame; -1 for the inertial frame.
        mass: `[num_bodies]` [kg].
        com: centre of mass in the body frame, `[num_bodies, 3]` [m].
        inertia: about the centre of mass, in the body frame's axes, `[num_bodies, 3, 3]` [kg m^2].
        gravcomp: share of each body's weight that is compensated, by a passive force at its centre of mass;
            and first moment by which it acts elsewhere, in the body frame, as where bodies of other shares
            are welded to it: `[num_bodies, 4]` [1, kg m]. Zero for most robots.
        joint_rotation: joint frame to parent body coordinates, `[num_bodies, 3, 3]`.
        joint_position: joint frame origin in the parent body, `[num_bodies, 3]` [m].
        axis: unit axis of a joint that has one, in the joint frame, `[num_bodies, 3]`.
        joint_parameters: what kinds of joints need to know besides (`JointType.parameters`: pitches,
            further axes, points), one joint after the other, `[num_joint_parameters]`.
        coupling_ratio: coefficients of the couplings, one dependent joint after the other,
            `[num_ratios]` [rad/rad, m/rad, ...].
        coupling_offset: c of each dependent joint, `[num_dependent]` [rad or m].
        damping: viscous, `[num_tree_dof]` [N m s/rad or N s/m].
        higher_damping: coefficients of |qd| qd and of qd^3, `[num_tree_dof, 2]`, in the units of damping over
            those of qd once and twice.
        friction: Coulomb, `[num_tree_dof]` [N m or N]; acts as friction * sign(qd), zero at rest.
        armature: reflected rotor inertia, `[num_tree_dof]` [kg m^2 or kg].
        stiffness: joint spring, `[num_tree_dof]` [N m/rad or N/m].
        spring_reference: configuration in which springs are relaxed, `[num_tree_q]`.
        gravity: `[3]` [m/s^2].
        lower: `[num_q]`, -inf where unlimited.
        upper: `[num_q]`, inf where unlimited.
        velocity_limit: `[num_dof]`.
        effort_limit: `[num_dof]`.
        frame_rotation: frame to body coordinates, `[num_frames, 3, 3]`.
        frame_position: frame origin in its body, `[num_frames, 3]` [m].
        layout: tree, block sizes and index tensors.
        coordinates: packing of configurations of the tree.
        joints: the joints by kind, with their index tensors.
        coupling: which joints follow from which others; None where all are independent.
        singular_joints: joints whose hinge inertia vanishes; forward dynamics refuses them by name.
        bare_joints: joints that neither armature nor the inertia of the very body they move resists, as where
            two joints meet in a massless body; some methods refuse them by name.
        has_armature: whether any armature was given.
        has_losses: whether any damping or dry friction was given.
        has_higher_damping: whether any damping was given that is not linear.
        has_gravcomp: whether any weight is compensated.
        aligned: whether every axis is a coordinate axis of its joint frame, so that motion along it
            has one component; False after `replace(axis=...)`.
        scalar: written to be traced to scalars (see `torchsko.linalg.symmetric`); set by `torchsko.fuse`.
        replaced: tensors that `replace` was given: kernels that are taken by themselves keep them inputs, so
            that a loop over robots builds once (see `torchsko.fused.automatic`).
        unused: what the robot file held and the dynamics does not use, each with the reason.
        report: what was wrong in the robot file, each with what was done about it (`torchsko.load`).
        file_metadata: named states and loops of the robot file.
        geometry: shapes to be seen and to touch, each on a frame; no verb reads them.
    """

    name: str
    body_names: tuple[str, ...]
    tree_joint_names: tuple[str, ...]
    frame_names: tuple[str, ...]
    frame_body: tuple[int, ...]
    mass: Tensor
    com: Tensor
    inertia: Tensor
    gravcomp: Tensor
    joint_rotation: Tensor
    joint_position: Tensor
    axis: Tensor
    joint_parameters: Tensor
    coupling_ratio: Tensor
    coupling_offset: Tensor
    damping: Tensor
    higher_damping: Tensor
    friction: Tensor
    armature: Tensor
    stiffness: Tensor
    spring_reference: Tensor
    gravity: Tensor
    lower: Tensor
    upper: Tensor
    velocity_limit: Tensor
    effort_limit: Tensor
    frame_rotation: Tensor
    frame_position: Tensor
    layout: Layout
    coordinates: Packing
    joints: JointSet
    file_metadata: (
        FileMetadata  # without defaults: torch 2.11 cannot trace calls with objects as such
    )
    geometry: Geometry
    coupling: Coupling | None = None
    singular_joints: tuple[str, ...] = ()
    bare_joints: tuple[str, ...] = ()
    has_armature: bool = False
    has_losses: bool = False
    has_higher_damping: bool = False
    has_gravcomp: bool = False
    aligned: bool = False
    scalar: bool = False
    replaced: tuple[str, ...] = ()
    unused: tuple[UnsupportedElement, ...] = ()
    report: tuple[Fault, ...] = ()

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
    def keyframes(self) -> dict[str, Keyframe]:
        """The states that the robot file names, by name; such as ``mech.keyframes["home"].q``."""
        return {key.name: key for key in self.file_metadata.keyframes}

    @property
    def tree(self) -> Mechanism:
        """The mechanism with all joints independent, whose coordinates are those of `torchsko.expand`.

        Limits that its own joints hand to those they follow stay there; the followers have none.
        """
        if self.coupling is None:
            return self
        free = torch.cat(
            [self.lower.new_full((self.num_dependent,), x) for x in (-torch.inf, torch.inf)]
        )
        lower, upper = free.split(self.num_dependent)
        limits = {
            "lower": (self.lower, lower, self.coupling.q_place),
            "upper": (self.upper, upper, self.coupling.q_place),
            "velocity_limit": (self.velocity_limit, upper, self.coupling.dof_place),
            "effort_limit": (self.effort_limit, upper, self.coupling.dof_place),
        }
        return uncoupled(self).replace(
            file_metadata=self.file_metadata.map_states(
                lambda q: all_q(self, q), lambda qd: all_rates(self, qd)
            ),
            **{
                name: torch.cat([own, none.expand(*own.shape[:-1], -1)], -1).index_select(-1, place)
                for name, (own, none, place) in limits.items()
            },
        )

    def mechanism(self) -> Mechanism:
        """This mechanism itself; layers and fused mechanisms provide theirs by the same method."""
        return self

    def replace(self, **changes: Any) -> Mechanism:
        """A mechanism with some fields changed; this one stays as it is.

        Args:
            **changes: new values by field name; tensors of the shapes listed in the class, with any
                leading batch dimensions. `singular_joints` and `bare_joints` keep the verdict made at
                load: call `checked` to redo it. Notes in `unused` on limits are of those that hold now.

        Raises:
            MechanismError: on an unknown field, or a tensor whose shape, dtype or device does not fit. Values
                are not checked: layers replace all of them at every call.
        """
        names = tuple(field.name for field in fields(self))
        for name, value in changes.items():
            if name not in names:
                raise MechanismError(*unknown_name("field of Mechanism", name, names))
            if name in PARAMETERS:
                check_parameter(self, name, value, PARAMETERS[name])
        for name in changes.keys() & PARAMETERS.keys():
            dtype = changes[name].dtype
            if dtype != self.dtype:  # expressions of a trace, which are float64
                given = {n: x.to(dtype) if n in PARAMETERS else x for n, x in changes.items()}
                return self.to(dtype).replace(**given)
        if "armature" in changes:
            changes.setdefault("has_armature", True)
        if "damping" in changes or "friction" in changes or "higher_damping" in changes:
            changes.setdefault("has_losses", True)
        if "higher_damping" in changes:
            changes.setdefault("has_higher_damping", True)
        if "gravcomp" in changes:
            changes.setdefault("has_gravcomp", True)
        if "axis" in changes:
            changes.setdefault("aligned", False)
        if "replaced" not in changes:
            new = (n for n in PARAMETERS if n in changes or n in self.replaced)
            changes["replaced"] = tuple(new)
        made = Mechanism(**{name: changes.get(name, getattr(self, name)) for name in names})
        if "unused" in changes or not any(changes.get(x) is not None for x in LIMITS):
            return made
        notes = without_gone(made, self.unused)
        return made if notes == self.unused else made.replace(unused=notes)

    def lock(self, values: Mapping[str, Any]) -> Mechanism:
        """The mechanism with some joints held where they are told to be; differentiable in the values.

        What a locked joint joined is one body: masses add up, all frames keep their names. The other
        joints keep their order, limits, losses, springs and armature; those of locked joints are gone.
        Joints that follow others stop when all of these are locked; what one follows besides becomes a
        part of its offset. Bodies that hang on the inertial frame then are in ``unused``.
        `singular_joints` and `bare_joints` keep the verdict made at load, as in `replace`.

        Kernels of a robot that is locked once have what it became as constants, and are the faster for it:
        another value is another build. In a loop over values pass them with a batch dimension,
        ``{"joint7": torch.tensor([[x]])}``: what has one is an input of kernels, and all share one build.

        Args:
            values: by the names of joints, a number for a joint of one coordinate, or the coordinates
                `[*batch, num_q of the joint]` [rad, m]. Batch dimensions become those of the parameters.

        Raises:
            MechanismError: on a name that no moving joint has, a joint that follows others, or when
                nothing is left that moves.
            ShapeError: when a value does not fit its joint.

        Example:
            >>> import torchsko as ts
            >>> ts.load(ts.robots.panda).lock({"joint7": 0.5})
            Mechanism('panda': 6 bodies, 6 dofs, 6 revolute; torch.float64, cpu)
        """
        from torchsko.mechanism.lock import locked  # few robots are ever locked: not at each start

        return locked(self, values)

    def append(
        self,
        other: Mechanism,
        frame: str,
        rotation: Tensor | Sequence[Sequence[float]] | None = None,
        position: Tensor | Sequence[float] | None = None,
        *,
        prefix: str = "",
        weld: bool = True,
    ) -> Mechanism:
        """The mechanism with another one on it, placed at a frame; differentiable in the placement.

        What hung on the other's inertial frame hangs on the frame. Where the other floats (its only root
        is a free joint), its base is welded to the frame; that is how its base keeps its mass, so load
        it with ``floating_base=True``. Bodies, joints, frames, q, qd and tau are this one's, then the
        other's. Gravity is this one's. Keyframes are gone: none says where both are. `singular_joints` and
        `bare_joints` keep the verdicts made at load, as in `replace`: where the other gives inertia to a
        joint that had none, call `torchsko.checked`.

        Args:
            other: of the same dtype and device.
            frame: name from ``frame_names`` of this one.
            rotation: the other's inertial frame (or its floating base) to the frame, `[*batch, 3, 3]`;
                identity when left out.
            position: its origin in the frame, `[*batch, 3]` [m]; zero when left out.
            prefix: put before all names of the other.
            weld: False keeps a free joint of the other's base, now between the frame and it.

        Raises:
            MechanismError: on an unknown frame, another dtype or device, names that both have, a placement
                that is none, or, at a frame that moves, mass that the other left out since it hung on the
                inertial frame, from its file on or since a joint was locked.
            ShapeError: when rotation or position does not fit.

        Example:
            >>> import torchsko as ts
            >>> arm, tool = ts.load(ts.robots.panda), ts.load(ts.robots.panda, floating_base=True)
            >>> arm.append(tool, arm.frame_names[-1], position=(0.0, 0.0, 0.1), prefix="upper_")
            Mechanism('panda': 14 bodies, 14 dofs, 14 revolute; torch.float64, cpu)
        """
        from torchsko.mechanism.append import appended  # as in `lock`

        return appended(self, other, PARAMETERS, frame, rotation, position, prefix, weld)

    def to(self, target: torch.device | torch.dtype | str) -> Mechanism:
        """The mechanism on another device, or in another floating-point type.

        Raises:
            MechanismError: on a type other than float32 and float64, or what is no device.
        """
        if isinstance(target, torch.dtype):
            check_dtype(self.name, target)
        else:
            target = check_device(self.name, target)
        changes: dict[str, Any] = {name: getattr(self, name).to(target) for name in PARAMETERS}
        if not isinstance(target, torch.dtype):
            changes["layout"] = self.layout.to(target)
            changes["coordinates"] = self.coordinates.to(target)
            changes["joints"] = self.joints.to(target)
            changes["coupling"] = None if self.coupling is None else self.coupling.to(target)
        changes["file_metadata"] = self.file_metadata.to(target)
        names = (field.name for field in fields(self))
        return Mechanism(**{name: changes.get(name, getattr(self, name)) for name in names})

    def float(self) -> Mechanism:
        """The mechanism in float32."""
        return self.to(torch.float32)

    def double(self) -> Mechanism:
        """The mechanism in float64."""
        return self.to(torch.float64)

    def random_state(
        self, *batch: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """A random state within limits.

        Joint positions are uniform between their limits ([-pi, pi] rad or [-1, 1] m where there are
        none), orientations uniform over all rotations, velocities uniform within their limits, at most
        pi rad/s or 1 m/s where there are none.

        Args:
            *batch: batch dimensions.
            generator: source of randomness, on the mechanism's device.

        Returns:
            q `[*batch, num_q]` and qd `[*batch, num_dof]`.

        Raises:
            ShapeError: on a batch dimension that is no number, or negative.
        """
        check_batch(batch)
        q = random_configuration(self, batch, generator)
        uniform = torch.rand(
            *batch, self.num_dof, generator=generator, dtype=self.dtype, device=self.device
        )
        kinds = self.joints.kinds
        reach = [r for k in self.independent_joints for r in kinds[k].usual_speed]
        fallback = torch.tensor(reach, dtype=self.dtype, device=self.device)
        bound = torch.where(self.velocity_limit.isfinite(), self.velocity_limit, fallback)
        return q, (2 * uniform - 1) * bound

    def neutral(self) -> Tensor:
        """The configuration of zeros and identity orientations, `[num_q]`.

        It may lie outside of the limits (the knees of many humanoids cannot be straight); `middle`
        does not.
        """
        return neutral_configuration(self)

    def initial(self) -> Tensor:
        """Where the robot file puts it, a configuration `[num_q]`; the neutral one where it says nothing.

        Of MJCF that is ``qpos0``: a floating body stands where the file has it, a joint at its `ref`. Of SDF
        loaded with ``floating_base=True`` a link that nothing holds is where its pose says. What is locked
        or appended keeps its own. A file's named states are in ``keyframes``.
        """
        # A tensor of its own each time, as `neutral` gives: what a user changes in place is no other's.
        return (
            self.neutral()
            if self.file_metadata.initial is None
            else self.file_metadata.initial.clone()
        )

    def middle(self) -> Tensor:
        """The configuration in the middle of the limits, `[*batch, num_q]`; batched where limits are.

        A joint with a limit on one side, or none, is at its neutral position, or at the limit where
        that lies beyond it. Orientations are the identity.
        """
        own = (self.joints.kinds[k] for k in self.independent_joints)
        flat = [kind.vector for kind in own for _ in range(kind.num_q)]
        bounded = self.lower.isfinite() & self.upper.isfinite()
        nearest = torch.minimum(torch.maximum(self.neutral(), self.lower), self.upper)
        inside = torch.where(bounded, (self.lower + self.upper) / 2, nearest)
        return torch.where(torch.tensor(flat, device=self.device), inside, self.neutral())

    def __repr__(self) -> str:
        kinds = self.joint_kinds
        coupled = f", {self.num_dependent} dependent" if self.num_dependent else ""
        counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
        joints = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        return (
            f"Mechanism({self.name!r}: {self.num_bodies} bodies, {self.num_dof} dofs, {joints}{coupled}; "
            f"{self.dtype}, {self.device})"
        )
