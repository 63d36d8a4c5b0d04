"""Hypotheses about errors in a log: units, zeros, signs, order of joints, couplings and gravity.

A log with such an error can be fitted, but the result is wrong. If the nominal robot, which is roughly right,
explains the measured forces badly, this check looks for calibrations of the log after which it explains them
well. Each hypothesis is a `Calibration`, so that the option in the advice is the one that was tested.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.diagnostics.force_scale import common_scale
from torchsko.identification.diagnostics.log_states import States, unexplained_shares
from torchsko.identification.friction import Balancer, Periodic, Spring
from torchsko.identification.logs.calibration import Calibration, single_joints
from torchsko.identification.logs.units import SI_SCALE
from torchsko.mechanism.mechanism import Mechanism

SEARCH_STATES = 400
"""Number of states times dofs that the search examines for each hypothesis."""

MIN_UNEXPLAINED = 0.5
"""Share of a force that the nominal robot must leave unexplained before hypotheses are tested."""

SHARE_RANGE = 0.05, 4.0
"""Range to which unexplained shares are limited: robots are not exact, and reversed forces leave about 4."""

MAX_UNEXPLAINED = 0.25
"""Geometric mean over dofs of the shares that an accepted hypothesis may leave unexplained."""

MIN_IMPROVEMENT = 10.0
"""Factor by which each change must reduce the product of all shares."""

MAX_ZERO_COMBINATIONS = 4000
"""Largest number of combinations of zeros that are tested."""

MAX_CHANGES = 8
"""Largest number of changes of one log."""

GRAVITY_COMPENSATION = (Spring, Balancer, Periodic)
"""Terms that may support the weight of a robot."""

QUARTER_TURNS = (0.0, 0.5 * math.pi, math.pi, -0.5 * math.pi)
"""Zeros that are tested [rad]: conventions of Denavit and Hartenberg differ by quarter turns."""


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One change of a log or of the robot's mounting.

    Attributes:
        code: of its finding.
        calibration: of the log, with all changes so far.
        change: the calibration of this change alone.
        description: of the error in the log.
        joints: that it is about.
        mech: the robot, if it is changed and not the log.
        advice: replaces the option of the calibration.
    """

    code: str
    calibration: Calibration
    change: Calibration
    description: str
    joints: tuple[str, ...] = ()
    mech: Mechanism | None = None
    advice: str = ""

    def option(self) -> str:
        """Advice for this change."""
        return self.advice or f"Type {self.change.options()}, or call {self.change.code()}."


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
    """Find the changes that explain a log, one after the other, each the best one.

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
    count = int(states.measured.sum())
    few = Search(mech, states.thinned(max(40, SEARCH_STATES // mech.num_dof)), scale, velocities)
    singles = [*changes(mech, Calibration(), velocities)]
    singles += [] if compensated else _gravity_changes(mech)
    groups: list[Sequence[Hypothesis]] = [singles]
    if float(_log_mean(logged)) > math.log(MAX_UNEXPLAINED):
        groups += [[*_several_zeros(mech, size)] for size in (2, 3)]
    for first in groups:
        found = few.climb(first) if first else []
        if not found:
            continue
        last = found[-1]
        robot = next((x.mech for x in found if x.mech is not None), mech)
        final = unexplained_shares(states, [last.calibration.affine_map(mech)], scale, robot)[0]
        improvement = count * float(_log_mean(logged) - _log_mean(final))
        explained = float(_log_mean(final)) < math.log(MAX_UNEXPLAINED)
        if explained and improvement > len(found) * math.log(MIN_IMPROVEMENT):
            return found, final
    return [], logged


@dataclass(frozen=True, eq=False)
class Search:
    """Search for changes that explain a log.

    Attributes:
        mech: the nominal robot.
        states: few states of the log.
        scale: measured over nominal forces.
        velocities: whether the log has velocities.
    """

    mech: Mechanism
    states: States
    scale: float
    velocities: bool

    def climb(self, first: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Add the best change as long as it helps.

        Args:
            first: the changes that are tested first.
        """
        found: list[Hypothesis] = []
        robot, calibration, tested = self.mech, Calibration(), first
        left = self.shares([calibration], robot)[0]
        count = int(self.states.measured.sum())
        for _ in range(MAX_CHANGES):
            groups = itertools.groupby(tested, key=lambda x: id(x.mech))
            shares = torch.cat(
                [
                    self.shares([x.calibration for x in group], group[0].mech or robot)
                    for group in ([*each] for _, each in groups)
                ]
            )
            score = _log_mean(shares)
            best = int(score.argmin())
            if not count * float(_log_mean(left) - score[best]) > math.log(MIN_IMPROVEMENT):
                break
            left, calibration = shares[best], tested[best].calibration
            robot = tested[best].mech or robot
            found.append(tested[best])
            tested = [*changes(self.mech, calibration, self.velocities)]
        return found

    def shares(self, calibrations: Sequence[Calibration], robot: Mechanism) -> Tensor:
        """Unexplained shares of several calibrations, `[calibrations, num_dof]`."""
        maps = [x.affine_map(self.mech) for x in calibrations]
        return unexplained_shares(self.states, maps, self.scale, robot)


def _log_mean(shares: Tensor) -> Tensor:
    """Logarithm of the geometric mean over dofs."""
    return shares.clamp(*SHARE_RANGE).log().nanmean(-1)


def percent_explained(unexplained: Tensor) -> str:
    """The explained share of a force in percent."""
    return f"{100 * max(0.0, 1 - float(unexplained)):.0f} %"


def changes(mech: Mechanism, base: Calibration, velocities: bool) -> Iterator[Hypothesis]:
    """All single changes of a calibration, the simplest first.

    Args:
        mech: the robot.
        base: the calibration that is changed.
        velocities: whether the log has velocities.
    """
    names = single_joints(mech)
    kinds = dict(zip(mech.joint_names, mech.joint_types, strict=True))
    angular = [x for x in names if kinds[x].coordinate_unit == "rad"]
    for name in names:
        zeros = QUARTER_TURNS if name in angular else (0.0,)
        for zero, tau, q in itertools.product(zeros, (1.0, -1.0), (1.0, -1.0)):
            signs = {k: x for k, x in ((f"tau.{name}", tau), (f"q.{name}", q)) if x < 0}
            signs = {name: -1.0} if len(signs) == 2 else signs
            change = Calibration(sign=signs, zero={name: zero} if zero else {})
            if change:
                code = "wrong_zero" if zero else "wrong_sign"
                yield _changed(code, base, change, _joint_error(name, zero, tau, q), (name,))
    for first, second in itertools.combinations(names, 2):
        order = _exchanged(names, first, second)
        for which in (("tau",), ("q",), ("q", "tau")):
            yield _reordered(base, names, order, which, (first, second))
    for order in (tuple(sorted(names)), names[::-1]):
        if order != names and len(names) > 2:
            yield _reordered(base, names, order, ("q", "tau"), names)
    yield from _couplings(base, angular, names)
    yield from _degrees(base, angular, names, velocities=velocities)


def _degrees(
    base: Calibration, angular: list[str], names: tuple[str, ...], *, velocities: bool
) -> Iterator[Hypothesis]:
    """Positions of all angular joints, or of one of them, in degrees, or in radians instead of degrees."""
    whole = ["q"] if len(angular) == len(names) else [f"q.{x}" for x in angular]
    groups = [(whole, angular, "positions")] if angular else []
    if len(angular) > 1:
        groups += [([f"q.{x}"], [x], f"positions of joint {x!r}") for x in angular]
    for keys, joints, what in groups:
        change = Calibration(ratio=dict.fromkeys(keys, 1 / SI_SCALE["deg"]))
        options = [f"--unit {key}=deg" for key in keys]
        options += [f"--unit qd{key[1:]}=deg/s" for key in keys if velocities]
        found = _changed("wrong_unit", base, change, f"{what} are in degrees", joints)
        yield replace(found, advice=f"Type {' '.join(options)}.")
        change = Calibration(ratio=dict.fromkeys(keys, SI_SCALE["deg"]))
        text = f"{what} were in radians, but were converted from degrees"
        found = _changed("wrong_unit", base, change, text, joints)
        yield replace(found, advice=f"Remove the units of q and qd, or type {change.options()}.")


def _several_zeros(mech: Mechanism, size: int) -> Iterator[Hypothesis]:
    """Zeros of `size` joints that are off by quarter turns; one alone may explain nothing."""
    kinds = dict(zip(mech.joint_names, mech.joint_types, strict=True))
    angular = [x for x in single_joints(mech) if kinds[x].coordinate_unit == "rad"]
    choices = math.comb(len(angular), size) * (len(QUARTER_TURNS) - 1) ** size
    if choices > MAX_ZERO_COMBINATIONS:
        return
    for joints in itertools.combinations(angular, size):
        for zeros in itertools.product(QUARTER_TURNS[1:], repeat=size):
            zero = dict(zip(joints, zeros, strict=True))
            text = " and ".join(f"{x!r} by {np.degrees(y):.0f}" for x, y in zero.items())
            yield _changed(
                "wrong_zero",
                Calibration(),
                Calibration(zero=zero),
                f"zeros are off by quarter turns: of joint {text} degrees",
                joints,
            )


def _changed(
    code: str,
    base: Calibration,
    change: Calibration,
    description: str,
    joints: tuple[str, ...] | list[str],
) -> Hypothesis:
    """A change on top of a calibration; signs and zeros of a joint replace those of the base."""
    whole = replace(
        base,
        order={**base.order, **change.order},
        couple={**base.couple, **change.couple},
        ratio={**base.ratio, **change.ratio},
        sign={**base.sign, **change.sign},
        zero={**base.zero, **change.zero},
    )
    return Hypothesis(code, whole, change, description, tuple(joints))


def _joint_error(name: str, zero: float, tau: float, q: float) -> str:
    """Description of reversed signs and a zero of one joint."""
    reversed_names = " and ".join(x for x, sign in (("q", q), ("tau", tau)) if sign < 0)
    signs = f"the sign of {reversed_names} of joint {name!r} is reversed" if reversed_names else ""
    if not zero:
        return signs
    offset = f"the zero of joint {name!r} is off by {np.degrees(zero):.0f} degrees"
    return f"{offset} and {signs}" if signs else offset


def _exchanged(names: tuple[str, ...], first: str, second: str) -> tuple[str, ...]:
    other = {first: second, second: first}
    return tuple(other.get(x, x) for x in names)


def _reordered(
    base: Calibration,
    names: tuple[str, ...],
    order: tuple[str, ...],
    quantities: tuple[str, ...],
    joints: tuple[str, ...],
) -> Hypothesis:
    """A permutation of the joints of a calibration."""
    moved = dict(zip(names, order, strict=True))
    whole = {k: tuple(moved[x] for x in base.order.get(k, names)) for k in quantities}
    change = Calibration(order=whole)
    what = " and ".join(quantities)
    text = (
        f"{what} of joints {joints[0]!r} and {joints[1]!r} are exchanged"
        if len(joints) == 2
        else f"the columns of {what} are in the order {', '.join(order)}"
    )
    return _changed("wrong_order", base, change, text, joints)


def _couplings(
    base: Calibration, angular: list[str], names: tuple[str, ...]
) -> Iterator[Hypothesis]:
    """Couplings of neighbouring joints: drives at the base of a joint, and differential gears."""
    for first, second in itertools.pairwise(names):
        if {first, second} - set(angular) or base.couple:
            continue
        rows = [
            (
                {second: {second: 1.0, first: sign}},
                f"{second!r} was logged relative to another link",
            )
            for sign in (-1.0, 1.0)
        ]
        half = {first: {first: 0.5, second: 0.5}, second: {first: 0.5, second: -0.5}}
        rows.append(
            (half, f"{first!r} and {second!r} have a differential gear whose drives were logged")
        )
        for couple, text in rows:
            for prefix, what in (("", ""), ("q.", "positions: ")):
                change = Calibration(couple={f"{prefix}{k}": x for k, x in couple.items()})
                yield _changed("wrong_coupling", base, change, what + text, (first, second))


def _gravity_changes(mech: Mechanism) -> Iterator[Hypothesis]:
    """Other directions of gravity, and forces without the robot's weight."""
    gravity, none = mech.gravity, Calibration()
    yield Hypothesis(
        "wrong_gravity",
        none,
        none,
        "the forces do not include the robot's weight",
        mech=mech.replace(gravity=0 * gravity),
        advice="If drives compensate gravity, add it: tau + ts.gravity_force(mech, q). If springs do, name "
        "them: joint_terms=[..., ts.identification.friction.Balancer(near, far)]. Without gravity, type "
        "--gravity=0,0,0, or load the robot with gravity=(0, 0, 0).",
    )
    for axis, sign in itertools.product(range(3), (1.0, -1.0)):
        direction = torch.zeros_like(gravity)
        direction[axis] = sign * float(gravity.norm())
        values = [round(x, 2) for x in direction.tolist()]
        yield Hypothesis(
            "wrong_gravity",
            none,
            none,
            "gravity acts in another direction",
            mech=mech.replace(gravity=direction),
            advice="If the robot is mounted on a wall or a ceiling, type --gravity="
            f"{','.join(f'{x:g}' for x in values)}, or load it with gravity={values}.",
        )
