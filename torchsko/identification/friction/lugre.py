r"""LuGre friction: presliding hysteresis, the Stribeck effect and bristle damping.

The bristle state z, in units of the Coulomb level, satisfies
:math:`x_s \dot z = v (1 - z \, \mathrm{sign}(v) / g(v))` with :math:`g(v) = 1 + (r - 1) e^{-(v / v_s)^2}`.
This is linear in z while the motion keeps its direction. It is solved along the path as in `Dahl`, so no time
step is too long.

Reference: C. Canudas de Wit, H. Olsson, K. Astrom, P. Lischinsky, *A new model for control of systems with
friction*, IEEE Trans. Automatic Control 40(3), 1995, Eqs. 1 to 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchsko.identification.friction.dahl import bristle_state
from torchsko.identification.friction.stribeck import StribeckCoulomb
from torchsko.identification.friction.term import Term, TermInput


@dataclass(frozen=True)
class LuGre(Term):
    """LuGre friction, whose coefficient is the Coulomb level; add `Viscous` for sigma_2.

    Args:
        distance: presliding distance, the Coulomb level over the bristle stiffness sigma_0 [rad].
        speed: Stribeck velocity, at which the additional friction at rest has decreased to 37% [rad/s].
        ratio: static friction over Coulomb friction.
        time: bristle damping over bristle stiffness, sigma_1 / sigma_0 [s].
    """

    nonnegative: ClassVar[bool] = True
    friction: ClassVar[float] = 1.0
    continuous: ClassVar[bool] = False
    positive_shapes: ClassVar[tuple[str, ...]] = ("distance", "speed", "ratio")
    memory: ClassVar[bool] = True
    nonnegative_shapes: ClassVar[tuple[str, ...]] = ("time",)
    distance: float = 0.02
    speed: float = 0.1
    ratio: float = 1.5
    time: float = 0.0

    def basis(self, motion: TermInput) -> Tensor:
        """Bristle force over the Coulomb level; its steady-state value if samples are unordered."""
        level, sign = self.memoryless.level(motion.qd), motion.qd.sign()
        if not motion.ordered:
            return sign * level
        z = bristle_state(motion.q / self.distance, sign, level)
        return z + self.time / self.distance * motion.qd * (1 - z * sign / level)

    @property
    def memoryless(self) -> StribeckCoulomb:
        """Coulomb friction with the Stribeck effect."""
        return StribeckCoulomb(self.speed, self.ratio)
