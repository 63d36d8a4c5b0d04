"""An error of a transmission's ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.identification.friction.term import Series, Term


@dataclass(frozen=True)
class Ratio(Term):
    """The part by which positions and velocities are shown too large: an encoder before a gear taken wrong.

    It belongs to the sensors: in predicted forces it does nothing. A motion through forward dynamics tells
    it, so it is for the method "shooting". Forces that are off by a part are `Gain`'s.
    """

    unit: ClassVar[str] = "1"
    continuous: ClassVar[bool] = False
    shows: ClassVar[float] = 1.0

    def column(self, motion: Series) -> Tensor:
        """No force."""
        return torch.zeros_like(motion.qd)
