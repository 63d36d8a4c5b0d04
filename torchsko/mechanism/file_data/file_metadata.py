"""Data of a robot file besides its dynamics: initial configuration, named states and loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchsko.constraints.constraint_kinds import soft_kind
from torchsko.constraints.row_kinds import ConstraintKind
from torchsko.errors import MechanismError
from torchsko.mechanism.description import (
    IDENTITY,
    ZERO,
    LinkDescription,
    Matrix,
    UnsupportedElement,
    Vector,
)
from torchsko.mechanism.file_data.actuator import FileActuators
from torchsko.mechanism.file_data.sensor import Sensor
from torchsko.mechanism.file_data.solver_options import SolverOptions
from torchsko.mechanism.file_data.tendon import Tendon

FrameName = str | None
"""Name of a frame, or None for the inertial frame."""

CUT = 'is cut: ts.step enforces it softly; closures="embed" and ts.constrain(mech, mech.closures) exactly'
"""Reason of `Mechanism.unused` for loops of files that are cut."""

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Keyframe:
    """A named state of a robot file.

    Attributes:
        name: name of the state; generated if the file has none.
        time: time [s].
        q: configuration of the independent joints, `[num_q]`.
        qd: velocity, `[num_dof]`.
        activation: activations of actuators, `[len(activation_names)]`.
        ctrl: controls of actuators, `[len(control_names)]`.
        activation_names: actuators with an activation, in file order.
        control_names: actuators with a control, in file order; see
            `torchsko.actuators.Actuators.at_keyframe`.
    """

    name: str
    time: float
    q: Tensor
    qd: Tensor
    activation: Tensor
    ctrl: Tensor
    activation_names: tuple[str, ...] = ()
    control_names: tuple[str, ...] = ()

    def to(self, target: torch.device | torch.dtype) -> Keyframe:
        """Copy on another device, or in another floating-point type."""
        names = ("q", "qd", "activation", "ctrl")
        return replace(self, **{name: getattr(self, name).to(target) for name in names})


@dataclass(frozen=True)
class Closure:
    """A kinematic loop: a constraint between two frames, or between two joints.

    Attributes:
        name: name of the constraint; generated if the file has none.
        kind: name of a kind of constraint (`torchsko.constraints.constraint_kinds.KINDS`), "tendon" for one
            between tendons, or the type of another joint.
        frame1: frame of the first point.
        frame2: frame of the second point.
        position1: first point in its frame [m].
        position2: second point in its frame [m].
        rotation: from coordinates of the second frame to those of the first when the loop is closed.
        active: whether the constraint is active initially.
        solref: MuJoCo's reference parameters: time constant [s] and damping ratio, or stiffness and damping.
        solimp: MuJoCo's impedance parameters.
        method: "embed" if the dynamics satisfies it in independent dofs, "cut" if only `torchsko.constrain`
            enforces it.
        parameters: numbers of the kind, such as the length of a "distance".
        joints: both joints of a constraint between joints, or both tendons; empty for frames.
        independent: joints whose dofs are independent; empty if they are chosen automatically.
        torque_scale: ratio of the rotational residual [m/rad] of a "weld" in `torchsko.step`.
        invweight: inverse masses and inverse inertias, each summed over both bodies, which scale the softness
            in `torchsko.step` [1/kg, 1/(kg m^2)]; empty if they are computed from the mechanism.
    """

    name: str
    kind: str
    frame1: FrameName
    frame2: FrameName
    position1: Vector = ZERO
    position2: Vector = ZERO
    rotation: Matrix = IDENTITY
    active: bool = True
    solref: tuple[float, ...] = ()
    solimp: tuple[float, ...] = ()
    method: str = "cut"
    parameters: tuple[float, ...] = ()
    joints: tuple[str, ...] = ()
    independent: tuple[str, ...] = ()
    torque_scale: float = 1.0
    invweight: tuple[float, ...] = ()

    @property
    def note(self) -> UnsupportedElement:
        """Entry of `Mechanism.unused` for a loop that is cut."""
        ends = self.joints or (self.frame1, self.frame2)
        one, two = ("the inertial frame" if x is None else repr(x) for x in ends)
        element = f"loop {self.name!r} ({self.kind} of {one} and {two})"
        reason = CUT if self.is_known else "is cut: no constraint is of this kind"
        if not self.active:
            return UnsupportedElement(element, "disabled in the file")
        return UnsupportedElement(element, reason, affects_forces=True, in_step=self.is_known)

    @property
    def is_known(self) -> bool:
        """True if a constraint has rows of this kind."""
        return soft_kind(self.kind) is not None

    def numbers(self, kind: ConstraintKind) -> tuple[float, ...]:
        """Values of the parameters of a kind: attributes of these names, then entries of ``parameters``.

        Raises:
            MechanismError: when ``parameters`` has another number of entries.
        """
        own = [name for name in kind.parameters if hasattr(self, name)]
        if len(self.parameters) != len(kind.parameters) - len(own):
            raise MechanismError(
                f"closure {self.name!r} has the numbers {list(self.parameters)}.",
                f"A {kind.name} constraint has {len(kind.parameters)}: {', '.join(kind.parameters)}.",
                "Pass parameters=(...).",
            )
        return (*(getattr(self, name) for name in own), *self.parameters)


@dataclass(frozen=True)
class Coupled:
    """An equality of a file that is a coupling of the mechanism, which satisfies it exactly.

    Attributes:
        joint: the dependent joint.
        equality: the equality, with its name and parameters of the soft constraint for new files.
        violation: initial position of the joint in the file minus that of the coupling [rad or m].
    """

    joint: str
    equality: Closure
    violation: float = 0.0


@dataclass(frozen=True)
class FileMetadata:
    """Data of a robot file besides its dynamics.

    Attributes:
        keyframes: named states.
        closures: kinematic loops.
        initial: initial configuration, `[num_q]`; None for the neutral one.
        solver: parameters of MuJoCo's constraint solver.
        actuators: the actuators of the file.
        sensors: the sensors of the file.
        tendons: tendons on joints, whose limits, dry friction and armature act in `torchsko.step`.
        unused_tendons: spatial tendons, and fields of tendons that are not modeled.
        centers: center of mass of the link of a frame, in the frame [m], by the name of the frame; for links
            that are welded to others. Inverse masses are those at this point.
        links: inertial parameters of the links as in the file; a new file divides a body into them.
        mocap_bodies: fixed bodies that MuJoCo's users place at run time.
        coupled: equalities that are couplings, by dependent joint.
    """

    keyframes: tuple[Keyframe, ...] = ()
    closures: tuple[Closure, ...] = ()
    initial: Tensor | None = field(default=None, compare=False)
    solver: SolverOptions = field(default_factory=SolverOptions)
    actuators: FileActuators = field(default_factory=FileActuators)
    sensors: tuple[Sensor, ...] = ()
    tendons: tuple[Tendon, ...] = ()
    unused_tendons: tuple[UnsupportedElement, ...] = ()
    centers: Mapping[str, Vector] = field(default_factory=dict)
    links: tuple[LinkDescription, ...] = ()
    mocap_bodies: tuple[str, ...] = ()
    coupled: tuple[Coupled, ...] = ()

    def __repr__(self) -> str:
        counts = f"{len(self.keyframes)} keyframes, {len(self.closures)} closures"
        return f"FileMetadata({counts})"

    def to(self, target: torch.device | torch.dtype) -> FileMetadata:
        """Copy on another device, or in another floating-point type."""
        start = None if self.initial is None else self.initial.to(target)
        return replace(
            self, keyframes=tuple(key.to(target) for key in self.keyframes), initial=start
        )

    def map_states(self, q: Map, qd: Map) -> FileMetadata:
        """Apply maps of configurations and of velocities to each state."""
        keys = (replace(key, q=q(key.q), qd=qd(key.qd)) for key in self.keyframes)
        return replace(
            self, keyframes=tuple(keys), initial=None if self.initial is None else q(self.initial)
        )

    def without_weights(self) -> FileMetadata:
        """Copy without the inverse weights of the file, which are then computed from the mechanism."""
        return replace(
            self,
            closures=tuple(replace(c, invweight=()) for c in self.closures),
            coupled=tuple(
                replace(x, equality=replace(x.equality, invweight=())) for x in self.coupled
            ),
            solver=replace(self.solver, dof_invweight=()),
            tendons=tuple(replace(t, invweight=None) for t in self.tendons),
        )


NO_FILE_METADATA = FileMetadata()
