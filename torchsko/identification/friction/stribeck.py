"""Friction that falls when motion starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchsko.identification.friction.term import Series, Term


@dataclass(frozen=True)
class Stribeck(Term):
    """What dry friction is more by at low speed; use it with a Coulomb term.

    Args:
        speed: at which it has fallen to a third [rad/s].
        smooth: as the speed of `SmoothCoulomb` [rad/s].

    Reference: C. Canudas de Wit, H. Olsson, K. Astrom, P. Lischinsky, *A new model for control of systems
    with friction*, IEEE Trans. Automatic Control 40(3), 1995, Eq. 4.
    """

    dissipates: ClassVar[bool] = True
    positive: ClassVar[tuple[str, ...]] = ("speed", "smooth")
    speed: float = 0.2
    smooth: float = 0.02

    def column(self, motion: Series) -> Tensor:
        """tanh(qd / smooth) exp(-(qd / speed)^2)."""
        return (motion.qd / self.smooth).tanh() * (-(motion.qd / self.speed).square()).exp()
