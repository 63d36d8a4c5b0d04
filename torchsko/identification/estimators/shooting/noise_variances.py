"""Variances of what is measured and of forces that nobody measured, from what is left over.

Reference: D. MacKay, *Bayesian interpolation*, Neural Computation 4(3), 1992.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.estimators.shooting.sensitivities import (
    LinearisedMotion,
    WindowTrajectories,
)
from torchsko.identification.estimators.shooting.windows import Windows
from torchsko.identification.signals.autocorrelation import autocorrelation_time, lagged_products
from torchsko.utils.shapes import matvec

MIN_FREE_GAPS = 1e-3
"""Gaps that are free at least, where states are as good as tied together."""

MIN_VELOCITY_NOISE = 1e-2
"""Noise of velocities over a window, at least, against that of positions over its length: less is as none."""

VARIANCE_TOLERANCE = 0.01
"""Part by which a variance may differ and is kept."""


@dataclass(frozen=True, eq=False)
class NoiseVariances:
    """Variances, of each dof.

    Attributes:
        seen: of measured positions and velocities, `[seen]`.
        states: density of forces that nobody measured, `[num_dof]`.
    """

    seen: Tensor
    states: Tensor

    @classmethod
    def at_first(cls, windows: Windows, path: WindowTrajectories) -> NoiseVariances:
        """As if all errors were noise."""
        seen = path.error.square().sum((0, 1, 2)) / windows.good.sum((0, 1, 2)).clamp_min(1)
        gaps = path.gap.square().sum((0, 1)).reshape(2, -1).sum(0)
        return cls(seen, gaps / (2 * windows.linked.sum()).clamp_min(1))

    def towards(self, other: NoiseVariances, share: float) -> NoiseVariances:
        """The other where it is another, or a share of the way there, in logarithms.

        Steps under variances that follow each step go to and fro.
        """
        pairs = ((self.seen, other.seen), (self.states, other.states))
        there = ((x, x ** (1 - share) * y**share, y) for x, y in pairs)
        return NoiseVariances(
            *(torch.where((y - x).abs() <= VARIANCE_TOLERANCE * x, x, z) for x, z, y in there)
        )

    def same(self, other: NoiseVariances) -> bool:
        """Whether no variance differs."""
        return bool((self.seen == other.seen).all() and (self.states == other.states).all())

    @property
    def gaps(self) -> Tensor:
        """Of white gaps, `[2 num_dof]`."""
        return torch.cat([self.states, self.states])

    def cost(self, path: WindowTrajectories) -> float:
        """Squared errors over their variances."""
        seen, gaps = path.error.square() / self.seen, path.gap.square() / self.gaps
        return float(seen.sum() + gaps.sum())

    @classmethod
    def of(cls, old: NoiseVariances, windows: Windows, near: LinearisedMotion, P: Tensor, between: Tensor,
           move: Tensor, p: Tensor) -> NoiseVariances:  # fmt: skip
        """Variances of what is left over, for each error that no state has used up.

        Args:
            old: with which states were found.
            windows: what was measured.
            near: how it depends on states and numbers.
            P: covariances of states, `[chains, windows, 2 num_dof, 2 num_dof]`.
            between: with the next, `[chains, windows - 1, 2 num_dof, 2 num_dof]`.
            move: change of states, `[chains, windows, 2 num_dof]`.
            p: of numbers.
        """
        size, J, good = move.shape[-1], near.seen[..., : move.shape[-1]], windows.good
        rest = near.seen[..., -1] - matvec(J, move) - near.seen[..., size:-1] @ p
        rest, used = (x.reshape(good.shape) for x in (rest, ((J @ P) * J).sum(-1)))
        free = (good.to(used) - used / old.seen).sum((0, 1, 2))
        seen = window_autocorrelation(rest) * rest.square().sum((0, 1, 2)) / free.clamp_min(1)

        E, N = near.end[..., :size], near.next
        gap = near.end[..., -1] - near.end[..., size:-1] @ p
        gap = gap - (E @ move[:, :-1, :, None] + N @ move[:, 1:, :, None])[..., 0]
        used = ((E @ P[:, :-1] + 2 * N @ between.mT) * E).sum(-1) + ((N @ P[:, 1:]) * N).sum(-1)
        free = (windows.linked[..., None].to(used) - used / old.gaps).sum((0, 1))
        both = [x.reshape(2, -1).sum(0) for x in (gap.square().sum((0, 1)), free)]
        T = windows.length.mean()
        mass = windows.mass.diagonal(dim1=-2, dim2=-1).mean((0, 1))
        least = MIN_VELOCITY_NOISE**2 * mass**2 * seen[: len(old.states)] / T**3
        return cls(seen, torch.maximum(both[0] / both[1].clamp_min(MIN_FREE_GAPS), least))


def window_autocorrelation(rest: Tensor) -> Tensor:
    """How many samples of a window say the same: 1 + 2 times the sum of autocorrelations, `[seen]`.

    What is left of real logs is no white noise: elastic joints swing, sensors lag. A thousand samples a
    second, each taken for news, would outweigh what windows tell of each other.

    Args:
        rest: what is left over, `[chains, windows, N, seen]`.
    """
    N, seen = rest.shape[2:]
    products = lagged_products(rest.movedim(2, 0).flatten(1), N)
    return autocorrelation_time(products.unflatten(1, (-1, seen)).sum(1))
