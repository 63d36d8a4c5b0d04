"""Division of a log into windows of equal size, in chains of consecutive windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.normal_equations import TimeFolds
from torchsko.identification.signals.cleaning import replace_outliers, to_rows
from torchsko.identification.signals.duplicate_samples import find_repeated_samples, replace_by_nan
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.preprocess import find_segments
from torchsko.identification.signals.saturation import at_effort_limit
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import mass_matrix

DEFAULT_LENGTH = 0.1
"""Default length of a window [s]."""

MIN_DEFAULT_SAMPLES = 5
"""Smallest default number of samples of a window."""

START_STD_FACTOR = 3.0
"""Factor on the standard error of a chain's initial velocity, which loosens its regularization."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows `[chains, windows]` of N samples; sample N is the first of the next window.

    Shorter chains are padded with windows for which `real` is False.

    Attributes:
        t: times from the start of the window, `[chains, windows, N + 1]` [s].
        tau: measured forces, `[chains, windows, N + 1, num_dof]`.
        seen: measured positions, and velocities if the log has them, `[chains, windows, N, seen]`.
        good: mask of valid measurements, like `seen`.
        real: False for padding, `[chains, windows]`.
        fold: cross-validation fold of each chain, `[chains]`.
        held: True for forces that are constant between samples (zero-order hold), otherwise linear.
        mass: mass matrices of the nominal robot at the starts, `[chains, windows, num_dof, num_dof]`.
    """

    t: Tensor
    tau: Tensor
    seen: Tensor
    good: Tensor
    real: Tensor
    fold: Tensor
    held: bool
    mass: Tensor

    @classmethod
    def of(
        cls,
        mech: Mechanism,
        log: Log,
        settings: FilterSettings,
        folds: TimeFolds,
        length: float | None,
    ) -> Windows:
        """Divide a log, with breaks at gaps, ends of folds and invalid forces.

        Raises:
            FitError: when there are fewer than two windows.
        """
        n = samples_per_window(settings.rate, length)
        t = np.asarray(log.t, np.float64)
        rows = [to_rows(x) for x in (log.q, log.tau, log.qd) if x is not None]
        new = (
            x if k == 1 else replace_by_nan(find_repeated_samples(x), x) for k, x in enumerate(rows)
        )
        (q, off), (tau, wrong), *rates = (replace_outliers(t, x) for x in new)
        wrong = wrong | at_effort_limit(tau, mech.effort_limit.detach().cpu().numpy())
        fold, bad = folds.of(torch.from_numpy(t)).numpy(), np.any(wrong, 0)
        chains: list[list[int]] = []
        for start, stop in find_segments(log, settings):
            before, chain = -1, list[int]()
            for a in range(start, stop - n, n):
                if bad[a : a + n + 1].any():
                    chains, chain = [*chains, chain], []
                    continue
                if fold[a] != before:
                    chains, chain, before = [*chains, chain], [], fold[a]
                chain = [*chain, a]
            chains.append(chain)
        chains = [chain for chain in chains if chain]
        if sum(map(len, chains)) < 2:
            raise FitError(
                f"{log.name}: {sum(map(len, chains))} windows of {n} samples.",
                "Shooting needs at least two windows without gaps and with valid forces.",
                "Record a longer log, or pass a shorter window.",
            )
        longest = max(map(len, chains))
        places = np.array([chain + chain[-1:] * (longest - len(chain)) for chain in chains])
        real = np.array([[k < len(chain) for k in range(longest)] for chain in chains])
        at = places[..., None] + np.arange(n + 1)
        seen = np.concatenate([q, *(x for x, _ in rates)])
        good = ~np.concatenate([off, *(x for _, x in rates)])
        like = {"dtype": mech.dtype, "device": mech.device}
        good = _picked(good, at[..., :-1]) & torch.from_numpy(real)[..., None, None]
        return cls(
            torch.from_numpy(t[at] - t[at][..., :1]).to(**like), _picked(tau, at).to(**like),
            _picked(seen, at[..., :-1]).to(**like), good.to(mech.device),
            torch.from_numpy(real).to(mech.device), torch.from_numpy(fold[places[:, 0]]).to(mech.device),
            log.held, mass_matrix(mech, _picked(q, at[..., 0]).to(**like)),
        )  # fmt: skip

    @property
    def linked(self) -> Tensor:
        """Windows with a successor, `[chains, windows - 1]`."""
        return self.real[:, 1:]

    @property
    def length(self) -> Tensor:
        """Lengths of windows [s], `[chains, windows]`."""
        return self.t[..., -1]

    def force(self, k: int, part: float) -> Tensor:
        """Measured force at a share `part` of the interval after sample k, `[chains, windows, num_dof]`."""
        if self.held:
            return self.tau[..., k, :]
        return (1 - part) * self.tau[..., k, :] + part * self.tau[..., k + 1, :]

    def starts(self) -> Tensor:
        """Initial states of windows from a parabola through each, `[chains, windows, 2 num_dof]`."""
        dofs = self.tau.shape[-1]
        y = self.seen[..., :dofs]
        found = torch.linalg.lstsq(_powers(self.t[..., :-1]), y).solution
        rate = found[..., 1, :] if self.seen.shape[-1] == dofs else self.seen[..., 0, dofs:]
        return torch.cat([found[..., 0, :], rate], -1)

    def known_rates(self, seen: Tensor) -> Tensor:
        """Inverse variances of the initial velocities of chains, as estimated by `starts`.

        The previous window determines the initial velocity of a window, except for the first of a chain.
        Where friction is stiff, the motion does not determine it either, and it needs regularization.

        Args:
            seen: variances of measured positions, `[num_dof]`.

        Returns:
            `[chains, num_dof]`; 0 if velocities are measured, or for too few samples.
        """
        dofs = self.tau.shape[-1]
        t, y = self.t[:, 0, :-1], self.seen[:, 0, :, :dofs]
        n = t.shape[-1]
        if self.seen.shape[-1] > dofs or n < MIN_DEFAULT_SAMPLES:
            return torch.zeros_like(y[:, 0])
        columns = _powers(t)
        rest = y - columns @ torch.linalg.lstsq(columns, y).solution
        # Curvature beyond the parabola is common to all samples of a window.
        bends = (rest.square().sum(-2) / (n - 3) - seen).clamp_min(0)
        spread = torch.linalg.inv(columns.mT @ columns)[:, 1, 1, None]
        return 1 / (START_STD_FACTOR**2 * spread * (seen + n * bends))


def _powers(t: Tensor) -> Tensor:
    """Columns of a parabola `[*batch, samples, 3]`, or of a line for two samples."""
    return torch.stack([t**k for k in range(min(3, t.shape[-1]))], -1)


def samples_per_window(rate: float, length: float | None) -> int:
    """Number of samples of a window.

    Raises:
        FitError: when there are fewer than two.
    """
    if length is None:
        return max(MIN_DEFAULT_SAMPLES, round(DEFAULT_LENGTH * rate))
    n = round(length * rate)
    if n < 2:
        raise FitError(
            f"window is {length:g} s at a sampling rate of {rate:.4g} Hz.",
            "A window needs at least two samples, which determine its initial velocity.",
            f"Pass for example window={MIN_DEFAULT_SAMPLES / rate:.2g}, or omit it.",
        )
    return n


def _picked(x: np.ndarray, at: np.ndarray) -> Tensor:
    return torch.from_numpy(np.moveaxis(x[:, at], 0, -1).copy())
