"""Products of a series with itself, later, and how long it is alike."""

from __future__ import annotations

import torch
from torch import Tensor


def lagged_products(x: Tensor, lags: int) -> Tensor:
    """Sums over time of x(t) x(t + k), for k = 0 to lags - 1 or the last there is, `[k, columns]`.

    Args:
        x: `[samples, columns]`.
        lags: how many.
    """
    size = 1 << (2 * len(x) - 1).bit_length()
    spectrum = torch.fft.rfft(x, size, dim=0)
    return torch.fft.irfft(spectrum.abs().square(), size, dim=0)[: min(len(x), lags)]


def times_alike(products: Tensor) -> Tensor:
    """1 + 2 times the sum of autocorrelations up to where they vanish, `[columns]`.

    Args:
        products: as by `lagged_products`, sums of several where there are several.
    """
    rho = products / products[:1].clamp_min(1e-300)
    still = (rho > 0).to(rho).cumprod(0)
    return (2 * (rho * still).sum(0) - 1).clamp_min(1.0)
