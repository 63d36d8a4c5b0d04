"""Power spectra of signals, and the bandwidth of a motion."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

MIN_SIGNAL_TO_NOISE = 10.0
"""Smallest ratio of the power to the noise floor at frequencies that count as motion."""


def motion_bandwidth(x: Array, rate: float, share: float = 0.99) -> float:
    """Frequency below which a share of the power of the velocities of several signals lies [Hz].

    Only frequencies at which a signal exceeds its noise floor count. The floor is the median power in the
    upper half of the spectrum.

    Args:
        x: positions, evenly sampled, `[samples, signals]`.
        rate: sampling rate [Hz].
        share: of the power.
    """
    f, power = power_spectrum(x, rate, min(len(x), max(int(4 * rate) + 1, len(x) // 50)))
    floor = np.median(power[len(f) // 2 :], axis=0)
    # Noise that decreases with frequency exceeds this floor, so only frequencies below the first dip count.
    above = np.where(f[:, None] > 0, power > MIN_SIGNAL_TO_NOISE * floor, True)
    velocity_power = np.cumprod(above, axis=0) * power * f[:, None] ** 2
    total = velocity_power.sum(0)
    if not (total > 0).any():
        return rate / 20
    cumulative = np.cumsum(velocity_power[:, total > 0] / total[total > 0], axis=0)
    return float(max(f[np.argmax(cumulative >= share, axis=0)]))


def power_spectrum(x: Array, rate: float, length: int) -> tuple[Array, Array]:
    """Estimate power spectra by Welch's method: half-overlapping, detrended segments with a Hann window.

    Args:
        x: `[samples, signals]`.
        rate: sampling rate [Hz].
        length: of a segment [samples].

    Returns:
        Frequencies `[bins]` [Hz], and the power at them up to a common factor, `[bins, signals]`.

    Reference: P. Welch, *The use of fast Fourier transform for the estimation of power spectra*, IEEE Trans.
    Audio and Electroacoustics 15(2), 1967.
    """
    # The transform is fast along contiguous memory.
    rows = torch.from_numpy(np.ascontiguousarray(x.T))
    ramp = torch.linspace(-1, 1, length, dtype=rows.dtype)
    trend = torch.linalg.qr(torch.stack([torch.ones_like(ramp), ramp], -1))[0]
    window = (torch.pi * torch.arange(length).to(rows) / length).sin().square()
    total = rows.new_zeros(len(rows), length // 2 + 1)
    for start in range(0, len(x) - length + 1, max(length // 2, 1)):
        segment = rows[:, start : start + length]
        detrended = torch.addmm(segment, segment @ trend, trend.mT, alpha=-1)
        transform = torch.fft.rfft(window * detrended)
        total = total + transform.real.square() + transform.imag.square()
    return np.fft.rfftfreq(length, 1 / rate), total.mT.numpy()
