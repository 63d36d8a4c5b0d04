"""Dry friction: of one size against the motion, sharp or smooth, the same both ways or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.identification.friction.term import Series, Term


@dataclass(frozen=True)
class Coulomb(Term):
    """Sharp: the sign of the velocity."""

    dissipates: ClassVar[bool] = True
    level: ClassVar[tuple[float, float]] = (0.0, 1.0)
    usual: ClassVar[bool] = True
    continuous: ClassVar[bool] = False

    def column(self, motion: Series) -> Tensor:
        """The sign of the velocity: its mean over a step, for a jump is between two samples."""
        if not motion.step:
            return motion.qd.sign()
        # Where the velocity turns within half a step of the sample, the part of it that is ahead counts.
        change = motion.qdd.abs() * (motion.step / 2)
        least = torch.finfo(change.dtype).tiny  # at rest 0, not 0 / 0
        return motion.qd / torch.maximum(motion.qd.abs(), change).clamp_min(least)


@dataclass(frozen=True)
class SmoothCoulomb(Term):
    """Smooth: a hyperbolic tangent.

    Args:
        speed: at which three quarters are reached [rad/s].
    """

    dissipates: ClassVar[bool] = True
    level: ClassVar[tuple[float, float]] = (0.0, 1.0)
    usual: ClassVar[bool] = True
    positive: ClassVar[tuple[str, ...]] = ("speed",)
    speed: float = 0.05

    def column(self, motion: Series) -> Tensor:
        """Hyperbolic tangent of the velocity over the speed."""
        return (motion.qd / self.speed).tanh()

    @property
    def limit(self) -> Term:
        """Sharp dry friction."""
        return Coulomb()


@dataclass(frozen=True)
class Asymmetric(Term):
    """What dry friction differs by between the two ways, besides an offset: it vanishes at rest.

    Args:
        speed: as of `SmoothCoulomb`.
    """

    positive: ClassVar[tuple[str, ...]] = ("speed",)
    speed: float = 0.05

    def column(self, motion: Series) -> Tensor:
        """tanh^2 of the velocity over the speed."""
        return (motion.qd / self.speed).tanh().square()


@dataclass(frozen=True)
class Loaded(Term):
    """Dry friction in proportion to the force that the joint carries, as in gears.

    That force is the nominal robot's, which is known before the fit: where it is too large by a part, the
    number is too small by it. A fit once more, from the robot that was found, has it right.

    Args:
        speed: as of `SmoothCoulomb`.
    """

    dissipates: ClassVar[bool] = True
    unit: ClassVar[str] = "1"
    continuous: ClassVar[bool] = False
    note: ClassVar[str] = (
        "friction by load is a part of the nominal robot's force, and off by as much as that is; once more "
        "from the robot found it is right"
    )
    positive: ClassVar[tuple[str, ...]] = ("speed",)
    speed: float = 0.05

    def column(self, motion: Series) -> Tensor:
        """The nominal robot's force, without its sign, times tanh of the velocity over the speed."""
        return motion.load.abs() * (motion.qd / self.speed).tanh()
