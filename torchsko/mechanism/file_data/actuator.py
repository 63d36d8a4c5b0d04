r"""Description of an actuator: a transmission, a gain, a bias, and an optional activation.

With the length l of its transmission and its rate,

.. math::
    l = \sum_j g_j q_j, \qquad
    f = (k_0 + k_1 l + k_2 \dot l)\, u + b_0 + b_1 l + b_2 \dot l, \qquad \tau_j = g_j f,

where u is the control, or an activation with the control as input. Names and meanings are MuJoCo's.

Reference: MuJoCo documentation, "Computation" (Actuation model) and "XML reference" (actuator).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchsko.errors import MechanismError
from torchsko.mechanism.description import UnsupportedElement

Activation = Literal["none", "integrator", "filter", "filterexact"]
"""No activation; an integrator of the control; a first-order filter, by Euler steps or exact."""

ACTIVATIONS = ("none", "integrator", "filter", "filterexact")

Range = tuple[float, float]
Affine = tuple[float, float, float]
"""Constant, per length [1/m or 1/rad], per rate of length [s/m or s/rad]."""

UNLIMITED: Range = (-math.inf, math.inf)


def as_range(x: Iterable[float]) -> Range:
    """Lower and upper end, from two numbers of any type."""
    low, high = map(float, x)
    return low, high


def check_range(name: str, ends: Range) -> None:
    """Check that a range is not empty.

    Raises:
        MechanismError: if the lower end is above the upper one, or an end is nan.
    """
    low, high = ends
    if not low <= high:
        raise MechanismError(
            f"{name} is [{low}, {high}].", "The range is empty.", "Pass (lower, upper)."
        )


@dataclass(frozen=True)
class Actuator:
    """One actuator; static methods make the usual kinds.

    Its length l is in rad or m. Its force is that on the joint in N m or N, before the gear.

    Attributes:
        name: of the actuator.
        transmission: gear ratios by the names of joints [1, or m for a force on a revolute joint]; a tendon
            has several joints.
        gain: force per control: constant, per length, per rate.
        bias: force independent of the control: constant [N m or N], per length [N m/rad or N/m], per rate of
            length [N m s/rad or N s/m].
        activation: dynamics of the activation.
        time_constant: of a filter [s].
        activation_range: limits of the activation.
        early: whether the force is computed from the activation at the end of the time step.
        control_range: limits of the control.
        force_range: limits of the force [N or N m].
        stall: of a torque-speed curve, the largest force at rest [N or N m]. At speed v the largest force is
            stall (1 - v / no_load_speed) forward, and with -v backward.
        no_load_speed: of the torque-speed curve, rate of length at zero force [m/s or rad/s].
        efficiency: of the gear in both directions, in (0, 1].

    Raises:
        MechanismError: on an unknown activation, or a number out of range.
    """

    name: str
    transmission: Mapping[str, float]
    gain: Affine = (1.0, 0.0, 0.0)
    bias: Affine = (0.0, 0.0, 0.0)
    activation: Activation = "none"
    time_constant: float = 1.0
    activation_range: Range = UNLIMITED
    early: bool = False
    control_range: Range = UNLIMITED
    force_range: Range = UNLIMITED
    stall: float = math.inf
    no_load_speed: float = math.inf
    efficiency: float = 1.0

    @property
    def has_curve(self) -> bool:
        """True if it has a torque-speed curve."""
        return math.isfinite(self.stall)

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise MechanismError(
                f"actuator {self.name!r} has the activation {self.activation!r}.",
                f"The activations are {', '.join(ACTIVATIONS)}.",
                "Use one of these.",
            )
        if not self.time_constant > 0:
            raise MechanismError(
                f"actuator {self.name!r} has the time constant {self.time_constant} s.",
                "The time constant of a filter is positive.",
                "Pass a positive number, or activation='none'.",
            )
        for what in ("stall", "no_load_speed"):
            if not getattr(self, what) > 0:
                raise MechanismError(
                    f"{what} of actuator {self.name!r} is {getattr(self, what)}.",
                    "A torque-speed curve falls from the stall torque to zero at the no-load speed.",
                    "Pass positive numbers for both, or leave both out.",
                )
        if not 0 < self.efficiency <= 1:
            raise MechanismError(
                f"the efficiency of actuator {self.name!r} is {self.efficiency}.",
                "The efficiency is a fraction of the power.",
                "Pass a number above 0 and at most 1.",
            )
        for what in ("control_range", "force_range", "activation_range"):
            check_range(f"{what} of actuator {self.name!r}", getattr(self, what))

    @staticmethod
    def motor(
        name: str, joint: str, *, gear: float = 1.0, control_range: Range = UNLIMITED,
        force_range: Range = UNLIMITED,
    ) -> Actuator:  # fmt: skip
        """A motor: the control is the force before the gear.

        Args:
            name: of the actuator.
            joint: driven joint.
            gear: length per coordinate of the joint, and joint force per force before the gear.
            control_range: limits of the control [N m or N].
            force_range: limits of the force before the gear [N m or N].
        """
        return Actuator(name, {joint: gear}, control_range=control_range, force_range=force_range)

    @staticmethod
    def position(
        name: str, joint: str, *, kp: float, kv: float = 0.0, gear: float = 1.0,
        time_constant: float | None = None, control_range: Range = UNLIMITED, force_range: Range = UNLIMITED,
    ) -> Actuator:  # fmt: skip
        """A position servo: a spring of stiffness kp to the control, with damping kv.

        With a time constant, the control passes an exact first-order filter.

        Args:
            name: of the actuator.
            joint: driven joint.
            kp: stiffness [N m/rad or N/m].
            kv: damping [N m s/rad or N s/m].
            gear: length per coordinate of the joint, and joint force per force before the gear.
            time_constant: of the filter [s].
            control_range: limits of the control, a length of the transmission [rad or m].
            force_range: limits of the force before the gear [N m or N].
        """
        return Actuator(
            name, {joint: gear}, (kp, 0.0, 0.0), (0.0, -kp, -kv),
            "none" if time_constant is None else "filterexact",
            1.0 if time_constant is None else time_constant,
            control_range=control_range, force_range=force_range,
        )  # fmt: skip

    @staticmethod
    def velocity(
        name: str, joint: str, *, kv: float, gear: float = 1.0, control_range: Range = UNLIMITED,
        force_range: Range = UNLIMITED,
    ) -> Actuator:  # fmt: skip
        """A velocity servo: a damper of gain kv to the control.

        Args:
            name: of the actuator.
            joint: driven joint.
            kv: damping [N m s/rad or N s/m].
            gear: length per coordinate of the joint, and joint force per force before the gear.
            control_range: limits of the control, a rate of length [rad/s or m/s].
            force_range: limits of the force before the gear [N m or N].
        """
        return Actuator(name, {joint: gear}, (kv, 0.0, 0.0), (0.0, 0.0, -kv),
                        control_range=control_range, force_range=force_range)  # fmt: skip

    @staticmethod
    def intvelocity(
        name: str, joint: str, *, kp: float, activation_range: Range, kv: float = 0.0,
        gear: float = 1.0, control_range: Range = UNLIMITED, force_range: Range = UNLIMITED,
    ) -> Actuator:  # fmt: skip
        """An integrated-velocity servo: a spring of stiffness kp to the integral of the control.

        Args:
            name: of the actuator.
            joint: driven joint.
            kp: stiffness [N m/rad or N/m].
            activation_range: limits of the integral, a length of the transmission [rad or m].
            kv: damping [N m s/rad or N s/m].
            gear: length per coordinate of the joint, and joint force per force before the gear.
            control_range: limits of the control, a rate of length [rad/s or m/s].
            force_range: limits of the force before the gear [N m or N].
        """
        return Actuator(name, {joint: gear}, (kp, 0.0, 0.0), (0.0, -kp, -kv), "integrator",
                        activation_range=activation_range, control_range=control_range,
                        force_range=force_range)  # fmt: skip

    @staticmethod
    def damper(
        name: str, joint: str, *, kv: float, control_range: Range, gear: float = 1.0,
        force_range: Range = UNLIMITED,
    ) -> Actuator:  # fmt: skip
        """A damper whose coefficient is kv times the control, which is not negative.

        Args:
            name: of the actuator.
            joint: driven joint.
            kv: damping per unit of control [N m s/rad or N s/m].
            control_range: limits of the control, not negative [1].
            gear: length per coordinate of the joint, and joint force per force before the gear.
            force_range: limits of the force before the gear [N m or N].

        Raises:
            MechanismError: when `control_range` begins below zero.
        """
        if control_range[0] < 0:
            raise MechanismError(
                f"the control_range of damper {name!r} is {list(control_range)}.",
                "A negative control would drive the joint.",
                "Pass a range that begins at 0 or above.",
            )
        return Actuator(name, {joint: gear}, (0.0, 0.0, -kv), control_range=control_range,
                        force_range=force_range)  # fmt: skip

    @staticmethod
    def cylinder(
        name: str, joint: str, *, area: float, time_constant: float = 1.0,
        bias: Affine = (0.0, 0.0, 0.0), gear: float = 1.0, control_range: Range = UNLIMITED,
        force_range: Range = UNLIMITED,
    ) -> Actuator:  # fmt: skip
        """A pneumatic or hydraulic cylinder: the pressure is the filtered control.

        Args:
            name: of the actuator.
            joint: driven joint.
            area: of the piston, force per pressure [m^2].
            time_constant: of the filter [s].
            bias: force independent of the control: constant, per length, per rate of length.
            gear: length per coordinate of the joint, and joint force per force before the gear.
            control_range: limits of the control [Pa].
            force_range: limits of the force before the gear [N].
        """
        return Actuator(name, {joint: gear}, (area, 0.0, 0.0), bias, "filter", time_constant,
                        control_range=control_range, force_range=force_range)  # fmt: skip

    @staticmethod
    def dc_motor(
        name: str, joint: str, *, torque_constant: float, resistance: float, voltage: float,
        gear: float = 1.0, efficiency: float = 1.0, force_range: Range = UNLIMITED,
    ) -> Actuator:  # fmt: skip
        r"""A brushed DC motor on a gear, without inductance: the control is its voltage u.

        .. math::
            f = \frac{k}{R} (u - k \dot l), \qquad |u| \le U,

        so its stall torque is k U / R and its no-load speed U / k, before the gear. Torque constant and
        back-EMF constant are equal in SI units.

        Args:
            name: of the actuator.
            joint: driven joint.
            torque_constant: k [N m/A, V s/rad].
            resistance: R of the winding [Ohm].
            voltage: supply voltage U [V].
            gear: turns of the motor per turn of the joint.
            efficiency: of the gear.
            force_range: limits of the motor's torque by a current limit [N m].
        """
        gain = torque_constant / resistance
        return Actuator(name, {joint: gear}, (gain, 0.0, 0.0), (0.0, 0.0, -gain * torque_constant),
                        control_range=(-voltage, voltage), force_range=force_range,
                        efficiency=efficiency)  # fmt: skip

    @staticmethod
    def torque_source(
        name: str, joint: str, *, stall: float, no_load_speed: float, gear: float = 1.0,
        efficiency: float = 1.0, force_range: Range = UNLIMITED,
    ) -> Actuator:  # fmt: skip
        """A current-controlled motor: the control is its torque, within its torque-speed curve.

        Args:
            name: of the actuator.
            joint: driven joint.
            stall: torque at rest [N m].
            no_load_speed: speed at zero torque [rad/s].
            gear: turns of the motor per turn of the joint.
            efficiency: of the gear.
            force_range: limits of the torque by a current limit [N m].
        """
        return Actuator(name, {joint: gear}, force_range=force_range, stall=stall,
                        no_load_speed=no_load_speed, efficiency=efficiency)  # fmt: skip


@dataclass(frozen=True)
class FileActuators:
    """The actuators of a robot file.

    Attributes:
        actuators: in the order of controls.
        joint_range: limits of the total actuator force on a joint, by its name [N m or N].
        lifting_joints: joints whose gravity compensation is an actuator force.
        unused: elements of the file that are not modeled.
    """

    actuators: tuple[Actuator, ...] = ()
    joint_range: Mapping[str, Range] = field(default_factory=dict)
    lifting_joints: tuple[str, ...] = ()
    unused: tuple[UnsupportedElement, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the actuators, in the order of controls."""
        return tuple(actuator.name for actuator in self.actuators)

    @property
    def activation_names(self) -> tuple[str, ...]:
        """Names of the actuators with an activation, in the order of activations."""
        return tuple(actuator.name for actuator in self.actuators if actuator.activation != "none")

    @property
    def unsupported(self) -> tuple[UnsupportedElement, ...]:
        """The actuators that are not modeled; `unused` has other elements as well."""
        return tuple(x for x in self.unused if x.element.startswith("actuator '"))
