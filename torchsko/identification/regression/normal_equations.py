"""Normal equations of a log: all that a fit reads of it, in memory that does not grow with its length."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchsko.identification.friction import Term, TermInput
from torchsko.identification.regression.base_columns import BaseColumns
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
"""States whose columns are in memory at once, at least."""

MAX_CHUNK_NUMBERS = 6_000_000
"""Numbers in memory at once where states have few: the fewer parts, the less that they overlap by."""

EQUATIONS_PER_PRODUCT = 512
"""Filtered equations whose products are taken at once: they stay in the cache."""


@dataclass(frozen=True, eq=False)
class RegressionProblem:
    """What explains a joint's force: columns for each base parameter, then one for each term.

    Attributes:
        mech: the nominal robot; its damping and dry friction are left to the terms.
        terms: of every joint, to choose from.
        regressor: of positions, velocities, accelerations: entries of `torque_regressor` that lead.
        base: combinations of inertial numbers that forces depend on.
        leading: which entries these are.
        rotors: dofs whose armature is left to a term, too.
    """

    mech: Mechanism
    terms: tuple[Term, ...]
    regressor: Regressor
    base: BaseParameters
    base_columns: BaseColumns
    rotor_dofs: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        mech: Mechanism,
        terms: Sequence[Term],
        regressor: Regressor | None = None,
        named: Mapping[int, Sequence[int]] | None = None,
    ) -> RegressionProblem:
        """The problem of a robot, its losses set aside, and the rotors of joints that name theirs.

        Args:
            mech: the robot.
            terms: of every joint, to choose from.
            regressor: instead of `torque_regressor`.
            named: places of terms that were asked for, of each dof.
        """
        rotors = tuple(
            j for j, some in (named or {}).items() if any(terms[k].armature for k in some)
        )
        bare = without_armature(without_losses(mech), rotors)
        base = base_parameters(bare)
        leading, whole = BaseColumns.of(bare, base), regressor or partial(torque_regressor, bare)
        return cls(
            bare, tuple(terms), lambda *at: leading.select(whole(*at)), base, leading, rotors
        )

    def columns(self, motion: FilteredMotion) -> tuple[Tensor, Tensor, Tensor]:
        """What explains forces, and last what is left of them after springs and armature; not yet filtered.

        Returns:
            Entries that lead the inertial ones, `[samples, leading]`; the others, in the order of `apart`:
            those linear in the state, `[samples, linear + 1, num_dof]`, and `[samples, bent, num_dof]`.
        """
        q, qd, qdd = motion.q, motion.qd, motion.qdd
        inertial = self.regressor(q, qd, qdd)
        rigid = inertial @ self.base_columns.forces(inertial_parameters(self.mech).flatten())
        known = passive_and_armature_force(self.mech, q, qd, qdd)
        load = rigid + known
        series = TermInput(
            dof_positions(self.mech, q),
            qd,
            qdd,
            load,
            motion.force_rate,
            step=1 / motion.settings.state_rate,
        )
        parts = [*(term.basis(series) for term in self.terms), motion.tau - known]
        linear, bent = (
            torch.stack([parts[k] for k in some], -2)
            if some
            else q.new_zeros(len(q), 0, qd.shape[-1])
            for some in self.term_order
        )
        return inertial, linear, bent

    @property
    def term_order(self) -> tuple[list[int], list[int]]:
        """Places of the terms that are linear in the state, and of what they explain, and of the others."""
        linear = [k for k, term in enumerate(self.terms) if term.linear]
        bent = [k for k, term in enumerate(self.terms) if not term.linear]
        return [*linear, len(self.terms)], bent

    def filtered_rows(
        self, motions: Iterable[FilteredMotion]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Filtered equations of each motion: times, columns, and which count.

        Yields:
            `[samples]`, `[samples, num_dof, base + terms + 1]`, `[samples, num_dof]`.
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
                # Filtered apart: put together before, they would be copied at the rate of states.
                inertial, linear, bent = (
                    x[lead:] for x in self.columns(slice_motion(motion, part))
                )
                ends = twice.half_width - once.half_width
                inertial, linear = (once(x[ends : len(x) - ends]) for x in (inertial, linear))
                others = torch.cat([linear, twice(bent)], -2)
                good = twice(motion.valid[part][lead:]) > 0.98
                t = motion.t[part][lead:][twice.half_width :: every][: b - a]
                each = (x.split(EQUATIONS_PER_PRODUCT) for x in (t, inertial, others, good))
                for at, entries, more, fine in zip(*each, strict=True):
                    yield at, self.base_columns.columns(entries, order, more), fine


WARM_UP_STATES = 512
"""States before a part that what remembers is given, to forget where it began."""


def slice_motion(motion: FilteredMotion, rows: slice) -> FilteredMotion:
    """Some samples of a motion."""
    names = ("t", "q", "qd", "qdd", "tau", "force_rate", "valid")
    return replace(motion, **{name: getattr(motion, name)[rows] for name in names})


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """Sums of products of columns, apart for each joint and each fold of time.

    Attributes:
        sums: `[folds, num_dof, columns, columns]`.
        count: equations of each, `[folds, num_dof]`.
        base: how many of the columns are base parameters'; then come the terms', last the force.
    """

    sums: Tensor
    count: Tensor
    base: int

    def without_fold(self, fold: int) -> NormalEquations:
        """All folds but one, as one."""
        keep = [k for k in range(len(self.sums)) if k != fold]
        return self.of_folds(keep)

    def of_folds(self, folds: Sequence[int]) -> NormalEquations:
        """Some folds, as one."""
        rows = torch.tensor(list(folds), device=self.sums.device)
        return NormalEquations(
            self.sums[rows].sum(0, keepdim=True),
            self.count[rows].sum(0, keepdim=True),
            self.base,
        )

    def added(self, other: NormalEquations) -> NormalEquations:
        """The sums over these and other data."""
        return NormalEquations(self.sums + other.sums, self.count + other.count, self.base)

    @property
    def pooled(self) -> NormalEquations:
        """All folds as one."""
        return self.of_folds(range(len(self.sums)))


@dataclass(frozen=True)
class TimeFolds:
    """Equal stretches of a log's time, each of which cross-validation leaves out once.

    Attributes:
        first: time [s].
        last: time [s].
        count: of stretches.
    """

    first: float
    last: float
    count: int

    def of(self, t: Tensor) -> Tensor:
        """In which one times lie."""
        part = (t - self.first) / max(self.last - self.first, 1e-9)
        return (part * self.count).floor().clamp(0, self.count - 1).long()


WeightFunction = Callable[[Tensor], Tensor]
"""Of columns `[samples, num_dof, base + terms + 1]` how much each sample counts, `[samples, num_dof]`."""


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
        problem: what the columns are.
        motions: filtered states and forces.
        folds: stretches of time.
        lag: products of columns with those so many samples before and after, of which the mean is taken:
            noise that does not last so long is in none.
        weigh: how much samples count; alike when left out.
    """
    dofs, size = problem.mech.num_dof, len(problem.base) + len(problem.terms) + 1
    like = {"dtype": problem.mech.dtype, "device": problem.mech.device}
    sums = torch.zeros(folds.count, dofs, size, size, **like)
    count = torch.zeros(folds.count, dofs, **like)
    for t, X, good in lagged_rows(problem, motions, lag):
        w = good.to(X) if weigh is None else good * weigh(X[:, 0])
        alike = weigh is None and bool(good.all())
        # In order of time a fold is a run.
        of, lengths = folds.of(t).unique_consecutive(return_counts=True)
        runs = zip(of.tolist(), X.split(lengths.tolist()), w.split(lengths.tolist()), strict=True)
        for f, x, weight in runs:
            late, early = x[:, 0].transpose(0, 1), x[:, -1].transpose(0, 1)
            part = (late if alike else late * weight.mT[..., None]).mT @ early
            sums[f] += (part + part.mT) / 2 if lag else part
            count[f] += weight.sum(0)
    return NormalEquations(sums, count, len(problem.base))


def lagged_rows(
    problem: RegressionProblem, motions: Iterable[FilteredMotion], lag: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows of a problem, each beside the one so many samples before it in the same motion.

    Yields:
        Times `[samples]`, columns `[samples, 2, num_dof, base + terms + 1]` (with no lag,
        `[samples, 1, ...]`), and which count, `[samples, num_dof]`.
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
                both = torch.stack([X[lag:], X[:-lag]], 1)
                yield t[n - len(both) :], both, good[lag:] & good[:-lag]
