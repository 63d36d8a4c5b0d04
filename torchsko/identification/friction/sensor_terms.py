"""Forces of a joint that are no friction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.identification.friction.term import Series, Term


@dataclass(frozen=True)
class Offset(Term):
    """A constant: a sensor's zero, a current that a controller adds."""

    linear: ClassVar[bool] = True
    kept: ClassVar[bool] = True

    def column(self, motion: Series) -> Tensor:
        """Ones."""
        return torch.ones_like(motion.qd)


@dataclass(frozen=True)
class RotorInertia(Term):
    """Inertia of a rotor behind its gear (armature), in proportion to the acceleration.

    Named for a joint it is all of it, in place of the nominal robot's; chosen from a library it is what
    comes to that.
    """

    dissipates: ClassVar[bool] = True
    unit: ClassVar[str] = "kg m^2"
    inertia: ClassVar[float] = 1.0
    why: ClassVar[str] = "no rotor has a negative inertia"
    continuous: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    def column(self, motion: Series) -> Tensor:
        """The acceleration."""
        return motion.qdd


@dataclass(frozen=True)
class Periodic(Term):
    """A force that repeats with the position: an unbalanced magnet, a gear's teeth, an eccentric sensor.

    Args:
        times: in a turn.
        phase: 0 for the cosine, 0.25 for the sine [turns].
    """

    positive: ClassVar[tuple[str, ...]] = ("times",)
    times: float = 1.0
    phase: float = 0.0

    def column(self, motion: Series) -> Tensor:
        """The cosine of the position."""
        return (self.times * motion.q - 2 * math.pi * self.phase).cos()


@dataclass(frozen=True)
class Delay(Term):
    """How much later forces are measured than positions [s], to first order.

    It belongs to the sensors: in predicted forces it does nothing.
    """

    unit: ClassVar[str] = "s"
    continuous: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    def column(self, motion: Series) -> Tensor:
        """The rate of the measured force, against its sign."""
        return torch.zeros_like(motion.qd) if motion.rate is None else -motion.rate


@dataclass(frozen=True)
class Gain(Term):
    """An error of the scale of measured forces: a torque constant, a transmission ratio.

    A robot all of whose masses are larger by a tenth is the same as sensors that show a tenth more: what
    tells them apart is the nominal robot. The number is the part that measured forces are too large by.
    """

    unit: ClassVar[str] = "1"
    continuous: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    def column(self, motion: Series) -> Tensor:
        """The nominal robot's force."""
        return motion.load
