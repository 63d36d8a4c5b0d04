"""Robot model: frozen tensors and names, without state or cache.

Bodies and joints are in file order, depth first; joint k moves body k. Links joined by fixed joints are one
body, and each link remains a named frame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchsko.mechanism.closed_chains.open_chains import cut_loops, independent_joints
from torchsko.mechanism.coordinates import open_tree
from torchsko.mechanism.reference_states import ReferenceStates


@dataclass(frozen=True, eq=False)
class Mechanism(ReferenceStates):
    """A robot as frozen tensors and names; see `torchsko.load` and `MechanismBuilder`.

    Every parameter may carry leading batch dimensions, which broadcast with those of the state: a
    different robot for every sample. SI units, radians; frames as in the README's conventions.

    Dependent joints follow others by a coupling (`MechanismBuilder.couple`, mimic joints, rotors). Then q,
    qd, forces and limits are those of the independent joints; limits include those of the dependent joints.
    Damping, friction, armature and springs have one entry for every joint of the tree, and act on the
    independent joints by the transpose of the coupling matrix: tau = X* tau_tree.

    Attributes:
        name: name of the robot.
        body_names: moving bodies, in file order (depth first).
        tree_joint_names: joint that moves each body.
        frame_names: all links of the file, including merged ones.
        frame_body: index of the body that carries each frame; -1 for the inertial frame.
        mass: `[num_bodies]` [kg].
        com: center of mass in the body frame, `[num_bodies, 3]` [m].
        inertia: about the center of mass, in the body frame's axes, `[num_bodies, 3, 3]` [kg m^2].
        gravcomp: gravity compensation by passive forces, `[num_bodies, 4]`: the fraction of each body's
            weight that is compensated at its center of mass [1], and a first moment in the body frame for
            welded bodies with different fractions [kg m]. Zero for most robots.
        joint_rotation: joint frame to parent body coordinates, `[num_bodies, 3, 3]`.
        joint_position: joint frame origin in the parent body, `[num_bodies, 3]` [m].
        axis: unit joint axis in the joint frame, `[num_bodies, 3]`; z for joint types without an axis.
        joint_parameters: further parameters of joint types (`JointType.parameters`: pitches, second axes,
            points), one joint after the other, `[num_joint_parameters]`.
        coupling_ratio: coefficients of the couplings, one dependent joint after the other,
            `[num_ratios]` [rad/rad, m/rad, ...].
        coupling_offset: constant term of each coupling, `[num_dependent]` [rad or m].
        damping: viscous damping coefficient, `[num_tree_dof]` [N m s/rad or N s/m].
        higher_damping: coefficients of |qd| qd and of qd^3, `[num_tree_dof, 2]` [N m s^2/rad^2 and
            N m s^3/rad^3, or N s^2/m^2 and N s^3/m^3].
        friction: Coulomb friction, `[num_tree_dof]` [N m or N]; the force is friction * sign(qd), zero at
            rest.
        friction_speed: width of smooth Coulomb friction, `[num_tree_dof]` [rad/s or m/s]; where it is not
            zero, the force is friction * tanh(qd / friction_speed).
        force_offset: constant joint force that the drive overcomes, `[num_tree_dof]` [N m or N], such as
            the offset of a force sensor.
        armature: reflected rotor inertia, `[num_tree_dof]` [kg m^2 or kg].
        stiffness: joint spring stiffness, `[num_tree_dof]` [N m/rad or N/m].
        higher_stiffness: coefficients of x^2 and x^3 of springs, `[num_tree_dof, 2]` [N m/rad^2 and
            N m/rad^3, or N/m^2 and N/m^3]; for rotation vectors and translations x is the length.
        modal_stiffness: stiffness matrix of the modal coordinates of flexible bodies and of the joints that
            springs connect (`MechanismBuilder.spring`), in the order of q, `[num_modes, num_modes]`; the
            symmetric part counts. The energy of deformation is eta* K eta / 2.
        modal_damping: damping matrix of these coordinates, `[num_modes, num_modes]`.
        spring_reference: configuration in which springs are relaxed, `[num_tree_q]`.
        gravity: acceleration of gravity in the inertial frame, `[3]` [m/s^2].
        medium: density [kg/m^3] and viscosity [N s/m^2] of the fluid around the robot, `[2]`.
        wind: velocity of the fluid in the inertial frame, `[3]` [m/s].
        fluid_rotation: axes of each shape with fluid forces in its body, `[num_fluid_shapes, 3, 3]`.
        fluid_position: its center in the body, `[num_fluid_shapes, 3]` [m].
        fluid_size: edges of boxes, semi-axes of ellipsoids, `[num_fluid_shapes, 3]` [m].
        fluid_coefficients: of ellipsoids, `[num_fluid_shapes, 12]`; see `torchsko.bridge.fluid_forces`.
        lower: lower position limits, `[num_q]`, -inf for none.
        upper: upper position limits, `[num_q]`, inf for none.
        velocity_limit: largest speeds, `[num_dof]`, inf for none.
        effort_limit: largest joint forces, `[num_dof]`, inf for none.
        frame_rotation: frame to body coordinates, `[num_frames, 3, 3]`.
        frame_position: frame origin in its body, `[num_frames, 3]` [m].
        layout: tree, block sizes and index tensors.
        coordinates: packing of the configurations of all joints of the tree.
        joints: joints grouped by type, with their index tensors.
        coupling: structure of the couplings; None if no joint follows others.
        closing: structure of the loops that are embedded; None without loops.
        singular_joints: joints whose articulated-body inertia vanishes; forward dynamics refuses them by
            name.
        bare_joints: joints without armature whose body has no inertia along the joint's motion, as between
            two joints of a massless body; some methods refuse them by name.
        has_armature: whether armature is not zero.
        has_losses: whether damping, higher damping, friction or modal damping is not zero.
        has_higher_damping: whether higher damping is not zero.
        has_higher_stiffness: whether higher stiffness is not zero.
        has_smooth_friction: whether `friction_speed` is not zero.
        has_force_offset: whether `force_offset` is not zero.
        has_gravcomp: whether gravity compensation is not zero.
        has_fluid: whether the fluid exerts forces.
        fluid_bodies: body of each shape with fluid forces.
        fluid_models: its model, "box" or "ellipsoid".
        aligned: whether every axis is a coordinate axis of its joint frame, so that motion along it
            has one component; False after `replace(axis=...)`.
        replaced: names of tensors set by `replace`. Automatic kernels take them as inputs, so that a loop
            over robots builds once (see `torchsko.fused.automatic`).
        unused: elements of the robot file that the dynamics does not use, each with the reason.
        report: errors of the robot file, each with the value used instead (`torchsko.load`).
        file_metadata: named states and loops of the robot file.
        geometry: visual and collision shapes, each on a frame; dynamics ignores them.
    """

    @property
    def tree(self) -> Mechanism:
        """The mechanism without couplings, whose coordinates are those of `torchsko.expand`.

        Dependent joints have no limits; the joints that they follow keep the combined limits.
        """
        return open_tree(cut_loops(self))

    def mechanism(self) -> Mechanism:
        """This mechanism itself; layers and fused mechanisms provide theirs by the same method."""
        return self

    def lock(self, values: Mapping[str, Any], *, strict: bool = False) -> Mechanism:
        """The mechanism with some joints fixed at given positions; differentiable in the values.

        Bodies connected by a locked joint become one body with their total mass and inertia, and all frames
        keep their names. The remaining joints keep their order, limits, losses, springs and armature. A
        dependent joint is fixed when all joints that it follows are locked; otherwise the locked ones change
        its offset. Embedded loops stay closed: a locked joint of a loop, independent or dependent, leaves the
        loop one dof less. `singular_joints` and `bare_joints` are not updated, as in `replace`.

        Actuators, tendons, equalities and sensors that act on locked joints only are left out, with their
        controls in keyframes; those of further joints continue with the locked ones at their values, which
        are numbers there, without gradients. ``unused`` lists what is left out, and bodies fixed to the
        inertial frame.

        Kernels hold the parameters of the locked robot as constants, so another value is another build. In a
        loop over values pass them with a batch dimension, ``{"joint7": torch.tensor([[x]])}``: batched
        parameters are inputs of the kernels, and all values share one build.

        Args:
            values: by joint name, a number for a joint with one coordinate, or coordinates
                `[*batch, num_q of the joint]` [rad, m]. Their batch dimensions become those of parameters.
            strict: refuse to leave out what a warning would name.

        Raises:
            MechanismError: on an unknown joint, a joint that follows others, loops that do not close at these
                values, several values for a joint on whose position a tendon, an equality or an actuator
                depends, if no degree of freedom remains, or with `strict` what would be left out.
            ShapeError: when a value does not fit its joint.

        Warns:
            RobotFileWarning: names sensors that are not modeled on bodies without joints.

        Example:
            >>> import torchsko as ts
            >>> ts.load(ts.robots.panda).lock({"joint7": 0.5})
            Mechanism('panda': 6 bodies, 6 dofs, 6 revolute; torch.float64, cpu)
        """
        from torchsko.mechanism.edits.rebuilt_loops import lock_joints  # at first use

        return lock_joints(self, values, strict)

    def append(
        self,
        other: Mechanism,
        frame: str,
        rotation: Tensor | Sequence[Sequence[float]] | None = None,
        position: Tensor | Sequence[float] | None = None,
        *,
        prefix: str = "",
        weld: bool = True,
        strict: bool = False,
    ) -> Mechanism:
        """The mechanism with a second mechanism attached to a frame; differentiable in the placement.

        The frame replaces the inertial frame of the second mechanism. A floating base (a free joint that is
        its only root) is welded to the frame. Load the second robot with ``floating_base=True``, so that its
        base link has mass. Bodies, joints, frames, q, qd and tau are those of this mechanism followed by
        those of the other; so are actuators, with their controls, sensors, tendons, loops, keyframes and
        parameters of the constraint solver. In a keyframe of one mechanism the other is in its initial
        configuration, with zero controls. Gravity, the medium and options such as the time step are those of
        this mechanism. `singular_joints` and `bare_joints` are not updated, as in `replace`; call
        `torchsko.mark_singular_joints` if the second mechanism gives inertia to a joint without any.

        Args:
            other: mechanism of the same dtype and device.
            frame: name from ``frame_names`` of this mechanism.
            rotation: from the other's inertial frame (or floating base) to the frame, `[*batch, 3, 3]`;
                identity if left out.
            position: origin of that frame or base in the frame, `[*batch, 3]` [m]; zero if left out.
            prefix: added to all names of the other mechanism.
            weld: False keeps the free joint of the other's floating base, now relative to the frame.
            strict: refuse to leave out what a warning would name.

        Raises:
            MechanismError: on an unknown frame, another dtype or device, equal names, an invalid placement,
                at a moving frame, links of the other that were fixed to its inertial frame and have mass,
                or with `strict` what would be left out.
            ShapeError: when rotation or position does not fit.

        Warns:
            RobotFileWarning: names different options of the other, and what a batch of placements leaves out;
                ``unused`` lists them.

        Example:
            >>> import torchsko as ts
            >>> arm, tool = ts.load(ts.robots.panda), ts.load(ts.robots.panda, floating_base=True)
            >>> arm.append(tool, arm.frame_names[-1], position=(0.0, 0.0, 0.1), prefix="upper_")
            Mechanism('panda': 14 bodies, 14 dofs, 14 revolute; torch.float64, cpu)
        """
        from torchsko.mechanism.edits.rebuilt_loops import append_mechanism  # at first use

        return append_mechanism(self, other, frame, rotation, position, prefix, weld, strict)

    def __repr__(self) -> str:
        coupled = f", {self.num_dependent} dependent" if self.num_dependent else ""
        if self.closing is not None:
            count, joints = len(self.closing.names), ", ".join(independent_joints(self))
            coupled += f", {count} loop{'s' * (count > 1)} with independent {joints}"
        counts = Counter(self.joint_kinds)
        joints = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        return (
            f"Mechanism({self.name!r}: {self.num_bodies} bodies, {self.num_dof} dofs, {joints}{coupled}; "
            f"{self.dtype}, {self.device})"
        )
