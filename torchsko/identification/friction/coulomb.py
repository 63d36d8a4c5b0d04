"""Dry friction, independent of speed: sharp, smooth, asymmetric and load-dependent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.identification.friction.term import Term, TermInput


@dataclass(frozen=True)
class Coulomb(Term):
    """Coulomb friction, proportional to the sign of the velocity."""

    nonnegative: ClassVar[bool] = True
    friction: ClassVar[float] = 1.0
    continuous: ClassVar[bool] = False

    def basis(self, motion: TermInput) -> Tensor:
        """Sign of the velocity, averaged over the time step where the velocity changes its sign."""
        if not motion.step:
            return motion.qd.sign()
        # Within half a step of a reversal, the mean of the sign is the velocity over its change.
        change = motion.qdd.abs() * (motion.step / 2)
        tiny = torch.finfo(change.dtype).tiny  # 0 at rest, not 0 / 0
        return motion.qd / torch.maximum(motion.qd.abs(), change).clamp_min(tiny)


@dataclass(frozen=True)
class SmoothCoulomb(Term):
    """Coulomb friction with a smooth transition at zero velocity.

    Args:
        speed: velocity at which the force reaches tanh(1), about three quarters of its maximum [rad/s].
    """

    nonnegative: ClassVar[bool] = True
    friction: ClassVar[float] = 1.0
    positive_shapes: ClassVar[tuple[str, ...]] = ("speed",)
    speed: float = 0.05

    def basis(self, motion: TermInput) -> Tensor:
        """Smooth sign of the velocity: tanh(qd / speed)."""
        return (motion.qd / self.speed).tanh()

    @property
    def friction_speed(self) -> float:
        """Width of the transition [rad/s or m/s]."""
        return self.speed


@dataclass(frozen=True)
class Asymmetric(Term):
    """Difference of dry friction between the two directions of motion; zero at rest, unlike an `Offset`.

    Args:
        speed: transition speed, as of `SmoothCoulomb` [rad/s].
    """

    positive_shapes: ClassVar[tuple[str, ...]] = ("speed",)
    speed: float = 0.05

    def basis(self, motion: TermInput) -> Tensor:
        """Square of the smooth sign: tanh(qd / speed)^2."""
        return (motion.qd / self.speed).tanh().square()


@dataclass(frozen=True)
class Loaded(Term):
    """Dry friction proportional to the magnitude of the transmitted joint force, as in gears.

    The transmitted force is that of the nominal robot. If it is too large by some percentage, the coefficient
    is too small by the same percentage. A second fit that starts from the fitted robot corrects this.

    Args:
        speed: transition speed, as of `SmoothCoulomb` [rad/s].
    """

    nonnegative: ClassVar[bool] = True
    unit: ClassVar[str] = "1"
    continuous: ClassVar[bool] = False
    report_note: ClassVar[str] = (
        "load-dependent friction is a fraction of the nominal robot's joint force, and has the same relative "
        "error; repeat the fit with the fitted robot as the nominal one"
    )
    positive_shapes: ClassVar[tuple[str, ...]] = ("speed",)
    speed: float = 0.05

    def basis(self, motion: TermInput) -> Tensor:
        """|load| tanh(qd / speed)."""
        return motion.load.abs() * (motion.qd / self.speed).tanh()
