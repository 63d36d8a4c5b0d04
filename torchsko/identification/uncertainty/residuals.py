"""What a fit leaves unexplained: its size, and whether it is noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchsko.identification.regression.normal_equations import RegressionProblem
from torchsko.identification.regression.rigid_model import dof_positions
from torchsko.identification.regression.solution import Solution
from torchsko.identification.signals.autocorrelation import autocorrelation_time, lagged_products
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.identification.workers import side_by_side

MAX_PLOT_SAMPLES = 4000
"""Samples of residuals that are kept to be looked at."""

MAX_LAGS = 400
"""Of autocorrelations at most."""

CONSTANT_TOLERANCE = 1e-9
"""Spread of a force, over the largest of all, up to which it is rounding."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """Filtered forces and what is left of them.

    Attributes:
        t: `[samples]` [s], thinned to be drawn.
        tau: filtered forces, `[samples, num_dof]`, likewise.
        error: predicted less measured, `[samples, num_dof]`, likewise.
        variance: of all errors, `[num_dof]`.
        spread: standard deviation of the forces, `[num_dof]`.
        inflation: how many samples are one, for the errors are correlated: the sum of their
            autocorrelations up to where they first vanish, `[num_dof]`; 1 for white noise.
        lasting: that sum as a time [s].
        speed: the largest that the log has, `[num_dof]` [rad/s or m/s]; None in files that were written
            before it was kept.
    """

    t: Tensor
    tau: Tensor
    error: Tensor
    variance: Tensor
    spread: Tensor
    autocorrelation_samples: Tensor
    autocorrelation_time: Tensor
    speed: Tensor | None = None

    def relative(self, error: Tensor) -> Tensor:
        """Errors `[num_dof]` over the spread of each force; nan where a force is constant, as no force is."""
        varies = self.spread > CONSTANT_TOLERANCE * self.spread.max()
        return torch.where(varies, error / self.spread, torch.nan)


def compute_residuals(
    problem: RegressionProblem,
    motions: Sequence[FilteredMotion],
    solution: Solution,
    more: nn.Module | None = None,
) -> Residuals:
    """Residuals of a solution, in motions in order of time.

    Args:
        problem: what explains forces.
        motions: to look at.
        solution: what was fitted.
        more: a force besides, of positions, velocities and accelerations.
    """
    found = list(side_by_side(lambda x: motion_residuals(problem, x, solution, more), motions))
    t, tau, e, good = (torch.cat(x) for x in zip(*found, strict=True))
    count = good.sum(0).clamp_min(1)
    variance = e.square().sum(0) / count
    mean = torch.where(good, tau, 0.0).sum(0) / count
    spread = (torch.where(good, tau - mean, 0.0).square().sum(0) / count).sqrt()
    inflation = integrated_autocorrelation(*(x[2] for x in found))
    step = torch.diff(t).median() if len(t) > 1 else t.new_ones(())
    thin = slice(None, None, max(1, len(t) // MAX_PLOT_SAMPLES))
    speed = torch.stack([x.qd.abs().amax(0) for x in motions]).amax(0)
    return Residuals(
        t[thin], tau[thin], e[thin], variance, spread, inflation, inflation * step, speed
    )


def motion_residuals(
    problem: RegressionProblem,
    motion: FilteredMotion,
    solution: Solution,
    more: nn.Module | None = None,
) -> tuple[Tensor, ...]:
    """Times, forces, errors (0 where a force does not count), and which count."""
    parts = [
        (t, X[..., -1], torch.where(good, solution.prediction_error(X), 0.0), good)
        for t, X, good in problem.filtered_rows([motion])
    ]
    t, tau, e, good = (torch.cat(x) for x in zip(*parts, strict=True))
    if more is not None:
        force = more(dof_positions(problem.mech, motion.q), motion.qd, motion.qdd)
        e = e + torch.where(good, motion.settings.double_filter(force), 0.0)
    return t, tau, e, good


def integrated_autocorrelation(*errors: Tensor) -> Tensor:
    """1 + 2 times the sum of autocorrelations up to where they vanish.

    Args:
        errors: of stretches, each `[samples, dofs]`.

    Returns:
        `[dofs]`.
    """
    total = errors[0].new_zeros(MAX_LAGS, errors[0].shape[1])
    for e in errors:
        auto = lagged_products(e, MAX_LAGS)
        total = total + torch.nn.functional.pad(auto, (0, 0, 0, MAX_LAGS - len(auto)))
    return autocorrelation_time(total)
