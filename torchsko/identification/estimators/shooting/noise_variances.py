"""Variances of measurement noise and of unmeasured joint forces, estimated from residuals.

Reference: D. MacKay, *Bayesian interpolation*, Neural Computation 4(3), 1992.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.estimators.shooting.sensitivities import (
    LinearizedMotion,
    WindowTrajectories,
)
from torchsko.identification.estimators.shooting.windows import Windows
from torchsko.identification.signals.autocorrelation import autocorrelation_time, lagged_products
from torchsko.utils.shapes import matvec

MIN_FREE_GAPS = 1e-3
"""Smallest number of degrees of freedom of the gaps, for windows that are nearly tied together."""

MIN_VELOCITY_NOISE = 1e-2
"""Smallest noise of velocities over a window, relative to the noise of positions over its length."""

MAX_CONTRACTION = 0.9
"""Largest ratio of successive changes in an extrapolation, which then is at most 9 times the last change."""

MAX_EXTRAPOLATION = 2.0
"""Largest extrapolation of the logarithm of a variance."""

VARIANCE_TOLERANCE = 0.01
"""Relative difference below which a variance counts as unchanged."""


@dataclass(frozen=True, eq=False)
class NoiseVariances:
    """Variances of each dof.

    Attributes:
        seen: variances of measured positions and velocities, `[seen]`.
        states: spectral densities of unmeasured joint forces, `[num_dof]`.
    """

    seen: Tensor
    states: Tensor

    @classmethod
    def at_first(cls, windows: Windows, path: WindowTrajectories) -> NoiseVariances:
        """Initial variances, from all residuals and gaps."""
        seen = path.error.square().sum((0, 1, 2)) / windows.good.sum((0, 1, 2)).clamp_min(1)
        gaps = path.gap.square().sum((0, 1)).reshape(2, -1).sum(0)
        return cls(seen, gaps / (2 * windows.linked.sum()).clamp_min(1))

    def towards(self, other: NoiseVariances, share: float) -> NoiseVariances:
        """Move towards other variances by a share in logarithms; unchanged variances stay.

        Full moves at each step can make the iteration oscillate.
        """
        pairs = ((self.seen, other.seen), (self.states, other.states))
        moved = ((x, x ** (1 - share) * y**share, y) for x, y in pairs)
        return NoiseVariances(
            *(torch.where((y - x).abs() <= VARIANCE_TOLERANCE * x, x, z) for x, z, y in moved)
        )

    @property
    def logarithms(self) -> Tensor:
        """Logarithms of all variances, `[seen + num_dof]`."""
        return torch.cat([self.seen, self.states]).log()

    def extrapolated(self, old: NoiseVariances, trend: Tensor) -> tuple[NoiseVariances, Tensor]:
        """Extrapolate two successive changes in the same direction to their limit (Aitken).

        The iteration converges linearly and slowly where gaps are nearly closed.

        Args:
            old: variances before the last change.
            trend: change of the logarithms before that, `[seen + num_dof]`; 0 for none.

        Returns:
            The variances, and the change from which the next extrapolation starts, 0 where one was made.

        Reference: A. Aitken, *On Bernoulli's numerical solution of algebraic equations*, Proceedings of the
        Royal Society of Edinburgh 46, 1926.
        """
        change = self.logarithms - old.logarithms
        repeated = trend * change > 0
        ratio = torch.where(repeated, change / torch.where(repeated, trend, 1.0), 0.0)
        ratio = ratio.clamp_max(MAX_CONTRACTION)
        more = (change * ratio / (1 - ratio)).clamp(-MAX_EXTRAPOLATION, MAX_EXTRAPOLATION)
        factors = more.exp().split([len(self.seen), len(self.states)])
        moved = NoiseVariances(self.seen * factors[0], self.states * factors[1])
        return moved, torch.where(repeated, 0.0, change)

    def same(self, other: NoiseVariances) -> bool:
        """True when all variances are equal."""
        return bool((self.seen == other.seen).all() and (self.states == other.states).all())

    @property
    def gaps(self) -> Tensor:
        """Variances of whitened gaps, `[2 num_dof]`."""
        return torch.cat([self.states, self.states])

    def cost(self, path: WindowTrajectories) -> float:
        """Sum of squared residuals and gaps over their variances."""
        seen, gaps = path.error.square() / self.seen, path.gap.square() / self.gaps
        return float(seen.sum() + gaps.sum())

    @classmethod
    def of(cls, old: NoiseVariances, windows: Windows, near: LinearizedMotion, P: Tensor, between: Tensor,
           move: Tensor, p: Tensor) -> NoiseVariances:  # fmt: skip
        """Residual variances for the degrees of freedom that the states do not use.

        Args:
            old: variances at which the states were estimated.
            windows: measurements.
            near: linearized motion.
            P: covariances of states, `[chains, windows, 2 num_dof, 2 num_dof]`.
            between: covariances with the next state, `[chains, windows - 1, 2 num_dof, 2 num_dof]`.
            move: change of states, `[chains, windows, 2 num_dof]`.
            p: change of parameters.
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
    """Integrated autocorrelation of residuals in samples, `[seen]`.

    Residuals of real logs are not white, because of elastic joints and sensor delays. At high sampling rates
    they would outweigh the gaps if samples counted as independent.

    Args:
        rest: residuals, `[chains, windows, N, seen]`.
    """
    N, seen = rest.shape[2:]
    products = lagged_products(rest.movedim(2, 0).flatten(1), N)
    return autocorrelation_time(products.unflatten(1, (-1, seen)).sum(1))
