"""Springs that act on a joint: torsion springs and balancers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchsko.identification.friction.term import Term, TermInput


@dataclass(frozen=True)
class Spring(Term):
    """Torsion spring, cable or hose; add an `Offset` for its rest position."""

    unit: ClassVar[str] = "N m/rad"
    linear: ClassVar[bool] = True

    def basis(self, motion: TermInput) -> Tensor:
        """Position."""
        return motion.q


@dataclass(frozen=True)
class Balancer(Term):
    """Coil spring between a point of the link and a point of its parent, as in the balancers of heavy arms.

    The coefficient is the stiffness. For a spring of zero free length, two `Periodic(1.0, ...)` terms are
    equivalent and need no geometry.

    Args:
        near: distance of the link's attachment point from the joint axis [m].
        far: distance of the parent's attachment point from the joint axis [m].
        zero: joint position at which the two points are in line with the axis and nearest [rad].
        free: length of the unloaded spring [m].
    """

    nonnegative: ClassVar[bool] = True
    unit: ClassVar[str] = "N/m"
    zero_reason: ClassVar[str] = (
        "no spring has a negative stiffness (check zero=, the position at which its points are nearest)"
    )
    positive_shapes: ClassVar[tuple[str, ...]] = ("near", "far")
    nonnegative_shapes: ClassVar[tuple[str, ...]] = ("free",)
    near: float = 0.1
    far: float = 0.5
    zero: float = 0.0
    free: float = 0.0

    def basis(self, motion: TermInput) -> Tensor:
        """Derivative of half the squared extension with respect to the position."""
        angle = motion.q - self.zero
        square = self.near**2 + self.far**2 - 2 * self.near * self.far * angle.cos()
        extension = 1 - self.free / square.clamp_min(1e-12).sqrt()
        return self.near * self.far * angle.sin() * extension
