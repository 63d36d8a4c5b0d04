r"""What an actuator is: a transmission, a gain, a bias, and perhaps an activation that follows its control.

With the length l of its transmission and its rate,

.. math::
    l = \sum_j g_j q_j, \qquad
    f = (k_0 + k_1 l + k_2 \dot l)\, u + b_0 + b_1 l + b_2 \dot l, \qquad \tau_j = g_j f,

where u is the control, or an activation with :math:`\dot u` given by it. Names and meanings are MuJoCo's.

Reference: MuJoCo documentation, "Computation" (Actuation model) and "XML reference" (actuator).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from torchsko.errors import MechanismError

Activation = Literal["none", "integrator", "filter", "filterexact"]
"""No activation; one whose rate is the control; one that follows it with a time constant, and exactly so."""

ACTIVATIONS = ("none", "integrator", "filter", "filterexact")

Range = tuple[float, float]
Affine = tuple[float, float, float]
"""Constant, per length [1/m or 1/rad], per rate of length [s/m or s/rad]."""

ANY: Range = (-math.inf, math.inf)


def as_range(x: Iterable[float]) -> Range:
    """Least and largest, from two numbers of any type."""
    low, high = map(float, x)
    return low, high


@dataclass(frozen=True)
class Actuator:
    """One actuator. The static methods make the usual kinds.

    Its length l is in rad or m, and its force in N m or N, as that of what it drives, times the gear.

    Attributes:
        name: of the actuator.
        transmission: gear ratios by the names of joints [1, or m for a force on a turning joint]; a tendon
            of joints has several.
        gain: force per control: constant, per length, per rate.
        bias: force besides, of no control: constant [N m or N], per length [N m/rad or N/m], per rate of
            length [N m s/rad or N s/m].
        activation: how the control acts.
        time_constant: of a filter [s].
        activation_range: to which the activation saturates.
        early: whether the force comes from the activation at the end of the time step.
        control_range: to which the control saturates.
        force_range: to which the force saturates [N or N m].
        stall: of a torque-speed curve, the largest force at rest [N or N m]. At speed v it is
            stall (1 - v / no_load_speed) forward, and as much with -v backward.
        no_load_speed: of the same, rate of the length at which no force is left [m/s or rad/s].
        efficiency: share of the power that passes the gear, either way, in (0, 1].

    Raises:
        MechanismError: on an activation that is not known, or a number outside its range; names both.
    """

    name: str
    transmission: Mapping[str, float]
    gain: Affine = (1.0, 0.0, 0.0)
    bias: Affine = (0.0, 0.0, 0.0)
    activation: Activation = "none"
    time_constant: float = 1.0
    activation_range: Range = ANY
    early: bool = False
    control_range: Range = ANY
    force_range: Range = ANY
    stall: float = math.inf
    no_load_speed: float = math.inf
    efficiency: float = 1.0

    @property
    def curved(self) -> bool:
        """Whether it has a torque-speed curve."""
        return math.isfinite(self.stall)

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise MechanismError(
                f"actuator {self.name!r} has the activation {self.activation!r}.",
                f"Known are {', '.join(ACTIVATIONS)}.",
                "Use one of them.",
            )
        if not self.time_constant > 0:
            raise MechanismError(
                f"actuator {self.name!r} has the time constant {self.time_constant} s.",
                "A filter follows in finite time.",
                "Pass a positive number, or activation='none'.",
            )
        for what in ("stall", "no_load_speed"):
            if not getattr(self, what) > 0:
                raise MechanismError(
                    f"{what} of actuator {self.name!r} is {getattr(self, what)}.",
                    "A torque-speed curve falls from the torque at rest to none at some speed.",
                    "Pass positive numbers for both, or leave both out.",
                )
        if not 0 < self.efficiency <= 1:
            raise MechanismError(
                f"the efficiency of actuator {self.name!r} is {self.efficiency}.",
                "A gear passes on a part of the power.",
                "Pass a number above 0, at most 1.",
            )
        for what in ("control_range", "force_range", "activation_range"):
            low, high = getattr(self, what)
            if not low <= high:
                raise MechanismError(
                    f"the {what} of actuator {self.name!r} is [{low}, {high}].",
                    "No number is within it.",
                    "Write the lower end first.",
                )

    @staticmethod
    def motor(
        name: str, joint: str, *, gear: float = 1.0, control_range: Range = ANY,
        force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """The control is the force, times the gear.

        Args:
            name: of the actuator.
            joint: that it drives.
            gear: length per coordinate of the joint, and force on the joint per force before the gear.
            control_range: to which the control saturates [N m or N].
            force_range: to which the force saturates, before the gear [N m or N].
        """
        return Actuator(name, {joint: gear}, control_range=control_range, force_range=force_range)

    @staticmethod
    def position(
        name: str, joint: str, *, kp: float, kv: float = 0.0, gear: float = 1.0,
        time_constant: float | None = None, control_range: Range = ANY, force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """A spring of stiffness kp to the position that the control gives, with damping kv.

        Where there is a time constant, the position follows the control by an exact filter.

        Args:
            name: of the actuator.
            joint: that it drives.
            kp: stiffness [N m/rad or N/m].
            kv: damping [N m s/rad or N s/m].
            gear: length per coordinate of the joint, and force on the joint per force before the gear.
            time_constant: of the filter [s].
            control_range: to which the control saturates, a length of the transmission [rad or m].
            force_range: to which the force saturates, before the gear [N m or N].
        """
        return Actuator(
            name, {joint: gear}, (kp, 0.0, 0.0), (0.0, -kp, -kv),
            "none" if time_constant is None else "filterexact",
            1.0 if time_constant is None else time_constant,
            control_range=control_range, force_range=force_range,
        )  # fmt: skip

    @staticmethod
    def velocity(
        name: str, joint: str, *, kv: float, gear: float = 1.0, control_range: Range = ANY,
        force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """A damper of gain kv to the velocity that the control gives.

        Args:
            name: of the actuator.
            joint: that it drives.
            kv: damping [N m s/rad or N s/m].
            gear: length per coordinate of the joint, and force on the joint per force before the gear.
            control_range: to which the control saturates, a rate of length [rad/s or m/s].
            force_range: to which the force saturates, before the gear [N m or N].
        """
        return Actuator(name, {joint: gear}, (kv, 0.0, 0.0), (0.0, 0.0, -kv),
                        control_range=control_range, force_range=force_range)  # fmt: skip

    @staticmethod
    def intvelocity(
        name: str, joint: str, *, kp: float, activation_range: Range, kv: float = 0.0,
        gear: float = 1.0, control_range: Range = ANY, force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """A spring of stiffness kp to the integral of the control: a velocity, held as a position.

        Args:
            name: of the actuator.
            joint: that it drives.
            kp: stiffness [N m/rad or N/m].
            activation_range: to which the integral saturates, a length of the transmission [rad or m].
            kv: damping [N m s/rad or N s/m].
            gear: length per coordinate of the joint, and force on the joint per force before the gear.
            control_range: to which the control saturates, a rate of length [rad/s or m/s].
            force_range: to which the force saturates, before the gear [N m or N].
        """
        return Actuator(name, {joint: gear}, (kp, 0.0, 0.0), (0.0, -kp, -kv), "integrator",
                        activation_range=activation_range, control_range=control_range,
                        force_range=force_range)  # fmt: skip

    @staticmethod
    def damper(
        name: str, joint: str, *, kv: float, control_range: Range, gear: float = 1.0,
        force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """A damper whose coefficient is kv times the control, which is not negative.

        Args:
            name: of the actuator.
            joint: that it drives.
            kv: damping for a control of one [N m s/rad or N s/m].
            control_range: to which the control saturates, from 0 on [1].
            gear: length per coordinate of the joint, and force on the joint per force before the gear.
            force_range: to which the force saturates, before the gear [N m or N].

        Raises:
            MechanismError: when `control_range` begins below zero.
        """
        if control_range[0] < 0:
            raise MechanismError(
                f"the control_range of damper {name!r} is {list(control_range)}.",
                "Below zero it would drive the joint.",
                "Pass a range from 0 on.",
            )
        return Actuator(name, {joint: gear}, (0.0, 0.0, -kv), control_range=control_range,
                        force_range=force_range)  # fmt: skip

    @staticmethod
    def cylinder(
        name: str, joint: str, *, area: float, time_constant: float = 1.0,
        bias: Affine = (0.0, 0.0, 0.0), gear: float = 1.0, control_range: Range = ANY,
        force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """A pneumatic or hydraulic cylinder: pressure follows the control by a filter.

        Args:
            name: of the actuator.
            joint: that it drives.
            area: of the piston, force per pressure [m^2].
            time_constant: of the filter [s].
            bias: force besides: constant, per length, per rate of length.
            gear: length per coordinate of the joint, and force on the joint per force before the gear.
            control_range: to which the control saturates [Pa].
            force_range: to which the force saturates, before the gear [N].
        """
        return Actuator(name, {joint: gear}, (area, 0.0, 0.0), bias, "filter", time_constant,
                        control_range=control_range, force_range=force_range)  # fmt: skip

    @staticmethod
    def dc_motor(
        name: str, joint: str, *, torque_constant: float, resistance: float, voltage: float,
        gear: float = 1.0, efficiency: float = 1.0, force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        r"""A brushed DC motor on a gear, without inductance: the control is its voltage u.

        .. math::
            f = \frac{k}{R} (u - k \dot l), \qquad |u| \le U,

        so it stalls at k U / R and has no torque left at the speed U / k of the motor, before the gear.
        Torque constant and back-EMF constant are one number in SI units.

        Args:
            name: of the actuator.
            joint: that it drives.
            torque_constant: k [N m/A, V s/rad].
            resistance: R of the winding [Ohm].
            voltage: U, that of the supply [V].
            gear: turns of the motor per turn of the joint.
            efficiency: of the gear.
            force_range: of the motor's torque [N m], for a controller that limits the current.
        """
        gain = torque_constant / resistance
        return Actuator(name, {joint: gear}, (gain, 0.0, 0.0), (0.0, 0.0, -gain * torque_constant),
                        control_range=(-voltage, voltage), force_range=force_range,
                        efficiency=efficiency)  # fmt: skip

    @staticmethod
    def torque_source(
        name: str, joint: str, *, stall: float, no_load_speed: float, gear: float = 1.0,
        efficiency: float = 1.0, force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """A motor whose current is controlled: the control is its torque, as far as its curve lets it.

        Args:
            name: of the actuator.
            joint: that it drives.
            stall: torque at rest [N m].
            no_load_speed: at which no torque is left [rad/s].
            gear: turns of the motor per turn of the joint.
            efficiency: of the gear.
            force_range: of the torque, for a controller that limits the current [N m].
        """
        return Actuator(name, {joint: gear}, force_range=force_range, stall=stall,
                        no_load_speed=no_load_speed, efficiency=efficiency)  # fmt: skip
