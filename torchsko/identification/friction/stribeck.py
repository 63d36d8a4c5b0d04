"""Stribeck friction: additional dry friction at low speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchsko.identification.friction.term import Term, TermInput


@dataclass(frozen=True)
class Stribeck(Term):
    """Excess of friction at low speed over Coulomb friction; add a Coulomb term.

    Args:
        speed: Stribeck velocity, at which the excess has decreased to 37% [rad/s].
        smooth: transition speed at rest, as of `SmoothCoulomb` [rad/s].

    Reference: C. Canudas de Wit, H. Olsson, K. Astrom, P. Lischinsky, *A new model for control of systems
    with friction*, IEEE Trans. Automatic Control 40(3), 1995, Eq. 4.
    """

    nonnegative: ClassVar[bool] = True
    positive_shapes: ClassVar[tuple[str, ...]] = ("speed", "smooth")
    speed: float = 0.2
    smooth: float = 0.02

    def basis(self, motion: TermInput) -> Tensor:
        """Smooth sign that decays with speed: tanh(qd / smooth) exp(-(qd / speed)^2)."""
        return (motion.qd / self.smooth).tanh() * (-(motion.qd / self.speed).square()).exp()


@dataclass(frozen=True)
class StribeckCoulomb(Term):
    """Coulomb friction with the Stribeck effect: the steady state of `LuGre`.

    Args:
        speed: Stribeck velocity, at which the additional friction at rest has decreased to 37% [rad/s].
        ratio: static friction over Coulomb friction.

    Reference: C. Canudas de Wit et al., 1995 (see `Stribeck`), Eq. 4.
    """

    nonnegative: ClassVar[bool] = True
    friction: ClassVar[float] = 1.0
    continuous: ClassVar[bool] = False
    positive_shapes: ClassVar[tuple[str, ...]] = ("speed", "ratio")
    speed: float = 0.1
    ratio: float = 1.5

    def level(self, qd: Tensor) -> Tensor:
        """Magnitude of the force, 1 at high speed."""
        return 1 + (self.ratio - 1) * (-(qd / self.speed).square()).exp()

    def basis(self, motion: TermInput) -> Tensor:
        """Sign of the velocity times the level."""
        return motion.qd.sign() * self.level(motion.qd)
