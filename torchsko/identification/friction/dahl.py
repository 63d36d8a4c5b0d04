r"""Dry friction with memory: bristles bend before they slide.

Dahl's law :math:`dz/dx = (1 - z \, \mathrm{sign}(\dot x)) / x_s` is linear in z while the motion keeps its
sign, and then has the solution :math:`z = s + (z_0 - s) e^{-|x - x_0| / x_s}`: no step is integrated, and
positions alone count. `LuGre` adds damping of the bristles
and a level that falls with speed.

Reference: P. Dahl, *A solid friction model*, Aerospace Corporation TOR-0158, 1968; C. Canudas de Wit et al.,
*A new model for control of systems with friction*, IEEE Trans. Automatic Control 40(3), 1995.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.identification.friction.term import Series, Term

REMEMBERS = (
    "friction of bristles remembers the way; where samples are in order of time, "
    "fit.inverse_dynamics(q, qd, qdd, series=True) has it, else its value in steady motion"
)
"""What a report says of joints with such friction."""


@dataclass(frozen=True)
class Dahl(Term):
    """Dry friction that follows the motion over a distance.

    Args:
        distance: over which two thirds of it turn [rad].
    """

    dissipates: ClassVar[bool] = True
    level: ClassVar[tuple[float, float]] = (0.0, 1.0)
    continuous: ClassVar[bool] = False
    positive: ClassVar[tuple[str, ...]] = ("distance",)
    note: ClassVar[str] = REMEMBERS
    distance: float = 0.02

    def column(self, motion: Series) -> Tensor:
        """The bristles' state, between -1 and 1; the sign of the velocity where samples are in no order."""
        if not motion.ordered:
            return motion.qd.sign()
        return bristles(motion.q / self.distance, motion.qd.sign())


def bristles(x: Tensor, start: Tensor, level: Tensor | None = None) -> Tensor:
    """The bristles' state along a path of unit distance.

    Args:
        x: `[*batch, samples, joints]`, the position over the distance.
        start: signs of the velocity; the first is where the state starts.
        level: what the state tends to in steady motion, `[*batch, samples, joints]`; 1 when left out.

    Returns:
        `[*batch, samples, joints]`.
    """
    step = torch.diff(x, dim=-2)
    first = start[..., :1, :]
    if level is None:
        keep, goal = (-step.abs()).exp(), step.sign()
    else:
        between = (level[..., 1:, :] + level[..., :-1, :]) / 2
        keep, goal = (-step.abs() / between).exp(), step.sign() * between
        first = first * level[..., :1, :]
    still = torch.zeros_like(first)
    return accumulated(torch.cat([still, keep], -2), torch.cat([first, goal * (1 - keep)], -2))


SPAN = 16
"""Samples that are gone through one after another."""


def accumulated(a: Tensor, b: Tensor) -> Tensor:
    """z_k = a_k z_{k-1} + b_k from z = 0, along the last dimension but one; stable where |a| is at most 1.

    Spans are gone through side by side, and what they end with is accumulated likewise.
    """
    count = a.shape[-2]
    spans = -(-count // SPAN)
    more = (0, 0, 0, spans * SPAN - count)
    padded = (torch.nn.functional.pad(x, more).unflatten(-2, (spans, SPAN)) for x in (a, b))
    kept, found = (list(x.unbind(-2)) for x in padded)
    for k in range(1, SPAN):
        found[k] = torch.addcmul(found[k], kept[k], found[k - 1])
        kept[k] = kept[k] * kept[k - 1]
    out = torch.stack(found, -2)
    if spans > 1:
        # The last span is padded: what it ends with is not read.
        before = accumulated(kept[-1][..., :-1, :], found[-1][..., :-1, :])
        before = torch.nn.functional.pad(before, (0, 0, 1, 0))
        out = torch.addcmul(out, torch.stack(kept, -2), before[..., :, None, :])
    return out.flatten(-3, -2)[..., :count, :]
