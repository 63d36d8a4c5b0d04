"""Accumulation of normal equations from a log, piece by piece and in parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import CompilerError, FusedError
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.fuse import fuse
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.normal_equations import (
    NormalEquations,
    RegressionProblem,
    TimeFolds,
    WeightFunction,
    accumulate_equations,
)
from torchsko.identification.signals.autocorrelation import find_period
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.preprocess import (
    FilteredMotion,
    LogPiece,
    check_columns,
    filter_piece,
    split_log,
)
from torchsko.identification.workers import side_by_side
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.regressors import torque_regressor

MAX_SAMPLE_STATES = 100_000
"""Largest number of states for which residuals are computed."""

MAX_PERIOD_SAMPLES = 10_000
"""Largest number of samples by which the period of a motion is found."""

MIN_KERNEL_STATES = 150_000
"""States from which a compiled regressor saves more time than its build of a few seconds."""


def compile_regressor(
    problem: RegressionProblem, log: Log, settings: FilterSettings
) -> RegressionProblem:
    """Compile the regressor of a problem for a long log on a CPU; otherwise return the problem unchanged."""
    mech, columns = problem.mech, problem.base_columns
    if len(log) / settings.state_filter.decimation < MIN_KERNEL_STATES or mech.device.type != "cpu":
        return problem

    def regressor(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        return columns.select(torque_regressor(mech, q, qd, qdd))

    try:
        find_toolchain()
        call = fuse(regressor, mech)
        q, zero = mech.neutral()[None], torch.zeros(1, mech.num_dof, dtype=mech.dtype)
        call(q, zero, zero)  # build before several threads call it
    except (FusedError, CompilerError):
        return problem
    return replace(problem, regressor=call)


@dataclass(frozen=True, eq=False)
class ResidualSample:
    """Motions for which residuals are computed.

    Attributes:
        motions: all pieces of a short log, evenly spaced pieces of a long one.
        num_pieces: number of pieces of the whole log.
    """

    motions: list[FilteredMotion]
    num_pieces: int


def time_folds(log: Log, count: int, margin: float) -> TimeFolds:
    """Cross-validation folds of a log, with the period of its motion if there is one.

    Args:
        log: the log.
        count: number of folds.
        margin: time at both ends at which a filter leaves no samples [s]. If the first and the last fold of a
            short log were empty, few would be left to compare models, so folds divide the rest.
    """
    first, last, n = float(log.t[0]), float(log.t[-1]), min(len(log), MAX_PERIOD_SAMPLES)
    rows = np.linspace(0, len(log) - 1, n).astype(int)
    t, q = (np.asarray(x[rows], np.float64) for x in (log.t, log.q))
    log.release_pages()
    even = np.linspace(first, last, n)
    good = np.isfinite(q).all(1)
    is_short = 2 * margin < last - first <= count * margin
    plain = TimeFolds(first + margin * is_short, last - margin * is_short, count)
    if good.sum() < 2:
        return plain
    motion = np.stack([np.interp(even, t[good], x[good]) for x in q.T], -1)
    period = find_period(torch.from_numpy(motion))
    if period < n:
        return TimeFolds(first, last, count, period * (last - first) / (n - 1))
    return plain


def read_log(
    problem: RegressionProblem,
    log: Log,
    settings: FilterSettings,
    folds: TimeFolds,
    progress: Callable[[float], None],
) -> tuple[NormalEquations, LogDefects, ResidualSample]:
    """Accumulate the normal equations of a log in one pass, pieces in parallel threads.

    Args:
        problem: regression problem.
        log: log, read piece by piece.
        settings: filter settings.
        folds: cross-validation folds.
        progress: called with the share that is done.

    Returns:
        The normal equations, the faults of the log, and motions for residuals.
    """
    check_columns(problem.mech, log)
    defects, motions = LogDefects(), []
    parts, total = split_log(log, settings, defects), accumulate_equations(problem, [], folds)
    sampled = set(sample_pieces(parts, settings))

    def read_piece(piece: LogPiece) -> tuple[FilteredMotion, LogDefects, NormalEquations]:
        found = LogDefects()
        motion = filter_piece(problem.mech, log, settings, found, piece)
        return motion, found, accumulate_equations(problem, [motion], folds)

    for k, (motion, found, normal) in enumerate(side_by_side(read_piece, parts)):
        defects.add(found)
        total = total.added(normal)
        motions += [motion] if parts[k] in sampled else []
        progress((k + 1) / len(parts))
    return total, defects, ResidualSample(motions, len(parts))


def reread_sample(problem: RegressionProblem, log: Log, settings: FilterSettings) -> ResidualSample:
    """Read the motions that `read_log` returns for residuals."""
    parts = split_log(log, settings, LogDefects())
    motions = [
        filter_piece(problem.mech, log, settings, LogDefects(), piece)
        for piece in sample_pieces(parts, settings)
    ]
    return ResidualSample(motions, len(parts))


def accumulate_weighted(
    problem: RegressionProblem, log: Log, settings: FilterSettings, folds: TimeFolds, seen: ResidualSample,
    *, lag: int = 0, weigh: WeightFunction | None = None,
) -> NormalEquations:  # fmt: skip
    """Accumulate normal equations with a lag or weights, reading the log only where motions are missing."""

    def accumulate(item: FilteredMotion | LogPiece) -> NormalEquations:
        motion = (
            item
            if isinstance(item, FilteredMotion)
            else filter_piece(problem.mech, log, settings, LogDefects(), item)
        )
        return accumulate_equations(problem, [motion], folds, lag=lag, weigh=weigh)

    total = accumulate_equations(problem, [], folds)
    complete = len(seen.motions) == seen.num_pieces
    items = seen.motions if complete else split_log(log, settings, LogDefects())
    for part in side_by_side(accumulate, items):
        total = total.added(part)
    return total


def sample_pieces(parts: Sequence[LogPiece], settings: FilterSettings) -> Sequence[LogPiece]:
    """Evenly spaced pieces with at most `MAX_SAMPLE_STATES` states."""
    states = (
        sum(b - a for a, b in (piece.rows for piece in parts)) / settings.state_filter.decimation
    )
    return parts[:: max(1, math.ceil(states / MAX_SAMPLE_STATES))]
