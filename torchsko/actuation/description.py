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
from collections.abc import Mapping
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


@dataclass(frozen=True)
class Actuator:
    """One actuator. The static methods make the usual kinds.

    Attributes:
        name: of the actuator.
        transmission: gear ratios by the names of joints [1, or m for a force on a turning joint]; a tendon
            of joints has several.
        gain: force per control: constant, per length, per rate.
        bias: force besides: constant, per length, per rate.
        activation: how the control acts.
        time_constant: of a filter [s].
        activation_range: to which the activation saturates.
        early: whether the force comes from the activation at the end of the time step.
        control_range: to which the control saturates.
        force_range: to which the force saturates [N or N m].
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

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise MechanismError(
                f"actuator {self.name!r} has the activation {self.activation!r}.\n"
                f"Known are {', '.join(ACTIVATIONS)}.\nUse one of them."
            )
        if not self.time_constant > 0:
            raise MechanismError(
                f"actuator {self.name!r} has the time constant {self.time_constant} s.\n"
                "A filter follows in finite time.\nPass a positive number, or activation='none'."
            )
        for what in ("control_range", "force_range", "activation_range"):
            low, high = getattr(self, what)
            if not low <= high:
                raise MechanismError(
                    f"the {what} of actuator {self.name!r} is [{low}, {high}].\n"
                    "No number is within it.\nWrite the lower end first."
                )

    @staticmethod
    def motor(
        name: str, joint: str, *, gear: float = 1.0, control_range: Range = ANY,
        force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """The control is the force, times the gear."""
        return Actuator(name, {joint: gear}, control_range=control_range, force_range=force_range)

    @staticmethod
    def position(
        name: str, joint: str, *, kp: float, kv: float = 0.0, gear: float = 1.0,
        time_constant: float | None = None, control_range: Range = ANY, force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """A spring of stiffness kp to the position that the control gives, with damping kv.

        Where there is a time constant, the position follows the control by an exact filter.
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
        """A damper of gain kv to the velocity that the control gives."""
        return Actuator(name, {joint: gear}, (kv, 0.0, 0.0), (0.0, 0.0, -kv),
                        control_range=control_range, force_range=force_range)  # fmt: skip

    @staticmethod
    def intvelocity(
        name: str, joint: str, *, kp: float, activation_range: Range, kv: float = 0.0,
        gear: float = 1.0, control_range: Range = ANY, force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """A spring of stiffness kp to the integral of the control: a velocity, held as a position."""
        return Actuator(name, {joint: gear}, (kp, 0.0, 0.0), (0.0, -kp, -kv), "integrator",
                        activation_range=activation_range, control_range=control_range,
                        force_range=force_range)  # fmt: skip

    @staticmethod
    def damper(
        name: str, joint: str, *, kv: float, control_range: Range, gear: float = 1.0,
        force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """A damper whose coefficient is kv times the control, which is not negative."""
        if control_range[0] < 0:
            raise MechanismError(
                f"the control_range of damper {name!r} is {list(control_range)}.\n"
                "Below zero it would drive the joint.\nPass a range from 0 on."
            )
        return Actuator(name, {joint: gear}, (0.0, 0.0, -kv), control_range=control_range,
                        force_range=force_range)  # fmt: skip

    @staticmethod
    def cylinder(
        name: str, joint: str, *, area: float, time_constant: float = 1.0,
        bias: Affine = (0.0, 0.0, 0.0), gear: float = 1.0, control_range: Range = ANY,
        force_range: Range = ANY,
    ) -> Actuator:  # fmt: skip
        """A pneumatic or hydraulic cylinder: pressure follows the control by a filter."""
        return Actuator(name, {joint: gear}, (area, 0.0, 0.0), bias, "filter", time_constant,
                        control_range=control_range, force_range=force_range)  # fmt: skip
