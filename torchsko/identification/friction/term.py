"""One force that a joint adds to the rigid body's, linear in one number: the base of all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar

from torch import Tensor

from torchsko.errors import FitError


@dataclass(frozen=True, eq=False)
class Series:
    """States in order of time, and what friction may depend on besides.

    Attributes:
        q: `[*batch, samples, num_dof]` [rad or m].
        qd: `[*batch, samples, num_dof]`.
        qdd: `[*batch, samples, num_dof]`.
        load: force of the nominal rigid robot at each joint, `[*batch, samples, num_dof]`.
        rate: of the measured force, `[*batch, samples, num_dof]`; None where forces are to be predicted.
        ordered: whether the last dimension but one is time; where not, what remembers is at its steady value.
        step: between samples [s], over which what jumps is the mean, to be filtered; 0 for the moment.
    """

    q: Tensor
    qd: Tensor
    qdd: Tensor
    load: Tensor
    rate: Tensor | None = None
    ordered: bool = True
    step: float = 0.0


@dataclass(frozen=True)
class Term:
    """A force of a joint: a number to be fitted times a function of the motion.

    Terms add up, and each joint may have others. A class of your own needs `column`, and, to be saved, a
    line in `torchsko.identification.friction.TERMS`; `torchsko.identification.identify` chooses it where
    its `library` has it.

    Attributes:
        dissipates: whether the number is friction, and so not negative.
        unit: of the number, at a joint that turns.
        level: what the term adds to dry friction (2nd entry) and damping (1st) of a `Mechanism`.
        inertia: what it adds to the armature.
        shows: by what part positions are shown larger.
        continuous: whether it follows without a jump from the joint's own position and velocity, which is all
            that forward dynamics knows before it has an acceleration.
        linear: whether it is linear in position, velocity and acceleration, or constant: of filtered states
            it is filtered then. What bends them is not yet, and is filtered as often as measured forces were.
        positive: names of shapes that are; all are finite numbers.
        not_negative: of those that may be 0 besides.
        usual: whether every joint has it, so that a fit chooses it by what it predicts alone; others the data
            have to tell, too.
        kept: whether each joint has it that a fit chooses terms of, however little the data tell of it:
            weights would take its part, and be said to be as sure as if it were known to be zero.
        why: what a report says of a number that dissipates and came out negative, so that it is zero.
        note: what a report says of joints that have the term, where it has to be known.
    """

    dissipates: ClassVar[bool] = False
    unit: ClassVar[str] = "N m"
    level: ClassVar[tuple[float, float]] = (0.0, 0.0)
    inertia: ClassVar[float] = 0.0
    shows: ClassVar[float] = 0.0
    continuous: ClassVar[bool] = True
    linear: ClassVar[bool] = False
    positive: ClassVar[tuple[str, ...]] = ()
    not_negative: ClassVar[tuple[str, ...]] = ()
    usual: ClassVar[bool] = False
    kept: ClassVar[bool] = False
    why: ClassVar[str] = "friction does not drive"
    note: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            given = getattr(self, f.name)
            x = float(given) if isinstance(given, Real) else math.nan
            sign = f.name in self.positive, f.name in self.not_negative
            if math.isfinite(x) and (x > 0 or not any(sign) or (sign[1] and x == 0)):
                continue
            what = "positive" if sign[0] else "positive, or 0" if sign[1] else "a finite number"
            raise FitError(
                f"{f.name} of {type(self).__name__} is {given!r}.",
                f"It is {what}: the shape of a law, of which the fit finds the size.",
                "Pass another, or leave it out: most have a usual one.",
            )

    def column(self, motion: Series) -> Tensor:
        """The function of the motion, `[*batch, samples, num_dof]`."""
        raise NotImplementedError

    @property
    def limit(self) -> Term | None:
        """The law with a jump that this one tends to as the way it turns over shortens, if there is one.

        A fit prefers it where the way does not show.
        """
        return None

    @property
    def label(self) -> str:
        """Name and shape, to read."""
        shape = ", ".join(f"{f.name}={getattr(self, f.name):g}" for f in fields(self))
        return type(self).__name__ + (f"({shape})" if shape else "")
