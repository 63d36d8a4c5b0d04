r"""Dahl friction: dry friction with presliding hysteresis.

Dahl's equation :math:`dz/dx = (1 - z \, \mathrm{sign}(\dot x)) / x_s` for the bristle state z is linear in z
while the motion keeps its direction. Its solution there is :math:`z = s + (z_0 - s) e^{-|x - x_0| / x_s}`, so
the state follows from the positions without numerical integration. `LuGre` adds a damping of the bristles and
a steady-state level that decreases with speed.

Reference: P. Dahl, *A solid friction model*, Aerospace Corporation TOR-0158, 1968; C. Canudas de Wit et al.,
*A new model for control of systems with friction*, IEEE Trans. Automatic Control 40(3), 1995.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.identification.friction.coulomb import Coulomb
from torchsko.identification.friction.term import Term, TermInput


@dataclass(frozen=True)
class Dahl(Term):
    """Dry friction that builds up over a presliding distance after each reversal.

    Args:
        distance: presliding distance over which 63% of the change after a reversal takes place [rad].
    """

    nonnegative: ClassVar[bool] = True
    friction: ClassVar[float] = 1.0
    continuous: ClassVar[bool] = False
    positive_shapes: ClassVar[tuple[str, ...]] = ("distance",)
    memory: ClassVar[bool] = True
    distance: float = 0.02

    def basis(self, motion: TermInput) -> Tensor:
        """Bristle state, between -1 and 1; the sign of the velocity if samples are unordered."""
        if not motion.ordered:
            return motion.qd.sign()
        return bristle_state(motion.q / self.distance, motion.qd.sign())

    @property
    def memoryless(self) -> Term:
        """Coulomb friction."""
        return Coulomb()


def bristle_state(x: Tensor, sign: Tensor, level: Tensor | None = None) -> Tensor:
    """Solve for the bristle state along a path.

    Args:
        x: position over the presliding distance, `[*batch, samples, joints]`.
        sign: sign of the velocity; the first sample gives the initial state.
        level: steady-state magnitude, `[*batch, samples, joints]`; 1 if None.

    Returns:
        `[*batch, samples, joints]`.
    """
    step = torch.diff(x, dim=-2)
    first = sign[..., :1, :]
    if level is None:
        decay, goal = (-step.abs()).exp(), step.sign()
    else:
        mean_level = (level[..., 1:, :] + level[..., :-1, :]) / 2
        decay, goal = (-step.abs() / mean_level).exp(), step.sign() * mean_level
        first = first * level[..., :1, :]
    zero = torch.zeros_like(first)
    return linear_recurrence(
        torch.cat([zero, decay], -2), torch.cat([first, goal * (1 - decay)], -2)
    )


SPAN = 16
"""Samples that are computed one after another; spans are computed in parallel."""


def linear_recurrence(a: Tensor, b: Tensor) -> Tensor:
    """Compute z_k = a_k z_{k-1} + b_k from z = 0 along dimension -2; stable for |a| at most 1.

    Spans of `SPAN` samples are computed in parallel; their final values are combined recursively.
    """
    count = a.shape[-2]
    spans = -(-count // SPAN)
    padding = (0, 0, 0, spans * SPAN - count)
    padded = (torch.nn.functional.pad(x, padding).unflatten(-2, (spans, SPAN)) for x in (a, b))
    factors, values = (list(x.unbind(-2)) for x in padded)
    for k in range(1, SPAN):
        values[k] = torch.addcmul(values[k], factors[k], values[k - 1])
        factors[k] = factors[k] * factors[k - 1]
    z = torch.stack(values, -2)
    if spans > 1:
        # The final value of the last span is padding, and not used.
        initial = linear_recurrence(factors[-1][..., :-1, :], values[-1][..., :-1, :])
        initial = torch.nn.functional.pad(initial, (0, 0, 1, 0))
        z = torch.addcmul(z, torch.stack(factors, -2), initial[..., :, None, :])
    return z.flatten(-3, -2)[..., :count, :]
