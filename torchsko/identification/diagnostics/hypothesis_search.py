"""Search for errors in a log: changes after which the nominal robot explains the measured forces.

A log with such an error can be fitted, but the result is wrong. If the nominal robot, which is roughly right,
explains the measured forces badly, this check looks for calibrations of the log after which it explains them
well: all of them, or those of one joint where others have other errors. It removes changes that are not
necessary for this.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.diagnostics.force_scale import common_scale
from torchsko.identification.diagnostics.log_hypotheses import (
    Hypothesis,
    changes,
    composed,
    gravity_changes,
    several_zeros,
    without,
)
from torchsko.identification.diagnostics.log_states import States, unexplained_shares
from torchsko.identification.friction import Balancer, Periodic, Spring
from torchsko.identification.logs.calibration import Calibration
from torchsko.mechanism.mechanism import Mechanism

SEARCH_STATES = 400
"""Number of states times dofs that the search examines for each hypothesis."""

MIN_UNEXPLAINED = 0.5
"""Share of a force that the nominal robot must leave unexplained before hypotheses are tested."""

SHARE_RANGE = 0.05, 4.0
"""Range to which unexplained shares are limited: robots are not exact, and reversed forces leave about 4."""

MAX_UNEXPLAINED = 0.25
"""Share that an accepted change may leave unexplained: of one joint, or the geometric mean over dofs."""

WELL_EXPLAINED = 0.1
"""Geometric mean over dofs of unexplained shares at which the search ends."""

MIN_IMPROVEMENT = 10.0
"""Factor by which each change must reduce the product of all shares."""

MIN_JOINT_IMPROVEMENT = 8.0
"""Factor by which changes must reduce the share of one joint where they do not explain all forces."""

MAX_CHANGES = 8
"""Largest number of changes of one log."""

BEAM = 6
"""Number of first changes from which the search continues: the best one alone may be wrong."""

GRAVITY_COMPENSATION = (Spring, Balancer, Periodic)
"""Terms that may support the weight of a robot."""


def inconsistent_log(context: FitContext) -> Iterator[Finding]:
    """No calibration of the log makes the nominal robot explain it much better.

    Logs of currents are not checked: their torque constants were estimated from the nominal robot.
    """
    if context.constants is not None:
        return
    states = States.of(context.lossless, context.motions)
    if len(states.q) < 10 * context.nominal.num_dof:
        return
    scale = common_scale(states)
    logged = states.unexplained(scale)
    if float(logged.nan_to_num(0.0).max()) < MIN_UNEXPLAINED:
        return
    terms = context.problem.terms
    compensated = any(
        isinstance(terms[k], GRAVITY_COMPENSATION)
        for indices in context.given_terms.values()
        for k in indices
    )
    found, left = search(
        states, scale, logged, compensated=compensated, velocities=context.log.qd is not None
    )
    gained = logged.clamp(*SHARE_RANGE) / left.clamp(*SHARE_RANGE)
    dof = int(gained.nan_to_num(0.0).argmax())
    together = " after all changes" if len(found) > 1 else ""
    for each in found:
        yield finding(
            each.code,
            f"It seems that {each.description}.",
            f"{each.option()} If the log is right, correct the nominal robot, for example its tool.",
            joints=each.joints,
            reason=f"The nominal robot would then explain {percent_explained(left[dof])} of the force of "
            f"{context.nominal.dof_names[dof]}{together}; it explains {percent_explained(logged[dof])} of "
            "it as logged (without friction).",
        )


def search(
    states: States, scale: float, logged: Tensor, *, compensated: bool, velocities: bool
) -> tuple[list[Hypothesis], Tensor]:
    """Find the changes that explain a log.

    Args:
        states: of the log.
        scale: measured over nominal forces.
        logged: unexplained shares of the log as it is, `[num_dof]`.
        compensated: whether terms support the weight.
        velocities: whether the log has velocities.

    Returns:
        The changes, none if they do not explain the log; and the shares that they leave, `[num_dof]`.
    """
    mech = states.mech
    few = Search(mech, states.thinned(max(40, SEARCH_STATES // mech.num_dof)), scale, velocities)
    whole = Search(mech, states, scale, velocities)
    singles = [*changes(mech, Calibration(), velocities)]
    singles += [] if compensated else gravity_changes(mech)
    starts: Iterable[list[Hypothesis]] = ([x] for x in few.best(singles, BEAM))
    if int((logged > MIN_UNEXPLAINED).sum()) > 1:
        pairs = (few.best([*several_zeros(mech, size)], 1) for size in (2, 3))
        starts = itertools.chain(starts, pairs)
    found: list[Hypothesis] = []
    left, cost = logged, 0.0
    for start in starts:
        if not few.gain(few.left([]), few.left(start)) > 0:
            continue
        each = few.necessary(few.climb(start))
        shares = whole.left(each)
        gain = whole.gain(logged, shares) - len(each) * math.log(MIN_IMPROVEMENT)
        if gain > cost and _is_explained(logged, shares):
            found, left, cost = each, shares, gain
        if found and float(_log_mean(left)) < math.log(WELL_EXPLAINED):
            break
    return found, left


def _is_explained(logged: Tensor, left: Tensor) -> bool:
    """True if all forces are explained, or that of a joint, while no explained force became unexplained."""
    if float(_log_mean(left)) < math.log(MAX_UNEXPLAINED):
        return True
    before, after = (x.clamp(*SHARE_RANGE) for x in (logged, left))
    better = (after < MAX_UNEXPLAINED) & (before > MIN_JOINT_IMPROVEMENT * after)
    worse = (after > MIN_UNEXPLAINED) & (before < MAX_UNEXPLAINED)
    return bool(better.any() and not worse.any())


@dataclass(frozen=True, eq=False)
class Search:
    """Search for changes that explain a log.

    Attributes:
        mech: the nominal robot.
        states: of the log.
        scale: measured over nominal forces.
        velocities: whether the log has velocities.
    """

    mech: Mechanism
    states: States
    scale: float
    velocities: bool

    def best(self, tested: Sequence[Hypothesis], count: int) -> list[Hypothesis]:
        """The first changes that leave the least, the best first."""
        if not tested:
            return []
        order = _log_mean(self.each(tested)).argsort()[:count].tolist()
        return [tested[k] for k in order]

    def climb(self, start: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Add the best change to the first ones as long as it helps."""
        found = list(start)
        while 0 < len(found) < MAX_CHANGES:
            base = composed([x.change for x in found])
            tested = [*changes(self.mech, base, self.velocities)]
            shares = self.each(tested, self._robot(found))
            best = int(_log_mean(shares).argmin())
            if not self.gain(self.left(found), shares[best]) > math.log(MIN_IMPROVEMENT):
                break
            found.append(tested[best])
        return found

    def necessary(self, found: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Remove changes, or single signs and zeros, without which the log is explained about as well."""
        kept = list(found)
        while kept:
            reduced = [*_reductions(kept)]
            shares = torch.stack([self.left(x) for x in reduced])
            best = int(_log_mean(shares).argmin())
            if self.gain(shares[best], self.left(kept)) > math.log(MIN_IMPROVEMENT):
                break
            kept = reduced[best]
        return kept

    def gain(self, before: Tensor, after: Tensor) -> float:
        """Logarithm of the factor by which the product of all shares decreases."""
        return int(self.states.measured.sum()) * float(_log_mean(before) - _log_mean(after))

    def left(self, found: Sequence[Hypothesis]) -> Tensor:
        """Unexplained shares after changes, `[num_dof]`."""
        whole = composed([x.change for x in found])
        return self._shares([whole], self._robot(found))[0]

    def each(self, tested: Sequence[Hypothesis], robot: Mechanism | None = None) -> Tensor:
        """Unexplained shares after each of several changes, `[changes, num_dof]`."""
        groups = itertools.groupby(tested, key=lambda x: id(x.mech))
        parts = ([*group] for _, group in groups)
        return torch.cat(
            [
                self._shares([x.calibration for x in part], part[0].mech or robot or self.mech)
                for part in parts
            ]
        )

    def _robot(self, found: Sequence[Hypothesis]) -> Mechanism:
        """The robot after changes of its mounting."""
        return next((x.mech for x in reversed(found) if x.mech is not None), self.mech)

    def _shares(self, calibrations: Sequence[Calibration], robot: Mechanism) -> Tensor:
        maps = [x.affine_map(self.mech) for x in calibrations]
        return unexplained_shares(self.states, maps, self.scale, robot)


def _reductions(found: Sequence[Hypothesis]) -> Iterator[list[Hypothesis]]:
    """Changes without one of them, or without one sign or zero of one of them."""
    for k, each in enumerate(found):
        rest = [*found[:k], *found[k + 1 :]]
        yield rest
        for kind in ("sign", "zero"):
            for key in getattr(each.change, kind):
                if reduced := without(each, kind, key):
                    yield [*found[:k], reduced, *found[k + 1 :]]


def _log_mean(shares: Tensor) -> Tensor:
    """Logarithm of the geometric mean over dofs."""
    return shares.clamp(*SHARE_RANGE).log().nanmean(-1)


def percent_explained(unexplained: Tensor) -> str:
    """The explained share of a force in percent."""
    return f"{100 * max(0.0, 1 - float(unexplained)):.0f} %"
