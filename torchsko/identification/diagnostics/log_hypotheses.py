"""Hypotheses about errors in a log: units, zeros, signs, order of joints, couplings and gravity.

Each hypothesis is a `Calibration`, so that the option in the advice is the one that was tested.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from torchsko.identification.logs.calibration import Calibration, single_joints
from torchsko.identification.logs.units import SI_SCALE
from torchsko.mechanism.mechanism import Mechanism

MAX_ZERO_COMBINATIONS = 4000
"""Largest number of combinations of zeros that are tested."""

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


def several_zeros(mech: Mechanism, size: int) -> Iterator[Hypothesis]:
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


def composed(parts: Sequence[Calibration]) -> Calibration:
    """One calibration of several changes; later values of a joint replace earlier ones."""
    whole = Calibration()
    for part in parts:
        merged = {x.name: {**getattr(whole, x.name), **getattr(part, x.name)} for x in fields(part)}
        whole = Calibration(**merged)
    return whole


def without(each: Hypothesis, kind: str, key: str) -> Hypothesis | None:
    """A hypothesis without one sign or zero; None if nothing is left.

    Args:
        each: the hypothesis.
        kind: "sign" or "zero".
        key: of the correction.
    """
    left = {x: y for x, y in getattr(each.change, kind).items() if x != key}
    change = replace(each.change, **{kind: left})
    if not change:
        return None
    joints = tuple(x for x in each.joints if _corrects(change, x))
    text = "; ".join(_joint_error(x, *_signs_and_zero(change, x)) for x in joints)
    code = "wrong_zero" if change.zero else "wrong_sign"
    return replace(each, code=code, change=change, description=text, joints=joints)


def _corrects(change: Calibration, joint: str) -> bool:
    """True if a change has a sign or a zero of a joint."""
    return joint in change.zero or any(
        key in change.sign for key in (joint, f"q.{joint}", f"tau.{joint}")
    )


def _signs_and_zero(change: Calibration, joint: str) -> tuple[float, float, float]:
    """Zero, sign of the force and sign of the position of a joint."""
    both = change.sign.get(joint, 1.0)
    tau, q = (change.sign.get(f"{x}.{joint}", both) for x in ("tau", "q"))
    return change.zero.get(joint, 0.0), tau, q


def _changed(
    code: str,
    base: Calibration,
    change: Calibration,
    description: str,
    joints: tuple[str, ...] | list[str],
) -> Hypothesis:
    """A change on top of a calibration; signs and zeros of a joint replace those of the base."""
    whole = composed([base, change])
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


def gravity_changes(mech: Mechanism) -> Iterator[Hypothesis]:
    """Other directions of gravity, and forces without the robot's weight."""
    gravity, none = mech.gravity, Calibration()
    yield Hypothesis(
        "wrong_gravity",
        none,
        none,
        "the forces do not include the robot's weight",
        mech=mech.replace(gravity=0 * gravity),
        advice="If drives compensate gravity, add it: tau + ts.gravity_force(mech, q). If springs do, name "
        'them, with arms in m: --terms JOINT=Viscous,SmoothCoulomb,Offset,"Balancer(0.1,0.6)", or '
        "joint_terms={...: [..., ts.identification.friction.Balancer(0.1, 0.6)]}. Without gravity, type "
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
