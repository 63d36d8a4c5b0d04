r"""Friction of bristles that bend, slide, and resist being bent quickly: stick, slip, and what lies between.

LuGre's state in units of Coulomb's level, :math:`x_s \dot z = v (1 - z \, \mathrm{sign}(v) / g(v))` with
:math:`g(v) = 1 + (r - 1) e^{-(v / v_s)^2}`, is linear in z while the motion keeps its sign: it is solved
along the path, as Dahl's is, and no step is too long.

Reference: C. Canudas de Wit, H. Olsson, K. Astrom, P. Lischinsky, *A new model for control of systems with
friction*, IEEE Trans. Automatic Control 40(3), 1995, Eqs. 1 to 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchsko.identification.friction.dahl import REMEMBERS, bristles
from torchsko.identification.friction.term import Series, Term


@dataclass(frozen=True)
class LuGre(Term):
    """Dry friction with bristles, of which the number is Coulomb's level; add `Viscous` for sigma_2.

    Args:
        distance: over which bristles bend: the level over their stiffness sigma_0 [rad].
        speed: Stribeck's, at which friction has fallen to a third of the way [rad/s].
        ratio: of friction at rest to that in motion.
        time: damping of bristles over their stiffness, sigma_1 / sigma_0 [s].
    """

    dissipates: ClassVar[bool] = True
    level: ClassVar[tuple[float, float]] = (0.0, 1.0)
    continuous: ClassVar[bool] = False
    positive: ClassVar[tuple[str, ...]] = ("distance", "speed", "ratio")
    note: ClassVar[str] = REMEMBERS
    not_negative: ClassVar[tuple[str, ...]] = ("time",)
    distance: float = 0.02
    speed: float = 0.1
    ratio: float = 1.5
    time: float = 0.0

    def column(self, motion: Series) -> Tensor:
        """The bristles' force over Coulomb's level; in steady motion where samples are in no order."""
        level = 1 + (self.ratio - 1) * (-(motion.qd / self.speed).square()).exp()
        sign = motion.qd.sign()
        if not motion.ordered:
            return sign * level
        z = bristles(motion.q / self.distance, sign, level)
        return z + self.time / self.distance * motion.qd * (1 - z * sign / level)
