"""Friction that grows with speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchsko.identification.friction.term import Term, TermInput


@dataclass(frozen=True)
class Viscous(Term):
    """Viscous friction, proportional to the velocity."""

    nonnegative: ClassVar[bool] = True
    unit: ClassVar[str] = "N m s/rad"
    damping: ClassVar[float] = 1.0
    linear: ClassVar[bool] = True

    def basis(self, motion: TermInput) -> Tensor:
        """Velocity."""
        return motion.qd


@dataclass(frozen=True)
class Turbulent(Term):
    """Quadratic friction; the coefficient is negative if the lubricant thins as the speed increases."""

    unit: ClassVar[str] = "N m s^2/rad^2"

    def basis(self, motion: TermInput) -> Tensor:
        """Qd |qd|."""
        return motion.qd * motion.qd.abs()
