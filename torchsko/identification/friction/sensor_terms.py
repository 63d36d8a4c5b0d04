"""Joint forces other than friction: sensor errors, rotor inertia and torque ripple."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.identification.friction.term import Term, TermInput


@dataclass(frozen=True)
class Offset(Term):
    """Constant force: the zero offset of a torque sensor, or a constant current of the controller."""

    offset: ClassVar[float] = 1.0
    linear: ClassVar[bool] = True

    def basis(self, motion: TermInput) -> Tensor:
        """Ones."""
        return torch.ones_like(motion.qd)


@dataclass(frozen=True)
class RotorInertia(Term):
    """Reflected rotor inertia (armature), proportional to the acceleration.

    If the term is named for a joint, it replaces the armature of the nominal robot. If it is selected from
    the candidate terms, it is added to that armature.
    """

    nonnegative: ClassVar[bool] = True
    unit: ClassVar[str] = "kg m^2"
    armature: ClassVar[float] = 1.0
    zero_reason: ClassVar[str] = "no rotor has a negative inertia"
    continuous: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    def basis(self, motion: TermInput) -> Tensor:
        """Acceleration."""
        return motion.qdd


@dataclass(frozen=True)
class Periodic(Term):
    """Force that is periodic in the position, as from cogging, gear teeth or an eccentric sensor.

    Args:
        times: periods per turn.
        phase: 0 for a cosine, 0.25 for a sine [periods].
    """

    positive_shapes: ClassVar[tuple[str, ...]] = ("times",)
    times: float = 1.0
    phase: float = 0.0

    def basis(self, motion: TermInput) -> Tensor:
        """Cosine of the position."""
        return (self.times * motion.q - 2 * math.pi * self.phase).cos()


@dataclass(frozen=True)
class Delay(Term):
    """Delay of measured forces relative to measured positions [s], to first order.

    This is a sensor error. It does not act on the joint, so predicted forces do not include it.
    """

    unit: ClassVar[str] = "s"
    continuous: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    def basis(self, motion: TermInput) -> Tensor:
        """Negative time derivative of the measured force."""
        return torch.zeros_like(motion.qd) if motion.force_rate is None else -motion.force_rate


@dataclass(frozen=True)
class Gain(Term):
    """Relative error of the scale of measured forces: of a torque constant, say.

    The log cannot separate a common scale of all masses from a common scale of all force sensors. The nominal
    robot determines the scale. The coefficient is the fraction by which measured forces are too large.
    """

    unit: ClassVar[str] = "1"
    continuous: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    def basis(self, motion: TermInput) -> Tensor:
        """Force of the nominal robot."""
        return motion.load


@dataclass(frozen=True)
class Ratio(Term):
    """Relative error of measured positions and velocities: a wrong gear ratio of an encoder.

    This is a sensor error; predicted forces do not include it. Only the method "shooting" identifies it,
    because it simulates the motion. For an error of the force scale use `Gain`.
    """

    unit: ClassVar[str] = "1"
    continuous: ClassVar[bool] = False
    sensor_scale: ClassVar[float] = 1.0

    def basis(self, motion: TermInput) -> Tensor:
        """Zero."""
        return torch.zeros_like(motion.qd)
