"""Friction that grows with speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchsko.identification.friction.term import Series, Term


@dataclass(frozen=True)
class Viscous(Term):
    """In proportion to the velocity."""

    dissipates: ClassVar[bool] = True
    unit: ClassVar[str] = "N m s/rad"
    level: ClassVar[tuple[float, float]] = (1.0, 0.0)
    usual: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def column(self, motion: Series) -> Tensor:
        """The velocity."""
        return motion.qd


@dataclass(frozen=True)
class Turbulent(Term):
    """In proportion to the velocity's square, against the motion; negative where oil thins."""

    unit: ClassVar[str] = "N m s^2/rad^2"

    def column(self, motion: Series) -> Tensor:
        """Velocity times speed."""
        return motion.qd * motion.qd.abs()
