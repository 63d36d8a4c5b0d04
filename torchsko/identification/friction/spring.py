"""Springs beside a joint: in proportion to its angle, or between two points as balancers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchsko.identification.friction.term import Series, Term


@dataclass(frozen=True)
class Spring(Term):
    """A torsion spring, cable or hose; with an `Offset`, whatever its zero."""

    unit: ClassVar[str] = "N m/rad"
    linear: ClassVar[bool] = True

    def column(self, motion: Series) -> Tensor:
        """The position."""
        return motion.q


@dataclass(frozen=True)
class Balancer(Term):
    """A coil spring from a point of the link to a point of what carries it, as heavy arms are balanced by.

    The number is its stiffness. Of a spring of no free length two `Periodic(1.0, ...)` are the same, with
    nothing to be known of its points.

    Args:
        near: distance of the link's point from the joint's axis [m].
        far: distance of the other point from it [m].
        zero: position of the joint where the two points are in line and nearest [rad].
        free: length of the spring without load [m].
    """

    dissipates: ClassVar[bool] = True
    unit: ClassVar[str] = "N/m"
    why: ClassVar[str] = (
        "no spring pushes as if stiffness were negative (is zero= that of its points?)"
    )
    positive: ClassVar[tuple[str, ...]] = ("near", "far")
    not_negative: ClassVar[tuple[str, ...]] = ("free",)
    near: float = 0.1
    far: float = 0.5
    zero: float = 0.0
    free: float = 0.0

    def column(self, motion: Series) -> Tensor:
        """Derivative of half of the squared extension by the position."""
        angle = motion.q - self.zero
        square = self.near**2 + self.far**2 - 2 * self.near * self.far * angle.cos()
        pull = 1 - self.free / square.clamp_min(1e-12).sqrt()
        return self.near * self.far * angle.sin() * pull
