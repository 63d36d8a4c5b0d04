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

from torchsko.learn.friction.term import Series, Term


@dataclass(frozen=True)
class Dahl(Term):
    """Dry friction that follows the motion over a distance.

    Args:
        distance: over which two thirds of it turn [rad].
    """

    dissipates: ClassVar[bool] = True
    level: ClassVar[tuple[float, float]] = (0.0, 1.0)
    continuous: ClassVar[bool] = False
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
    # z' = keep z + goal (1 - keep), composed in log(samples) passes; stable, for keep is at most 1.
    a = torch.cat([torch.zeros_like(keep[..., :1, :]), keep], -2)
    b = torch.cat([first, goal * (1 - keep)], -2)
    reach, count = 1, x.shape[-2]
    while reach < count:
        before_a, before_b = a[..., :-reach, :], b[..., :-reach, :]
        b = torch.cat([b[..., :reach, :], b[..., reach:, :] + a[..., reach:, :] * before_b], -2)
        a = torch.cat([a[..., :reach, :], a[..., reach:, :] * before_a], -2)
        reach *= 2
    return b
