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
    Normal,
    Problem,
    Stretches,
    Weigh,
    normal_equations,
)
from torchsko.identification.signals.cleaning import Faults
from torchsko.identification.signals.filter_settings import Settings
from torchsko.identification.signals.preprocess import (
    Motion,
    Piece,
    check_columns,
    filtered,
    pieces,
)
from torchsko.identification.workers import side_by_side
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.regressors import torque_regressor

KEPT = 100_000
"""States of which residuals are looked at, at most."""

PAYS = 150_000
"""States from which on a kernel of the regressor is built: that takes seconds, and saves more."""


def with_kernel(problem: Problem, log: Log, settings: Settings) -> Problem:
    """The problem with a kernel of its regressor, where that pays and can be built."""
    mech, leading = problem.mech, problem.leading
    if len(log) / settings.states.every < PAYS or mech.device.type != "cpu":
        return problem

    def regressor(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        return leading.picked(torque_regressor(mech, q, qd, qdd))

    try:
        find_toolchain()
        call = fuse(regressor, mech)
        q, still = mech.neutral()[None], torch.zeros(1, mech.num_dof, dtype=mech.dtype)
        call(q, still, still)  # built before threads ask for it
    except (FusedError, CompilerError):
        return problem
    return replace(problem, regressor=call)


@dataclass(frozen=True, eq=False)
class Seen:
    """Motions to look at residuals in.

    Attributes:
        motions: all of a short log, of a long one every so many pieces.
        pieces: of the whole log.
    """

    motions: list[Motion]
    pieces: int


def read(
    problem: Problem, log: Log, settings: Settings, folds: int, tell: Callable[[float], None]
) -> tuple[Normal, Faults, Seen]:
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
    faults, kept = Faults(), []
    stretches = Stretches(float(log.t[0]), float(log.t[-1]), folds)
    parts, total = pieces(log, settings, faults), normal_equations(problem, [], stretches)
    looked = set(sample(parts, settings))

    def one(piece: Piece) -> tuple[Motion, Faults, Normal]:
        wrong = Faults()
        motion = filtered(problem.mech, log, settings, wrong, piece)
        return motion, wrong, normal_equations(problem, [motion], stretches)

    for k, (motion, wrong, normal) in enumerate(side_by_side(one, parts)):
        faults.add(wrong)
        total = total.plus(normal)
        kept += [motion] if parts[k] in looked else []
        tell((k + 1) / len(parts))
    return total, faults, Seen(kept, len(parts))


def seen_again(problem: Problem, log: Log, settings: Settings) -> Seen:
    """The motions that `read` keeps, read again."""
    parts = pieces(log, settings, Faults())
    again = [filtered(problem.mech, log, settings, Faults(), x) for x in sample(parts, settings)]
    return Seen(again, len(parts))


def again(
    problem: Problem, log: Log, settings: Settings, folds: int, seen: Seen,
    *, lag: int = 0, weigh: Weigh | None = None,
) -> Normal:  # fmt: skip
    """Normal equations with a lag or weights: of the motions that were kept, or of the log once more."""
    stretches = Stretches(float(log.t[0]), float(log.t[-1]), folds)

    def one(item: Motion | Piece) -> Normal:
        motion = (
            item
            if isinstance(item, Motion)
            else filtered(problem.mech, log, settings, Faults(), item)
        )
        return normal_equations(problem, [motion], stretches, lag=lag, weigh=weigh)

    total, whole = normal_equations(problem, [], stretches), len(seen.motions) == seen.pieces
    for part in side_by_side(one, seen.motions if whole else pieces(log, settings, Faults())):
        total = total.plus(part)
    return total


def sample(parts: Sequence[Piece], settings: Settings) -> Sequence[Piece]:
    """Every so many pieces, no more states than `KEPT`."""
    states = sum(b - a for a, b in (piece.rows for piece in parts)) / settings.states.every
    return parts[:: max(1, math.ceil(states / KEPT))]
