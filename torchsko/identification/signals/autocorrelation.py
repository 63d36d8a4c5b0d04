"""Autocovariance of signals, and their autocorrelation time."""

from __future__ import annotations

import torch
from torch import Tensor


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
