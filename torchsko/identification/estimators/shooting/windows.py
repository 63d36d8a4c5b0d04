"""A log cut in windows of as many samples, in chains of windows that follow each other."""

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
from torchsko.identification.signals.preprocess import SATURATED_SHARE, find_segments
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import mass_matrix

DEFAULT_LENGTH = 0.1
"""Of a window [s], where none is asked for."""

MIN_DEFAULT_SAMPLES = 5
"""Samples of a window, where none is asked for."""

START_STD_FACTOR = 3.0
"""Deviations of the velocity by a parabola within which a chain starts."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows `[chains, windows]` of N samples; the one after the last is the first of the next window.

    Chains are as long as the longest: those that are shorter end with windows that are not `real`.

    Attributes:
        t: `[chains, windows, N + 1]` [s].
        tau: `[chains, windows, N + 1, num_dof]`.
        seen: measured positions, and velocities where there are any, `[chains, windows, N, seen]`.
        good: 0 where nothing was measured, like `seen`.
        real: whether the window is of the log, `[chains, windows]`.
        fold: stretch of time that each chain lies in, `[chains]`.
        held: whether forces stay from a sample to the next; else they are on a line between.
        mass: matrices of the robot as given where windows start, `[chains, windows, num_dof, num_dof]`.
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
        """Cut a log: at gaps, where a fold ends, and where a force is no measurement.

        Raises:
            FitError: fewer than two windows.
        """
        n = samples_per_window(settings.rate, length)
        t = np.asarray(log.t, np.float64)
        rows = [to_rows(x) for x in (log.q, log.tau, log.qd) if x is not None]
        new = (
            x if k == 1 else replace_by_nan(find_repeated_samples(x), x) for k, x in enumerate(rows)
        )
        (q, off), (tau, wrong), *rates = (replace_outliers(t, x) for x in new)
        limit = mech.effort_limit.detach().cpu().numpy()[:, None]
        wrong = wrong | (np.abs(tau) >= SATURATED_SHARE * limit)
        fold, bad = folds.of(torch.from_numpy(t)).numpy(), np.any(wrong, 0)
        chains: list[list[int]] = []
        for start, stop in find_segments(log, settings):
            before, chain = -1, list[int]()
            for a in range(start, stop - n, n):
                # What a force that is none leads to is not to be explained.
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
                "Shooting moves the robot through windows without a gap, whose forces are all measured.",
                "Log more, or pass a shorter window.",
            )
        most = max(map(len, chains))
        places = np.array([chain + chain[-1:] * (most - len(chain)) for chain in chains])
        real = np.array([[k < len(chain) for k in range(most)] for chain in chains])
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
        """Windows whose end is the start of the next, `[chains, windows - 1]`."""
        return self.real[:, 1:]

    @property
    def length(self) -> Tensor:
        """Of each [s], `[chains, windows]`."""
        return self.t[..., -1]

    def force(self, k: int, part: float) -> Tensor:
        """Measured force between samples k and k + 1, `[chains, windows, num_dof]`."""
        if self.held:
            return self.tau[..., k, :]
        return (1 - part) * self.tau[..., k, :] + part * self.tau[..., k + 1, :]

    def starts(self) -> Tensor:
        """States where windows start, by a parabola through each, `[chains, windows, 2 num_dof]`."""
        dofs = self.tau.shape[-1]
        y = self.seen[..., :dofs]
        found = torch.linalg.lstsq(_powers(self.t[..., :-1]), y).solution
        rate = found[..., 1, :] if self.seen.shape[-1] == dofs else self.seen[..., 0, dofs:]
        return torch.cat([found[..., 0, :], rate], -1)

    def known_rates(self, seen: Tensor) -> Tensor:
        """How well velocities of `starts` are known where chains start: one over variances.

        What goes on before a window tells how fast it starts, but nothing does of a chain's first. Where
        friction is steep beside inertia, the motion after does not either: velocities that are forgotten at
        once would be anything.

        Args:
            seen: variances of measured positions, `[num_dof]`.

        Returns:
            `[chains, num_dof]`; 0 where velocities are measured, or samples are too few to tell.
        """
        dofs = self.tau.shape[-1]
        t, y = self.t[:, 0, :-1], self.seen[:, 0, :, :dofs]
        n = t.shape[-1]
        if self.seen.shape[-1] > dofs or n < MIN_DEFAULT_SAMPLES:
            return torch.zeros_like(y[:, 0])
        columns = _powers(t)
        rest = y - columns @ torch.linalg.lstsq(columns, y).solution
        # What bends more than a parabola is no noise that samples share: it goes together.
        bends = (rest.square().sum(-2) / (n - 3) - seen).clamp_min(0)
        spread = torch.linalg.inv(columns.mT @ columns)[:, 1, 1, None]
        return 1 / (START_STD_FACTOR**2 * spread * (seen + n * bends))


def _powers(t: Tensor) -> Tensor:
    """Columns of a parabola, or of a line through two samples, `[*batch, samples, 3]`."""
    return torch.stack([t**k for k in range(min(3, t.shape[-1]))], -1)


def samples_per_window(rate: float, length: float | None) -> int:
    """Samples of a window.

    Raises:
        FitError: fewer than two.
    """
    if length is None:
        return max(MIN_DEFAULT_SAMPLES, round(DEFAULT_LENGTH * rate))
    n = round(length * rate)
    if n < 2:
        raise FitError(
            f"window is {length:g} s, at {rate:.4g} samples a second.",
            "Two samples at least say where a window starts, and how fast.",
            f"Pass window={MIN_DEFAULT_SAMPLES / rate:.2g}, say, or leave it out.",
        )
    return n


def _picked(x: np.ndarray, at: np.ndarray) -> Tensor:
    return torch.from_numpy(np.moveaxis(x[:, at], 0, -1).copy())
