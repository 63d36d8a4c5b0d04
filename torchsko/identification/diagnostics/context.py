"""Data that checks examine: the raw log, the prepared problem, and the finished fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchsko.identification.drive_gains import Constants
from torchsko.identification.logs.log import Array, Log
from torchsko.identification.regression.accumulate import ResidualSample
from torchsko.identification.regression.least_squares import ParameterUncertainty
from torchsko.identification.regression.normal_equations import (
    NormalEquations,
    RegressionProblem,
    TimeFolds,
)
from torchsko.identification.regression.rigid_model import without_losses
from torchsko.identification.regression.solution import ModelStructure, Solution
from torchsko.identification.signals.cleaning import LogDefects, mask_invalid_magnitudes
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.identification.uncertainty.prior_covariance import MassUncertainty
from torchsko.identification.uncertainty.residuals import Residuals
from torchsko.mechanism.mechanism import Mechanism

BLOCKS = 200
"""Number of blocks of the raw log that checks examine, evenly spread over time."""

BLOCK_SECONDS = 0.1
"""Length of a block [s]."""


@dataclass(frozen=True, eq=False)
class RawLog:
    """Short blocks of a log as it was measured.

    Attributes:
        mech: the nominal robot.
        log: the log.
        rate: sampling rate [Hz].
        t: `[blocks, samples]` [s].
        q: `[blocks, samples, num_q]`.
        tau: `[blocks, samples, num_dof]`.
        qd: `[blocks, samples, num_dof]`; None if the log has no velocities.
    """

    mech: Mechanism
    log: Log
    rate: float
    t: Array
    q: Array
    tau: Array
    qd: Array | None

    @classmethod
    def of(cls, mech: Mechanism, log: Log, rate: float) -> RawLog:
        """Read the blocks of a log."""
        size = max(2, round(BLOCK_SECONDS * rate))
        starts = np.unique(np.linspace(0, max(len(log) - size - 1, 0), BLOCKS).astype(int))
        rows = (starts[:, None] + np.arange(size + 1)).clip(max=len(log) - 1)

        def blocks(x: Array) -> Array:
            values = mask_invalid_magnitudes(np.asarray(x[rows], np.float64))
            log.release_pages()  # the pages around each block of a memory-mapped array
            return values

        qd = None if log.qd is None else blocks(log.qd)
        return cls(mech, log, rate, blocks(log.t), blocks(log.q), blocks(log.tau), qd)

    @cached_property
    def without_gaps(self) -> NDArray[np.bool_]:
        """Mask of the blocks without a gap in time, `[blocks]`."""
        return np.asarray((np.diff(self.t, axis=1) <= 2.5 / self.rate).all(1))


@dataclass(frozen=True, eq=False)
class FitContext:
    """A robot and a log, prepared for a fit.

    Attributes:
        original: the nominal robot as it was passed.
        nominal: the nominal robot with physical inertias.
        replaced_bodies: names of bodies whose inertia was not physical.
        log: forces, not currents.
        unwrapped: how often each unwrapped coordinate jumped, and by how much, by name.
        settings: of the filter.
        constants: torque constants that were estimated, for a log of currents.
        problem: the regression problem.
        given_terms: indices of the terms that the caller chose, by dof.
        unmeasured: dofs of the floating base whose force was not measured.
        folds: cross-validation folds.
        equations: the normal equations, by fold.
        faults: counts of faulty samples.
        sample: filtered motions for residuals.
    """

    original: Mechanism
    nominal: Mechanism
    replaced_bodies: tuple[str, ...]
    log: Log
    unwrapped: Mapping[str, tuple[int, float]]
    settings: FilterSettings
    constants: Constants | None
    problem: RegressionProblem
    given_terms: Mapping[int, tuple[int, ...]]
    unmeasured: tuple[int, ...]
    folds: TimeFolds
    equations: NormalEquations
    faults: LogDefects
    sample: ResidualSample

    @cached_property
    def lossless(self) -> Mechanism:
        """The nominal robot without friction, with all its rotors."""
        return without_losses(self.nominal)

    @property
    def motions(self) -> list[FilteredMotion]:
        """Filtered motions for residuals."""
        return self.sample.motions


@dataclass(frozen=True, eq=False)
class FittedContext(FitContext):
    """A finished fit.

    Attributes:
        model: terms and weights that were fitted.
        solution: estimates.
        residuals: errors of the solution.
        squared_errors: mean square prediction errors by cross-validation, `[folds, num_dof]`.
        least_squares_errors: those of least squares, `[folds, num_dof]`.
        information: covariance of the estimates.
        combinations: shares of parameters in unidentifiable combinations, `[combinations, parameters]`.
        labels: names of the parameters: base parameters, then terms.
        combination_labels: names of the parameters of `combinations`.
        selects: whether terms were selected.
        position_bias: bias of the parameters by noise of positions, `[parameters]`; None if not computed.
        bias_advice: a method without that bias.
        physical: whether inertial parameters are physically consistent.
        masses: uncertainty of masses; None if it was not estimated.
    """

    model: ModelStructure
    solution: Solution
    residuals: Residuals
    squared_errors: Tensor
    least_squares_errors: Tensor
    information: ParameterUncertainty
    combinations: Tensor | None
    labels: Sequence[str]
    combination_labels: Sequence[str]
    selects: bool
    position_bias: Tensor | None
    bias_advice: str
    physical: bool
    masses: MassUncertainty | None
