"""How a fit reads a log: once, piece by piece, by a kernel where it pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
"""States of which residuals are looked at, at most."""

MIN_KERNEL_STATES = 150_000
"""States from which on a kernel of the regressor is built: that takes seconds, and saves more."""


def compile_regressor(
    problem: RegressionProblem, log: Log, settings: FilterSettings
) -> RegressionProblem:
    """The problem with a kernel of its regressor, where that pays and can be built."""
    mech, leading = problem.mech, problem.base_columns
    if len(log) / settings.state_filter.decimation < MIN_KERNEL_STATES or mech.device.type != "cpu":
        return problem

    def regressor(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        return leading.select(torque_regressor(mech, q, qd, qdd))

    try:
        find_toolchain()
        call = fuse(regressor, mech)
        q, still = mech.neutral()[None], torch.zeros(1, mech.num_dof, dtype=mech.dtype)
        call(q, still, still)  # built before threads ask for it
    except (FusedError, CompilerError):
        return problem
    return replace(problem, regressor=call)


@dataclass(frozen=True, eq=False)
class ResidualSample:
    """Motions to look at residuals in.

    Attributes:
        motions: all of a short log, of a long one every so many pieces.
        pieces: of the whole log.
    """

    motions: list[FilteredMotion]
    num_pieces: int


def read_log(
    problem: RegressionProblem,
    log: Log,
    settings: FilterSettings,
    folds: int,
    tell: Callable[[float], None],
) -> tuple[NormalEquations, LogDefects, ResidualSample]:
    """One pass over a log, pieces side by side on the cores that torch may use.

    Args:
        problem: what explains forces.
        log: read piece by piece.
        settings: how it is filtered.
        folds: of cross-validation.
        tell: called with the part that is done.

    Returns:
        The normal equations, what is wrong in the log, and motions to look at residuals in.
    """
    check_columns(problem.mech, log)
    faults, kept = LogDefects(), []
    stretches = TimeFolds(float(log.t[0]), float(log.t[-1]), folds)
    parts, total = split_log(log, settings, faults), accumulate_equations(problem, [], stretches)
    looked = set(sample_pieces(parts, settings))

    def one(piece: LogPiece) -> tuple[FilteredMotion, LogDefects, NormalEquations]:
        wrong = LogDefects()
        motion = filter_piece(problem.mech, log, settings, wrong, piece)
        return motion, wrong, accumulate_equations(problem, [motion], stretches)

    for k, (motion, wrong, normal) in enumerate(side_by_side(one, parts)):
        faults.add(wrong)
        total = total.added(normal)
        kept += [motion] if parts[k] in looked else []
        tell((k + 1) / len(parts))
    return total, faults, ResidualSample(kept, len(parts))


def reread_sample(problem: RegressionProblem, log: Log, settings: FilterSettings) -> ResidualSample:
    """The motions that `read_log` keeps, read again."""
    parts = split_log(log, settings, LogDefects())
    again = [
        filter_piece(problem.mech, log, settings, LogDefects(), x)
        for x in sample_pieces(parts, settings)
    ]
    return ResidualSample(again, len(parts))


def accumulate_weighted(
    problem: RegressionProblem, log: Log, settings: FilterSettings, folds: int, seen: ResidualSample,
    *, lag: int = 0, weigh: WeightFunction | None = None,
) -> NormalEquations:  # fmt: skip
    """Normal equations with a lag or weights: of the motions that were kept, or of the log once more."""
    stretches = TimeFolds(float(log.t[0]), float(log.t[-1]), folds)

    def one(item: FilteredMotion | LogPiece) -> NormalEquations:
        motion = (
            item
            if isinstance(item, FilteredMotion)
            else filter_piece(problem.mech, log, settings, LogDefects(), item)
        )
        return accumulate_equations(problem, [motion], stretches, lag=lag, weigh=weigh)

    total, whole = (
        accumulate_equations(problem, [], stretches),
        len(seen.motions) == seen.num_pieces,
    )
    for part in side_by_side(
        one, seen.motions if whole else split_log(log, settings, LogDefects())
    ):
        total = total.added(part)
    return total


def sample_pieces(parts: Sequence[LogPiece], settings: FilterSettings) -> Sequence[LogPiece]:
    """Every so many pieces, no more states than `MAX_SAMPLE_STATES`."""
    states = (
        sum(b - a for a, b in (piece.rows for piece in parts)) / settings.state_filter.decimation
    )
    return parts[:: max(1, math.ceil(states / MAX_SAMPLE_STATES))]
