"""Normal equations of a log, accumulated in memory that does not grow with its length."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchsko.identification.friction import Term, TermInput
from torchsko.identification.regression.base_columns import BaseColumns
from torchsko.identification.regression.drives import Drives
from torchsko.identification.regression.rigid_model import (
    dof_positions,
    passive_and_armature_force,
    without_armature,
    without_losses,
)
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.base_parameters import BaseParameters, base_parameters
from torchsko.verbs.regressors import inertial_parameters, torque_regressor

Regressor = Callable[[Tensor, Tensor, Tensor], Tensor]

MIN_CHUNK_STATES = 8192
"""Smallest number of states whose columns are in memory at once."""

MAX_CHUNK_NUMBERS = 6_000_000
"""Numbers in memory at once for small robots; larger chunks repeat fewer states where they overlap."""

EQUATIONS_PER_PRODUCT = 512
"""Filtered equations multiplied at once, so that they stay in the cache."""

WARM_UP_STATES = 512
"""States before a chunk that let terms with memory forget their initial state."""

MIN_VALID_WEIGHT = 0.98
"""Share of valid samples under the filter from which on a filtered sample counts."""


@dataclass(frozen=True, eq=False)
class RegressionProblem:
    """Linear regression of joint forces on base parameters and terms.

    The columns of a dof are those of the base parameters, then those of the terms, and last the force.

    Attributes:
        mech: nominal robot without damping and dry friction, which terms describe.
        terms: available terms of every joint.
        regressor: maps positions, velocities and accelerations to the entries of `base_columns`.
        base: base parameters of the robot.
        base_columns: independent entries of the torque regressor.
        rotor_dofs: dofs whose armature is a term, and zero in `mech`.
        drives: drives of coupled joints, whose equations replace those of the joints; None without couplings.
    """

    mech: Mechanism
    terms: tuple[Term, ...]
    regressor: Regressor
    base: BaseParameters
    base_columns: BaseColumns
    rotor_dofs: tuple[int, ...] = ()
    drives: Drives | None = None

    @classmethod
    def of(
        cls,
        mech: Mechanism,
        terms: Sequence[Term],
        regressor: Regressor | None = None,
        named: Mapping[int, Sequence[int]] | None = None,
        drives: Drives | None = None,
    ) -> RegressionProblem:
        """Build the problem of a robot.

        Args:
            mech: the robot.
            terms: available terms of every joint.
            regressor: replaces `torque_regressor`.
            named: indices of the terms that the user requested, by dof.
            drives: drives of coupled joints.
        """
        rotor_dofs = tuple(
            j for j, chosen in (named or {}).items() if any(terms[k].armature for k in chosen)
        )
        bare = without_armature(without_losses(mech), rotor_dofs)
        base = base_parameters(bare)
        columns, full = BaseColumns.of(bare, base), regressor or partial(torque_regressor, bare)
        return cls(
            bare,
            tuple(terms),
            lambda *state: columns.select(full(*state)),
            base,
            columns,
            rotor_dofs,
            drives,
        )

    def positions(self, q: Tensor) -> Tensor:
        """Positions of the dofs, of the drives of coupled joints, `[*batch, num_dof]`."""
        x = dof_positions(self.mech, q)
        return x if self.drives is None else self.drives.states(x)

    def columns(self, motion: FilteredMotion) -> tuple[Tensor, Tensor, Tensor]:
        """Unfiltered columns of a motion.

        Returns:
            Independent regressor entries `[samples, entries]`; linear terms and last the measured force
            without springs and armature `[samples, linear + 1, num_dof]`; nonlinear terms
            `[samples, nonlinear, num_dof]`. Terms are in the order of `term_order`.
        """
        q, qd, qdd = motion.q, motion.qd, motion.qdd
        inertial = self.regressor(q, qd, qdd)
        rigid = inertial @ self.base_columns.forces(inertial_parameters(self.mech).flatten())
        known = passive_and_armature_force(self.mech, q, qd, qdd)
        load, force, force_rate = rigid + known, motion.tau - known, motion.force_rate
        if self.drives is not None:
            qd, qdd = self.drives.states(qd), self.drives.states(qdd)
            load, force, force_rate = map(self.drives.forces, (load, force, force_rate))
        series = TermInput(
            self.positions(q), qd, qdd, load, force_rate, step=1 / motion.settings.state_rate
        )
        parts = [*(term.basis(series) for term in self.terms), force]
        linear, nonlinear = (
            torch.stack([parts[k] for k in group], -2)
            if group
            else q.new_zeros(len(q), 0, qd.shape[-1])
            for group in self.term_order
        )
        return inertial, linear, nonlinear

    @property
    def term_order(self) -> tuple[list[int], list[int]]:
        """Indices of the linear terms and the force, and of the nonlinear terms."""
        linear = [k for k, term in enumerate(self.terms) if term.linear]
        nonlinear = [k for k, term in enumerate(self.terms) if not term.linear]
        return [*linear, len(self.terms)], nonlinear

    def filtered_rows(
        self, motions: Iterable[FilteredMotion]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Filtered equations of motions, in chunks.

        Yields:
            Times `[samples]`, columns `[samples, num_dof, base + terms + 1]` and a mask of the samples that
            count `[samples, num_dof]`.
        """
        order = self.base_columns.column_index(len(self.terms) + 1)
        place = torch.tensor([*itertools.chain(*self.term_order)], device=order.device).argsort()
        order = torch.cat([order[:, : len(self.base)], order[:, len(self.base) + place]], -1)
        for motion in motions:
            once, twice = motion.settings.force_filter, motion.settings.double_filter
            taps, every, n = len(twice.taps), twice.decimation, twice.count(len(motion))
            size = len(self.base_columns.entries) + (len(self.terms) + 1) * self.mech.num_dof
            step = max(1, max(MIN_CHUNK_STATES, MAX_CHUNK_NUMBERS // size) // every)
            for a in range(0, n, step):
                b = min(n, a + step)
                lead = min(a * every, WARM_UP_STATES)
                part = slice(a * every - lead, (b - 1) * every + taps)
                # Filtering before concatenation avoids copies at the rate of the states.
                inertial, linear, nonlinear = (
                    x[lead:] for x in self.columns(slice_motion(motion, part))
                )
                ends = twice.half_width - once.half_width
                inertial, linear = (once(x[ends : len(x) - ends]) for x in (inertial, linear))
                terms = torch.cat([linear, twice(nonlinear)], -2)
                good = twice(motion.valid[part][lead:]) > MIN_VALID_WEIGHT
                t = motion.t[part][lead:][twice.half_width :: every][: b - a]
                chunks = (x.split(EQUATIONS_PER_PRODUCT) for x in (t, inertial, terms, good))
                for times, entries, columns, mask in zip(*chunks, strict=True):
                    rows = self.base_columns.columns(entries, order, columns)
                    if self.drives is not None:
                        base = self.drives.forces(rows[..., : len(self.base)].mT).mT
                        rows = torch.cat([base, rows[..., len(self.base) :]], -1)
                        mask = self.drives.valid(mask)
                    yield times, rows, mask


def slice_motion(motion: FilteredMotion, rows: slice) -> FilteredMotion:
    """Select samples of a motion."""
    names = ("t", "q", "qd", "qdd", "tau", "force_rate", "valid")
    return replace(motion, **{name: getattr(motion, name)[rows] for name in names})


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """Sums of products of columns for each fold and dof.

    Attributes:
        sums: `[folds, num_dof, columns, columns]`.
        count: total weight of the equations, `[folds, num_dof]`.
        num_base: number of base parameters, whose columns come first. Those of the terms follow, and last
            that of the force.
    """

    sums: Tensor
    count: Tensor
    num_base: int

    def without_fold(self, fold: int) -> NormalEquations:
        """Pool all folds except one."""
        return self.of_folds([k for k in range(len(self.sums)) if k != fold])

    def of_folds(self, folds: Sequence[int]) -> NormalEquations:
        """Pool the given folds."""
        rows = torch.tensor(list(folds), device=self.sums.device)
        return NormalEquations(
            self.sums[rows].sum(0, keepdim=True),
            self.count[rows].sum(0, keepdim=True),
            self.num_base,
        )

    def added(self, other: NormalEquations) -> NormalEquations:
        """Add the equations of other data."""
        return NormalEquations(self.sums + other.sums, self.count + other.count, self.num_base)

    @property
    def pooled(self) -> NormalEquations:
        """The equations of all folds as one fold."""
        return self.of_folds(range(len(self.sums)))


def complete_folds(count: Tensor) -> list[int]:
    """Folds in which every dof has samples, from counts `[folds, num_dof]`; empty dofs are ignored."""
    measured = count.sum(0) > 0
    return [k for k in range(len(count)) if bool((count[k] > 0)[measured].all())]


@dataclass(frozen=True)
class TimeFolds:
    """Cross-validation folds: contiguous intervals of equal length.

    If the motion is periodic, the intervals divide each period: a fit would otherwise know the motion of
    every fold from other periods.

    Attributes:
        first: first time of the log [s].
        last: last time of the log [s].
        count: number of folds.
        period: of the motion [s]; None if it is not periodic.
    """

    first: float
    last: float
    count: int
    period: float | None = None

    def of(self, t: Tensor) -> Tensor:
        """Fold indices of times, clamped to the first and the last fold."""
        span = self.last - self.first if self.period is None else self.period
        share = (t - self.first) / max(span, 1e-9)
        share = share if self.period is None else share % 1
        return (share * self.count).floor().clamp(0, self.count - 1).long()


WeightFunction = Callable[[Tensor], Tensor]
"""Maps columns `[samples, num_dof, base + terms + 1]` to weights `[samples, num_dof]`."""


def accumulate_equations(
    problem: RegressionProblem,
    motions: Iterable[FilteredMotion],
    folds: TimeFolds,
    *,
    lag: int = 0,
    weigh: WeightFunction | None = None,
) -> NormalEquations:
    """Accumulate the normal equations of motions.

    Args:
        problem: regression problem, which defines the columns.
        motions: filtered states and forces.
        folds: cross-validation folds.
        lag: delay of one factor of each product [samples], symmetrized. Noise with a shorter
            autocorrelation then has no expected contribution.
        weigh: weights of samples. Default: all ones.
    """
    dofs, size = problem.mech.num_dof, len(problem.base) + len(problem.terms) + 1
    like = {"dtype": problem.mech.dtype, "device": problem.mech.device}
    sums = torch.zeros(folds.count, dofs, size, size, **like)
    count = torch.zeros(folds.count, dofs, **like)
    for t, X, good in lagged_rows(problem, motions, lag):
        w = good.to(X) if weigh is None else good * weigh(X[:, 0])
        unweighted = weigh is None and bool(good.all())
        # Samples are in order of time, so each fold is one run.
        fold, lengths = folds.of(t).unique_consecutive(return_counts=True)
        runs = zip(fold.tolist(), X.split(lengths.tolist()), w.split(lengths.tolist()), strict=True)
        for f, x, weight in runs:
            late, early = x[:, 0].transpose(0, 1), x[:, -1].transpose(0, 1)
            part = (late if unweighted else late * weight.mT[..., None]).mT @ early
            sums[f] += (part + part.mT) / 2 if lag else part
            count[f] += weight.sum(0)
    return NormalEquations(sums, count, len(problem.base))


def lagged_rows(
    problem: RegressionProblem, motions: Iterable[FilteredMotion], lag: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Pair each row of a problem with the row `lag` samples before it in the same motion.

    Yields:
        Times `[samples]`, columns `[samples, 2, num_dof, base + terms + 1]` (`[samples, 1, ...]` for a lag of
        zero) and a mask of the pairs that count `[samples, num_dof]`.
    """
    for motion in motions:
        before: list[tuple[Tensor, Tensor]] = []
        for t, X, good in problem.filtered_rows([motion]):
            if lag == 0:
                yield t, X[:, None], good
                continue
            n, before = len(t), [*before, (X, good)]
            X, good = (torch.cat(x) for x in zip(*before, strict=True))
            before = [(X[-lag:], good[-lag:])]
            if len(X) > lag:
                pairs = torch.stack([X[lag:], X[:-lag]], 1)
                yield t[n - len(pairs) :], pairs, good[lag:] & good[:-lag]
