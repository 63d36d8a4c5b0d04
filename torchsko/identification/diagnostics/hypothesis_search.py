"""Search for another zero, sign or unit of joints, with which the nominal robot explains a log.

A log with such an error can be fitted, but the result is wrong. If the nominal robot, which is roughly right,
explains the measured forces badly, this check looks for corrections after which it explains them well: all of
them, or those of one joint where others have other errors. It removes corrections that are not necessary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.diagnostics.force_scale import common_scale
from torchsko.identification.diagnostics.log_states import MappedColumns, States, unexplained_shares
from torchsko.identification.friction import Balancer, Periodic, Spring
from torchsko.identification.logs.calibration import Calibration, single_joints
from torchsko.identification.logs.units import SI_SCALE

SEARCH_STATES = 400
"""Number of states times dofs that the search examines for each set of corrections."""

MIN_UNEXPLAINED = 0.5
"""Share of a force that the nominal robot must leave unexplained before corrections are tested."""

SHARE_RANGE = 0.05, 4.0
"""Range to which unexplained shares are limited: robots are not exact, and reversed forces leave about 4."""

MAX_UNEXPLAINED = 0.25
"""Share that accepted corrections may leave unexplained: of one joint, or the geometric mean over dofs."""

WELL_EXPLAINED = 0.1
"""Geometric mean over dofs of unexplained shares at which the search ends."""

MIN_IMPROVEMENT = 10.0
"""Factor by which each correction must reduce the product of all shares."""

MIN_JOINT_IMPROVEMENT = 8.0
"""Factor by which corrections must reduce the share of one joint where they do not explain all forces."""

MAX_CORRECTIONS = 8
"""Largest number of joints that are corrected."""

BEAM = 6
"""Number of first corrections from which the search continues: the best one alone may be wrong."""

MAX_ZERO_COMBINATIONS = 4000
"""Largest number of combinations of zeros that are tested."""

QUARTER_TURNS = (0.0, 0.5 * math.pi, math.pi, -0.5 * math.pi)
"""Zeros that are tested [rad]: conventions of Denavit and Hartenberg differ by quarter turns."""

WEIGHT_COMPENSATION = (Spring, Balancer, Periodic)
"""Terms that may support the weight of a robot, which the nominal robot does not predict."""


@dataclass(frozen=True)
class Correction:
    """Zero and signs of one joint.

    Attributes:
        zero: logged position at which the robot's joint is at 0 [rad].
        q: sign of the position, or factor from degrees to radians.
        tau: sign of the force.
    """

    zero: float = 0.0
    q: float = 1.0
    tau: float = 1.0

    @property
    def code(self) -> str:
        """Code of the finding."""
        if self == DEGREES:
            return "wrong_unit"
        return "wrong_zero" if self.zero else "wrong_sign"

    def calibration(self, joint: str) -> Calibration:
        """The corrections of a log, whose options a finding advises."""
        signs = {k: -1.0 for k, x in ((f"tau.{joint}", self.tau), (f"q.{joint}", self.q)) if x < 0}
        signs = {joint: -1.0} if len(signs) == 2 else signs
        return Calibration(sign=signs, zero={joint: self.zero} if self.zero else {})

    def description(self, joint: str) -> str:
        """Description of the error that it corrects."""
        columns = " and ".join(x for x, sign in (("q", self.q), ("tau", self.tau)) if sign < 0)
        signs = f"the sign of {columns} of joint {joint!r} is reversed"
        if not self.zero:
            return signs
        offset = f"the zero of joint {joint!r} is off by {np.degrees(self.zero):.0f} degrees"
        return f"{offset} and {signs}" if columns else offset

    def reduced(self) -> Iterator[Correction]:
        """The correction without its zero, or without one sign, if anything is left."""
        for each in (replace(self, zero=0.0), replace(self, q=1.0), replace(self, tau=1.0)):
            if each not in (self, Correction()):
                yield each


DEGREES = Correction(q=SI_SCALE["deg"])
"""Correction of positions in degrees, which limits of the joint do not reveal if it has none."""

Corrections = Mapping[str, Correction]
"""Corrections by joint."""


def inconsistent_log(context: FitContext) -> Iterator[Finding]:
    """No zero and no sign of a joint makes the nominal robot explain the log much better.

    Logs of currents are not checked, because their torque constants were estimated from the nominal robot.
    Logs of robots with terms that may support the weight are not checked either.
    """
    terms = context.problem.terms
    given = (terms[k] for indices in context.given_terms.values() for k in indices)
    if context.constants is not None or any(isinstance(x, WEIGHT_COMPENSATION) for x in given):
        return
    states = States.of(context.lossless, context.motions)
    if len(states.q) < 10 * context.nominal.num_dof:
        return
    scale = common_scale(states)
    logged = states.unexplained(scale)
    if float(logged.nan_to_num(0.0).max()) < MIN_UNEXPLAINED:
        return
    found, left = search(states, scale, logged)
    gained = logged.clamp(*SHARE_RANGE) / left.clamp(*SHARE_RANGE)
    dof = int(gained.nan_to_num(0.0).argmax())
    together = " after all corrections" if len(found) > 1 else ""
    degrees = [x for x, each in found.items() if each == DEGREES]
    errors = {(x,): each for x, each in found.items() if each != DEGREES}
    for joints, each in (errors | ({tuple(degrees): DEGREES} if degrees else {})).items():
        if each == DEGREES:
            description, option = _degrees(context, joints)
        else:
            advised = each.calibration(joints[0])
            description = each.description(joints[0])
            option = f"Type {advised.options()}, or call {advised.code()}."
        yield finding(
            each.code,
            f"It seems that {description}.",
            f"{option} If the log is right, correct the nominal robot, for example its tool.",
            joints=joints,
            reason=f"The nominal robot would then explain {percent_explained(left[dof])} of the force of "
            f"{context.nominal.dof_names[dof]}{together}; it explains {percent_explained(logged[dof])} of "
            "it as logged (without friction).",
        )


def _degrees(context: FitContext, joints: Sequence[str]) -> tuple[str, str]:
    """Description and option of positions in degrees."""
    whole = len(joints) == context.nominal.num_dof
    keys = [""] if whole else [f".{x}" for x in joints]
    options = [f"--unit q{key}=deg" for key in keys]
    if context.log.qd is not None:
        options += [f"--unit qd{key}=deg/s" for key in keys]
    what = "positions" if whole else f"positions of {', '.join(joints)}"
    return f"{what} are in degrees", f"Type {' '.join(options)}."


def search(states: States, scale: float, logged: Tensor) -> tuple[Corrections, Tensor]:
    """Find the corrections that explain a log.

    Args:
        states: of the log.
        scale: measured over nominal forces.
        logged: unexplained shares of the log as it is, `[num_dof]`.

    Returns:
        The corrections, none if they do not explain the log; and the shares that they leave, `[num_dof]`.
    """
    few = Search(states.thinned(max(40, SEARCH_STATES // states.mech.num_dof)), scale)
    whole = Search(states, scale)
    degrees = dict.fromkeys(few.angular(), DEGREES)
    starts: Iterable[Corrections] = few.best([degrees, *few.extensions({})], BEAM)
    if int((logged > MIN_UNEXPLAINED).sum()) > 1:
        # Two or three wrong zeros may each explain nothing alone.
        several = (few.best([*few.zeros(size)], 1) for size in (2, 3))
        starts = itertools.chain(starts, itertools.chain.from_iterable(several))
    found: Corrections = {}
    left, cost = logged, 0.0
    for start in starts:
        if not few.gain(few.unexplained({}), few.unexplained(start)) > 0:
            continue
        each = few.necessary(few.climb(start))
        shares = whole.unexplained(each)
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
    """Search for corrections that explain a log.

    Attributes:
        states: of the log.
        scale: measured over nominal forces.
    """

    states: States
    scale: float

    def extensions(self, found: Corrections) -> Iterator[Corrections]:
        """Corrections with that of one joint added or replaced."""
        for joint in single_joints(self.states.mech):
            zeros = QUARTER_TURNS if joint in self.angular() else (0.0,)
            for zero, tau, q in itertools.product(zeros, (1.0, -1.0), (1.0, -1.0)):
                each = Correction(zero, q, tau)
                if each != found.get(joint, Correction()):
                    yield _with(found, joint, each)
            if joint in self.angular():
                yield _with(found, joint, DEGREES)

    def zeros(self, size: int) -> Iterator[Corrections]:
        """Zeros of `size` joints that are off by quarter turns."""
        angular = self.angular()
        count = math.comb(len(angular), size) * (len(QUARTER_TURNS) - 1) ** size
        if count > MAX_ZERO_COMBINATIONS:
            return
        for joints in itertools.combinations(angular, size):
            for turns in itertools.product(QUARTER_TURNS[1:], repeat=size):
                yield {x: Correction(zero) for x, zero in zip(joints, turns, strict=True)}

    def best(self, tested: Sequence[Corrections], count: int) -> list[Corrections]:
        """The corrections that leave the least, the best first."""
        if not tested:
            return []
        order = _log_mean(self.each(tested)).argsort()[:count].tolist()
        return [tested[k] for k in order]

    def climb(self, start: Corrections) -> Corrections:
        """Add the best correction to the first ones as long as it helps."""
        found, left = start, self.unexplained(start)
        while 0 < len(found) < MAX_CORRECTIONS:
            tested = [*self.extensions(found)]
            shares = self.each(tested)
            best = int(_log_mean(shares).argmin())
            if not self.gain(left, shares[best]) > math.log(MIN_IMPROVEMENT):
                break
            found, left = tested[best], shares[best]
        return found

    def necessary(self, found: Corrections) -> Corrections:
        """Remove corrections, or single signs and zeros, without which the log is explained about as well."""
        kept, left = found, self.unexplained(found)
        while kept:
            reduced = [
                _with(kept, joint, each)
                for joint, x in kept.items()
                for each in (Correction(), *x.reduced())
            ]
            shares = self.each(reduced)
            best = int(_log_mean(shares).argmin())
            if self.gain(shares[best], left) > math.log(MIN_IMPROVEMENT):
                break
            kept, left = reduced[best], shares[best]
        return kept

    def gain(self, before: Tensor, after: Tensor) -> float:
        """Logarithm of the factor by which the product of all shares decreases."""
        return int(self.states.measured.sum()) * float(_log_mean(before) - _log_mean(after))

    def unexplained(self, found: Corrections) -> Tensor:
        """Unexplained shares after corrections, `[num_dof]`."""
        return self.each([found])[0]

    def each(self, tested: Sequence[Corrections]) -> Tensor:
        """Unexplained shares after each of several sets of corrections, `[sets, num_dof]`."""
        mech = self.states.mech
        columns = MappedColumns.of(mech, len(tested))
        for k, found in enumerate(tested):
            for joint, x in found.items():
                at, dof = mech.q_slice(joint).start, mech.dof_slice(joint).start
                columns.position[k, at], columns.rate[k, dof] = x.q, x.q
                columns.force[k, dof], columns.zero[k, at] = x.tau, x.zero
        return unexplained_shares(self.states, columns, self.scale)

    def angular(self) -> list[str]:
        """Joints with one angle."""
        mech = self.states.mech
        kinds = dict(zip(mech.joint_names, mech.joint_types, strict=True))
        return [x for x in single_joints(mech) if kinds[x].coordinate_unit == "rad"]


def _with(found: Corrections, joint: str, each: Correction) -> Corrections:
    """Corrections with that of a joint added, replaced or, if it corrects nothing, removed."""
    rest = {x: y for x, y in found.items() if x != joint}
    return rest if each == Correction() else {**rest, joint: each}


def _log_mean(shares: Tensor) -> Tensor:
    """Logarithm of the geometric mean over dofs."""
    return shares.clamp(*SHARE_RANGE).log().nanmean(-1)


def percent_explained(unexplained: Tensor) -> str:
    """The explained share of a force in percent."""
    return f"{100 * max(0.0, 1 - float(unexplained)):.0f} %"
