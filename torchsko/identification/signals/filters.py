r"""Zero-phase low-pass filters, their derivatives and decimation, as FIR filters.

The zero-phase Butterworth filter has the squared magnitude of the Butterworth filter,
:math:`1 / (1 + (f / f_c)^{2 n})`, as its frequency response. Its impulse response decays; truncated where it
is negligible, it is a symmetric FIR filter, and so are its derivatives. Advantages over forward-backward
filtering: edge effects are known exactly, and affected outputs are omitted; piecewise results equal those for
the whole signal; only the outputs that decimation keeps are computed. For a large decimation, a short
anti-alias filter lowers the rate first, and the second filter compensates its response.

Reference: M. Gautier, *Dynamic identification of robots with power model*, ICRA 1997 (filtering regressor
and torque alike, and decimation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchsko.errors import FitError

Array = NDArray[np.floating[Any]]

ORDER = 4
"""Order of the Butterworth filter."""

TRUNCATION = 1e-5
"""Magnitude, over the peak, below which the impulse response is truncated."""

FIVE_POINT_DERIVATIVE = np.array([1.0, -8.0, 0.0, 8.0, -1.0]) / 12
"""Savitzky-Golay derivative of degree 4 over five samples, accurate to fourth order."""

BLOCK = 16
"""Outputs per matrix product: larger blocks multiply more zeros, smaller ones are slower."""

MIN_PREFILTERED_RATE = 64.0
"""Smallest rate after the anti-alias filter, over the cut-off, so that difference quotients are accurate."""

PASSBAND = 4.5
"""Passband edge of the anti-alias filter over the cut-off; the second filter leaves 1e-5 beyond it."""

STOPBAND_ATTENUATION = 100.0
"""Attenuation of the anti-alias filter at frequencies that alias into the passband [dB]."""


@dataclass(frozen=True, eq=False)
class FIRFilter:
    """Symmetric or antisymmetric FIR filter with decimation.

    Attributes:
        taps: coefficients, the center in the middle, `[2 half_width + 1]`.
        decimation: input samples per output sample.
    """

    taps: Tensor
    decimation: int

    @property
    def half_width(self) -> int:
        """Input samples that an output needs on each side."""
        return len(self.taps) // 2

    def count(self, samples: int) -> int:
        """Number of outputs for a number of inputs."""
        return max(0, (samples - len(self.taps)) // self.decimation + 1)

    def __call__(self, x: Tensor) -> Tensor:
        """Filter a signal; outputs whose neighbors are not all available are omitted.

        Args:
            x: `[samples, *]`; output m is at sample half_width + m decimation.

        Returns:
            `[count(samples), *]`.
        """
        n, flat = self.count(len(x)), x.reshape(len(x), -1).contiguous()
        parts = []
        # Blocks of outputs are a banded matrix times overlapping windows: one product for all blocks.
        for first, block in ((0, BLOCK), (n - n % BLOCK, n % BLOCK)):
            blocks = n // BLOCK if block == BLOCK else 1
            if not blocks or not block:
                continue
            step = block * self.decimation
            width = len(self.taps) + (block - 1) * self.decimation
            start = first * self.decimation
            windows = flat[start : start + (blocks - 1) * step + width].unfold(0, width, step)
            parts.append((_banded_matrix([self], block, width, x) @ windows.mT).flatten(0, 1))
        out = torch.cat(parts) if parts else flat[:0]
        return out.reshape(n, *x.shape[1:])


def _banded_matrix(filters: Sequence[FIRFilter], block: int, width: int, like: Tensor) -> Tensor:
    """Matrix from samples to a block of outputs of each filter, `[filters * block, width]`."""
    decimation, taps = filters[0].decimation, torch.stack([f.taps for f in filters]).to(like)
    band = like.new_zeros(len(taps), block, width)
    for row in range(block):
        band[:, row, row * decimation : row * decimation + taps.shape[1]] = taps
    return band.flatten(0, 1)


def apply_filters(filters: Sequence[FIRFilter], x: Tensor) -> list[Tensor]:
    """Apply several filters of one length and one decimation to signals.

    Args:
        filters: of one length and one decimation.
        x: `[signals, samples]`.

    Returns:
        For each filter `[signals, count(samples)]`.
    """
    decimation, length = filters[0].decimation, len(filters[0].taps)
    signals, n = len(x), filters[0].count(x.shape[1])
    if n == 0:
        return [x.new_zeros(signals, 0) for _ in filters]
    # Blocks of outputs are a banded matrix times samples. The matrix is cut into square blocks: a shift by
    # one block is a shift by one row of the samples as a matrix, and nothing is copied.
    step = BLOCK * decimation
    spans = -(-(length + step - decimation) // step)
    band = _banded_matrix(filters, BLOCK, spans * step, x).mT.reshape(spans, step, -1)

    def block_outputs(signal: Tensor) -> Tensor:
        rows = signal.reshape(-1, step)
        count = len(rows) - spans + 1
        out = rows[:count] @ band[0]
        for k in range(1, spans):
            out = torch.addmm(out, rows[k : k + count], band[k])
        return out

    # One signal at a time stays in the cache. The last blocks of all signals are padded with zeros.
    full, blocks = x.shape[1] // step, -(-n // BLOCK)
    done = max(full - spans + 1, 0)
    rest, size = x[:, done * step :], (blocks - done + spans - 1) * step
    rest = torch.nn.functional.pad(rest[:, :size], (0, max(size - rest.shape[1], 0)))
    outputs = [
        torch.cat([*([block_outputs(signal[: full * step])] if done else []), block_outputs(last)])
        for signal, last in zip(x, rest, strict=True)
    ]
    out = torch.stack(outputs).unflatten(-1, (len(filters), BLOCK))
    return list(out.movedim(2, 0).flatten(2)[..., :n])


@dataclass(frozen=True, eq=False)
class DerivativeFilter:
    """Low-pass filter and its first two derivatives, with decimation.

    Attributes:
        anti_alias: lowers the rate first; None if that saves no time.
        filters: the low-pass filter and its derivatives, of one length, applied after `anti_alias`.
    """

    anti_alias: FIRFilter | None
    filters: tuple[FIRFilter, FIRFilter, FIRFilter]

    @classmethod
    def of(cls, cutoff: float, rate: float, decimation: int) -> DerivativeFilter:
        """Design a zero-phase Butterworth filter with derivatives.

        Args:
            cutoff: cut-off frequency [Hz].
            rate: sampling rate [Hz].
            decimation: largest decimation.
        """
        factor = min(decimation, int(rate / (MIN_PREFILTERED_RATE * cutoff)))
        anti_alias = None
        if factor > 1:
            anti_alias = anti_alias_filter(factor, PASSBAND * cutoff / rate)
            decimation, rate = decimation // factor, rate / factor
        low_pass = butterworth_filter(cutoff, rate, decimation, anti_alias)
        first = differentiate_filter(low_pass, rate)
        second = differentiate_filter(first, rate)
        width = second.half_width
        return cls(anti_alias, (_pad_filter(low_pass, width), _pad_filter(first, width), second))

    @property
    def decimation(self) -> int:
        """Input samples per output sample."""
        return self.filters[0].decimation * (
            1 if self.anti_alias is None else self.anti_alias.decimation
        )

    @property
    def half_width(self) -> int:
        """Input samples that an output needs on each side."""
        width = self.filters[0].half_width
        if self.anti_alias is None:
            return width
        return self.anti_alias.half_width + width * self.anti_alias.decimation

    def __call__(self, x: Tensor, *orders: int) -> list[Tensor]:
        """Filter signals and differentiate them; outputs without all neighbors are omitted.

        Args:
            x: `[signals, samples]`; output m is at sample half_width + m decimation.
            orders: of the derivatives, each 0, 1 or 2.

        Returns:
            For each order `[signals, outputs]`.
        """
        if self.anti_alias is not None:
            (x,) = apply_filters([self.anti_alias], x)
        return apply_filters([self.filters[k] for k in orders], x)


def anti_alias_filter(decimation: int, passband: float) -> FIRFilter:
    """Design a short anti-alias filter: a sinc with a Kaiser window.

    Args:
        decimation: input samples per output sample.
        passband: passband edge, in cycles per sample.

    Reference: J. Kaiser, *Nonrecursive digital filter design using the I0-sinh window function*, IEEE Symp.
    Circuits and Systems 1974.
    """
    transition = 2 * np.pi * (1 / decimation - 2 * passband)
    half_width = int(np.ceil((STOPBAND_ATTENUATION - 8) / (2.285 * transition) / 2))
    k = np.arange(-half_width, half_width + 1)
    h = np.sinc(k / decimation) * np.kaiser(len(k), 0.1102 * (STOPBAND_ATTENUATION - 8.7))
    return FIRFilter(torch.from_numpy(h / h.sum()), decimation)


def frequency_response(fir: FIRFilter, frequency: Array) -> Array:
    """Frequency response of a symmetric filter at frequencies in cycles per sample."""
    k = np.arange(1, fir.half_width + 1)
    taps = fir.taps.numpy()[fir.half_width :]
    return taps[0] + 2 * np.cos(2 * np.pi * frequency[:, None] * k) @ taps[1:]


def butterworth_filter(
    cutoff: float,
    rate: float,
    decimation: int = 1,
    anti_alias: FIRFilter | None = None,
    passes: int = 1,
) -> FIRFilter:
    """Design the zero-phase Butterworth filter as an FIR filter with unit gain at zero frequency.

    Args:
        cutoff: frequency at which half of the amplitude is left [Hz].
        rate: sampling rate [Hz].
        decimation: input samples per output sample.
        anti_alias: filter that produced the samples of this rate; its response is compensated.
        passes: number of passes of the filter to combine.

    Raises:
        FitError: if the cut-off is not below half of the rate.
    """
    if not 0 < cutoff < rate / 2:
        raise FitError(
            f"the cut-off is {cutoff:g} Hz, and the sampling rate {rate:g} Hz.",
            "The cut-off must be below half of the sampling rate.",
            f"Pass cutoff={rate / 10:g}, or leave it out: then the bandwidth of the motion determines it.",
        )
    # Digital filter at the original rate: the bilinear transform warps its frequencies.
    factor = 1 if anti_alias is None else anti_alias.decimation
    size = 1 << int(np.ceil(np.log2(16 * rate / cutoff)))
    frequency = np.arange(size // 2) / (size * factor)
    warped = np.tan(np.pi * frequency) / np.tan(np.pi * cutoff / (rate * factor))
    response = 1 / (1 + warped ** (2 * ORDER)) ** passes
    if anti_alias is not None:
        response = response / frequency_response(anti_alias, frequency)
    h = np.fft.irfft(np.append(response, 0.0))[: size // 2]
    half_width = max(int(np.flatnonzero(np.abs(h) > TRUNCATION * h[0])[-1]), 1)
    h = np.concatenate([h[half_width:0:-1], h[: half_width + 1]])
    return FIRFilter(torch.from_numpy(h / h.sum()), decimation)


def differentiate_filter(fir: FIRFilter, rate: float) -> FIRFilter:
    """Combine a filter with a derivative [1/s]: Savitzky-Golay of degree 4 over five samples."""
    taps = np.convolve(fir.taps.numpy(), rate * FIVE_POINT_DERIVATIVE)
    return FIRFilter(torch.from_numpy(taps), fir.decimation)


def _pad_filter(fir: FIRFilter, half_width: int) -> FIRFilter:
    """Pad the taps with zeros at both ends."""
    extra = half_width - fir.half_width
    return FIRFilter(torch.nn.functional.pad(fir.taps, (extra, extra)), fir.decimation)
