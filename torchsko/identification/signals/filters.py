r"""Low-pass filters without phase, their derivatives, and the rate that is left, as one product.

A zero-phase Butterworth filter is Butterworth's magnitude squared, :math:`1 / (1 + (f / f_c)^{2 n})`. Its
impulse response h dies out; cut where it has, it is a symmetric kernel, and so are its derivatives. A
kernel is used, not two passes, since it says exactly which samples the ends spoil (they are left
out, none is guessed), gives the same numbers in pieces as at once, and gives only the samples kept. Where
few are kept, a short kernel lowers the rate first, and the long one makes up for what that took.

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
"""Of the Butterworth filter."""

NEGLIGIBLE = 1e-5
"""Of its peak, where the impulse response is cut."""

SLOPE = np.array([1.0, -8.0, 0.0, 8.0, -1.0]) / 12
"""The Savitzky-Golay derivative of degree 4 over five samples: exact for slow motion, to the fourth order."""


OUT = 10.0
"""Power of a signal over its noise's, where it stands out."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A symmetric or antisymmetric filter that keeps every so many samples.

    Attributes:
        taps: weights of neighbours, the centre in the middle, `[2 reach + 1]`.
        every: samples of the input to one of the output.
    """

    taps: Tensor
    every: int

    @property
    def reach(self) -> int:
        """Samples that an output needs on each side."""
        return len(self.taps) // 2

    def count(self, samples: int) -> int:
        """Outputs of so many inputs."""
        return max(0, (samples - len(self.taps)) // self.every + 1)

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs whose neighbours are all there.

        Args:
            x: `[samples, *]`; output m lies at sample reach + m every.

        Returns:
            `[count(samples), *]`.
        """
        n, flat = self.count(len(x)), x.reshape(len(x), -1).contiguous()
        parts = []
        # Outputs by the block: a banded matrix times overlapping pieces, one product for all.
        for first, block in ((0, BLOCK), (n - n % BLOCK, n % BLOCK)):
            whole = n // BLOCK if block == BLOCK else 1
            if not whole or not block:
                continue
            step, width = block * self.every, len(self.taps) + (block - 1) * self.every
            start = first * self.every
            pieces = flat[start : start + (whole - 1) * step + width].unfold(0, width, step)
            parts.append((banded([self], block, width, x) @ pieces.mT).flatten(0, 1))
        out = torch.cat(parts) if parts else flat[:0]
        return out.reshape(n, *x.shape[1:])


def banded(kernels: Sequence[Kernel], block: int, width: int, like: Tensor) -> Tensor:
    """What takes samples to so many outputs of each kernel, `[kernels * block, width]`."""
    every, taps = kernels[0].every, torch.stack([kernel.taps for kernel in kernels]).to(like)
    band = like.new_zeros(len(taps), block, width)
    for row in range(block):
        band[:, row, row * every : row * every + taps.shape[1]] = taps
    return band.flatten(0, 1)


BLOCK = 16
"""Outputs at once: more waste products with zeros, fewer are slower."""


def together(kernels: Sequence[Kernel], x: Tensor) -> list[Tensor]:
    """Outputs of several kernels of one reach and one rate.

    Args:
        kernels: of one length, that keep as many samples.
        x: `[signals, samples]`.

    Returns:
        Of each `[signals, count(samples)]`.
    """
    every, length = kernels[0].every, len(kernels[0].taps)
    signals, n = len(x), kernels[0].count(x.shape[1])
    if n == 0:
        return [x.new_zeros(signals, 0) for _ in kernels]
    # Outputs by the block are a banded matrix times samples, cut into as many blocks as it is wide: a shift
    # by a block is a shift by a row of a matrix of samples, and nothing is copied.
    step = BLOCK * every
    spans = -(-(length + step - every) // step)
    band = banded(kernels, BLOCK, spans * step, x).mT.reshape(spans, step, -1)

    def of(signal: Tensor) -> Tensor:
        rows = signal.reshape(-1, step)
        whole = len(rows) - spans + 1
        out = rows[:whole] @ band[0]
        for k in range(1, spans):
            out = torch.addmm(out, rows[k : k + whole], band[k])
        return out

    # One signal after another: it stays in the cache. The last blocks of all are filled up with zeros.
    full, blocks = x.shape[1] // step, -(-n // BLOCK)
    done = max(full - spans + 1, 0)
    rest, size = x[:, done * step :], (blocks - done + spans - 1) * step
    rest = torch.nn.functional.pad(rest[:, :size], (0, max(size - rest.shape[1], 0)))
    each = (
        torch.cat([*([of(signal[: full * step])] if done else []), of(last)])
        for signal, last in zip(x, rest, strict=True)
    )
    out = torch.stack(list(each)).unflatten(-1, (len(kernels), BLOCK))
    return list(out.movedim(2, 0).flatten(2)[..., :n])


@dataclass(frozen=True, eq=False)
class Bank:
    """A low-pass filter and its first two derivatives, at a lower rate.

    Attributes:
        before: lowers the rate first; None where that does not pay.
        kernels: the filter and its derivatives, of one reach, after it.
    """

    before: Kernel | None
    kernels: tuple[Kernel, Kernel, Kernel]

    @classmethod
    def of(cls, cutoff: float, rate: float, every: int) -> Bank:
        """That of a zero-phase Butterworth filter.

        Args:
            cutoff: [Hz].
            rate: of the samples [Hz].
            every: keep each so many, or some fewer.
        """
        thin = min(every, int(rate / (CLEAR * cutoff)))
        before = None
        if thin > 1:
            before, every, rate = anti_alias(thin, EVEN * cutoff / rate), every // thin, rate / thin
        low = low_pass(cutoff, rate, every, before)
        first = derivative(low, rate)
        second = derivative(first, rate)
        return cls(before, (widened(low, second.reach), widened(first, second.reach), second))

    @property
    def every(self) -> int:
        """Samples of the input to one of the output."""
        return self.kernels[0].every * (1 if self.before is None else self.before.every)

    @property
    def reach(self) -> int:
        """Samples that an output needs on each side."""
        own = self.kernels[0].reach
        return own if self.before is None else self.before.reach + own * self.before.every

    def __call__(self, x: Tensor, *orders: int) -> list[Tensor]:
        """Derivatives of these orders of signals, whose neighbours are all there.

        Args:
            x: `[signals, samples]`; output m lies at sample reach + m every.
            orders: 0 for the filter alone, 1, 2.

        Returns:
            Of each `[signals, outputs]`.
        """
        if self.before is not None:
            (x,) = together([self.before], x)
        return together([self.kernels[k] for k in orders], x)


CLEAR = 64.0
"""Rate over the cut-off down to which a first kernel takes it: derivatives are differences there."""

EVEN = 4.5
"""Frequency over the cut-off up to which it is even; the filter leaves 1e-5 of what is faster."""

STOPPED = 100.0
"""What it leaves of frequencies that would show as slower ones [dB]."""


def anti_alias(every: int, passed: float) -> Kernel:
    """A short kernel that keeps each so many samples: a sinc, tapered (Kaiser).

    Args:
        every: keep each so many.
        passed: cycles a sample up to which it is even; what would show below is stopped.

    Reference: J. Kaiser, *Nonrecursive digital filter design using the I0-sinh window function*, IEEE Symp.
    Circuits and Systems 1974.
    """
    wide = 2 * np.pi * (1 / every - 2 * passed)
    reach = int(np.ceil((STOPPED - 8) / (2.285 * wide) / 2))
    k = np.arange(-reach, reach + 1)
    h = np.sinc(k / every) * np.kaiser(len(k), 0.1102 * (STOPPED - 8.7))
    return Kernel(torch.from_numpy(h / h.sum()), every)


def gain(kernel: Kernel, frequency: Array) -> Array:
    """What a symmetric kernel leaves of waves of so many cycles a sample."""
    k = np.arange(1, kernel.reach + 1)
    taps = kernel.taps.numpy()[kernel.reach :]
    return taps[0] + 2 * np.cos(2 * np.pi * frequency[:, None] * k) @ taps[1:]


def low_pass(
    cutoff: float, rate: float, every: int = 1, before: Kernel | None = None, times: int = 1
) -> Kernel:
    """The zero-phase Butterworth filter as a kernel, with unit gain at rest.

    Args:
        cutoff: where half of the amplitude is left [Hz].
        rate: of the samples [Hz].
        every: keep each so many.
        before: the kernel that gave samples of this rate; what it took is made up for.
        times: how often the filter is applied, as one kernel.

    Raises:
        FitError: a cut-off that the samples are too few for.
    """
    if not 0 < cutoff < rate / 2:
        raise FitError(
            f"the cut-off is {cutoff:g} Hz, the rate of the samples {rate:g} Hz.",
            "A filter passes frequencies below half of the rate.",
            f"Pass cutoff={rate / 10:g}, or leave it out: the data choose it.",
        )
    # Of the digital filter of the first samples, its frequencies bent by the bilinear transform as analogue
    # ones are.
    thin = 1 if before is None else before.every
    size = 1 << int(np.ceil(np.log2(16 * rate / cutoff)))
    frequency = np.arange(size // 2) / (size * thin)
    bent = np.tan(np.pi * frequency) / np.tan(np.pi * cutoff / (rate * thin))
    power = 1 / (1 + bent ** (2 * ORDER)) ** times
    if before is not None:
        power = power / gain(before, frequency)
    h = np.fft.irfft(np.append(power, 0.0))[: size // 2]
    reach = max(int(np.flatnonzero(np.abs(h) > NEGLIGIBLE * h[0])[-1]), 1)
    h = np.concatenate([h[reach:0:-1], h[: reach + 1]])
    return Kernel(torch.from_numpy(h / h.sum()), every)


def derivative(kernel: Kernel, rate: float) -> Kernel:
    """The filter followed by a derivative, as one kernel [per second].

    The derivative is Savitzky and Golay's, of degree 4 over five samples: exact to the fourth order.
    """
    # As weights of neighbours, not as a convolution.
    return Kernel(torch.from_numpy(np.convolve(kernel.taps.numpy(), rate * SLOPE)), kernel.every)


def widened(kernel: Kernel, reach: int) -> Kernel:
    """The same filter with zeros at its ends, so that several have one reach."""
    extra = reach - kernel.reach
    return Kernel(torch.nn.functional.pad(kernel.taps, (extra, extra)), kernel.every)


def bandwidth(x: Array, rate: float, share: float = 0.99) -> float:
    """The frequency below which a share of the power of the rates of several signals lies [Hz].

    Counted are frequencies where the signals stand out of their noise, read off the upper half of the
    spectrum.

    Args:
        x: `[samples, signals]`, evenly sampled.
        rate: [Hz].
        share: of the power.
    """
    f, power = spectrum(x, rate, min(len(x), max(int(4 * rate) + 1, len(x) // 50)))
    floor = np.median(power[len(f) // 2 :], axis=0)
    # Of noise that falls with frequency the upper half says too little: whatever follows a dip is noise.
    clear = np.cumprod(np.where(f[:, None] > 0, power > OUT * floor, True), axis=0)
    moved = clear * power * f[:, None] ** 2
    total = moved.sum(0)
    if not (total > 0).any():
        return rate / 20
    grown = np.cumsum(moved[:, total > 0] / total[total > 0], axis=0)
    return float(max(f[np.argmax(grown >= share, axis=0)]))


def spectrum(x: Array, rate: float, length: int) -> tuple[Array, Array]:
    """Welch's estimate: the mean over half-overlapping pieces, each less its line and tapered (Hann).

    Args:
        x: `[samples, signals]`.
        rate: [Hz].
        length: of a piece [samples].

    Returns:
        Frequencies `[bins]` [Hz], and the power at them up to a factor, `[bins, signals]`.

    Reference: P. Welch, *The use of fast Fourier transform for the estimation of power spectra*, IEEE Trans.
    Audio and Electroacoustics 15(2), 1967.
    """
    # Torch's transform is fast along the order of memory.
    rows = torch.from_numpy(np.ascontiguousarray(x.T))
    ramp = torch.linspace(-1, 1, length, dtype=rows.dtype)
    line = torch.linalg.qr(torch.stack([torch.ones_like(ramp), ramp], -1))[0]
    taper = (torch.pi * torch.arange(length).to(rows) / length).sin().square()
    total = rows.new_zeros(len(rows), length // 2 + 1)
    for start in range(0, len(x) - length + 1, max(length // 2, 1)):
        part = rows[:, start : start + length]
        wave = torch.fft.rfft(taper * torch.addmm(part, part @ line, line.mT, alpha=-1))
        total = total + wave.real.square() + wave.imag.square()
    return np.fft.rfftfreq(length, 1 / rate), total.mT.numpy()
