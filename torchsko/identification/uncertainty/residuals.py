"""Residuals of a fit, and their autocorrelation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.regression.normal_equations import RegressionProblem
from torchsko.identification.regression.solution import Solution
from torchsko.identification.signals.autocorrelation import autocorrelation_time, lagged_products
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.identification.workers import side_by_side

MAX_PLOT_SAMPLES = 4000
"""Largest number of residual samples that are stored for plots."""

MAX_LAGS = 400
"""Largest lag of autocorrelations [samples]."""

CONSTANT_TOLERANCE = 1e-9
"""Standard deviation of a force, relative to the largest of all, up to which it counts as constant."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """Filtered forces and residuals.

    Attributes:
        t: times, thinned for plots, `[samples]` [s].
        tau: filtered forces at these times, `[samples, num_dof]`.
        error: predicted minus measured forces at these times, `[samples, num_dof]`.
        variance: variance of all residuals, `[num_dof]`.
        spread: standard deviation of the forces, `[num_dof]`.
        autocorrelation_samples: integrated autocorrelation of the residuals in samples, `[num_dof]`; 1 for
            white noise.
        autocorrelation_time: integrated autocorrelation time [s], `[num_dof]`.
        speed: largest speed of the log, `[num_dof]` [rad/s or m/s]; None in old files.
        rates: velocities at these times, of drives for coupled joints, `[samples, num_dof]` [rad/s or m/s];
            None in old files.
    """

    t: Tensor
    tau: Tensor
    error: Tensor
    variance: Tensor
    spread: Tensor
    autocorrelation_samples: Tensor
    autocorrelation_time: Tensor
    speed: Tensor | None = None
    rates: Tensor | None = None

    def relative(self, error: Tensor) -> Tensor:
        """Errors `[num_dof]` relative to the standard deviation of each force; nan for constant forces."""
        return relative_error(error, self.spread)


def relative_error(error: Tensor, spread: Tensor) -> Tensor:
    """Errors relative to the standard deviation of each force; nan for constant forces.

    Args:
        error: root mean square errors, `[num_dof]`.
        spread: standard deviations of the forces, `[num_dof]`.
    """
    varies = spread > CONSTANT_TOLERANCE * spread.max()
    return torch.where(varies, error / spread, torch.nan)


def compute_residuals(
    problem: RegressionProblem,
    motions: Sequence[FilteredMotion],
    solution: Solution,
) -> Residuals:
    """Compute the residuals of a solution.

    Args:
        problem: regression problem.
        motions: motions in order of time.
        solution: fitted parameters.
    """
    parts = list(side_by_side(lambda x: motion_residuals(problem, x, solution), motions))
    t, tau, e, good, rates = (torch.cat(x) for x in zip(*parts, strict=True))
    count = good.sum(0).clamp_min(1)
    variance = e.square().sum(0) / count
    mean = torch.where(good, tau, 0.0).sum(0) / count
    spread = (torch.where(good, tau - mean, 0.0).square().sum(0) / count).sqrt()
    samples = integrated_autocorrelation(*(x[2] for x in parts))
    step = torch.diff(t).median() if len(t) > 1 else t.new_ones(())
    thin = slice(None, None, max(1, len(t) // MAX_PLOT_SAMPLES))
    speed = torch.stack([x.qd.abs().amax(0) for x in motions]).amax(0)
    return Residuals(
        t[thin], tau[thin], e[thin], variance, spread, samples, samples * step, speed, rates[thin]
    )


def motion_residuals(
    problem: RegressionProblem,
    motion: FilteredMotion,
    solution: Solution,
) -> tuple[Tensor, ...]:
    """Times, forces, residuals (0 for invalid forces), a mask of valid forces, and velocities."""
    parts = [
        (t, X[..., -1], torch.where(good, solution.prediction_error(X), 0.0), good)
        for t, X, good in problem.filtered_rows([motion])
    ]
    t, tau, e, good = (torch.cat(x) for x in zip(*parts, strict=True))
    near = torch.searchsorted(motion.t.contiguous(), t.contiguous()).clamp_max(len(motion) - 1)
    qd = motion.qd if problem.drives is None else problem.drives.states(motion.qd)
    return t, tau, e, good, qd[near]


def integrated_autocorrelation(*errors: Tensor) -> Tensor:
    """Integrated autocorrelation of residuals in samples, 1 + 2 times the sum of autocorrelations.

    Args:
        errors: residuals of each motion, `[samples, dofs]`.

    Returns:
        `[dofs]`.
    """
    total = errors[0].new_zeros(MAX_LAGS, errors[0].shape[1])
    for e in errors:
        auto = lagged_products(e, MAX_LAGS)
        total = total + torch.nn.functional.pad(auto, (0, 0, 0, MAX_LAGS - len(auto)))
    return autocorrelation_time(total)
