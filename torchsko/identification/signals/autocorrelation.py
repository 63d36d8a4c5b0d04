"""Autocovariance of signals, their autocorrelation time, and their period."""

from __future__ import annotations

import torch
from torch import Tensor

PERIOD_TOLERANCE = 1e-2
"""Largest mean square difference of a motion from itself one period later, relative to unrelated motions."""


def lagged_products(x: Tensor, lags: int) -> Tensor:
    """Sums over time of x(t) x(t + k) for lags k = 0, 1, ..., `[min(samples, lags), columns]`.

    Args:
        x: `[samples, columns]`.
        lags: number of lags.
    """
    size = 1 << (2 * len(x) - 1).bit_length()
    spectrum = torch.fft.rfft(x, size, dim=0)
    return torch.fft.irfft(spectrum.abs().square(), size, dim=0)[: min(len(x), lags)]


def autocorrelation_time(products: Tensor) -> Tensor:
    """Integrated autocorrelation time in samples, `[columns]`, at least 1.

    This is 1 plus twice the sum of the autocorrelations up to their first zero crossing.

    Args:
        products: result of `lagged_products`, or a sum of such results over several signals.
    """
    rho = products / products[:1].clamp_min(1e-300)
    before_zero = (rho > 0).to(rho).cumprod(0)
    return (2 * (rho * before_zero).sum(0) - 1).clamp_min(1.0)


def find_period(q: Tensor) -> int:
    """Period of a series `[samples, coordinates]` in samples, or its length if it is not periodic."""
    n = len(q)
    x = q - q.mean(0)
    products = lagged_products(x, n).sum(1)
    squares = x.square().sum(1).cumsum(0)
    energy = squares.flip(0) + squares[-1] - torch.cat([squares.new_zeros(1), squares[:-1]])
    difference = (energy - 2 * products) / energy.clamp_min(1e-300)  # 1 between unrelated series
    lags = torch.arange(n, device=q.device)
    has_left = (difference > 0.5).cumsum(0) > 0
    candidates = (has_left & (difference < PERIOD_TOLERANCE) & (lags <= n - n // 5)).nonzero()
    if not len(candidates):
        return n
    first = int(candidates[0])
    near = difference[first : first + max(1, first // 10)]
    return first + int(near.argmin())
