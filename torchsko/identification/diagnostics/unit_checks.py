"""Checks of the units and signs of a raw log against the limits of the robot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from torchsko.errors import FitError
from torchsko.identification.diagnostics.context import RawLog
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.logs.log import Log
from torchsko.identification.logs.units import CURRENT_UNITS, LINEAR_UNITS, QUANTITY_UNITS, SI_SCALE
from torchsko.identification.signals.filter_settings import MAX_SPECTRUM_SAMPLES, find_bursts
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.mechanism import Mechanism

MIN_RATE, MAX_RATE = 5.0, 3e4
"""Plausible sampling rates [Hz]. Forces of robots are not measured outside of this range."""

TYPICAL_RATE = 500.0
"""Typical sampling rate [Hz]; advice names the time unit that brings the rate nearest to it."""

MAX_RANGE_RATIO = 4.0
"""Largest plausible ratio of a joint's motion to the range of its limits."""

MIN_RANGE_RATIO = 0.02
"""Smallest ratio of a joint's motion to the range of its limits at which the joint moves."""

MAX_FORCE_RATIO = 5.0
"""Largest plausible ratio of the median force to the effort limit."""

TYPICAL_FORCE_RATIO = 0.2
"""Typical ratio of the median force to the effort limit; advice names the unit that is nearest to it."""


def check_declared_units(mech: Mechanism, log: Log) -> None:
    """Check that each joint can have the units that were declared for it.

    Raises:
        FitError: names the joint, and the joints that can have the unit.
    """
    kinds = dict(zip(mech.joint_names, mech.joint_types, strict=True))
    for name, unit in log.units.items():
        by_joint = dict.fromkeys(kinds, unit) if isinstance(unit, str) else unit
        for joint, declared in by_joint.items():
            if joint in kinds and not _can_have(kinds[joint], name, declared):
                valid = {
                    x: u if _can_have(kinds[x], name, u) else si_unit(kinds[x], name)
                    for x, u in by_joint.items()
                    if x in kinds
                }
                raise FitError(
                    f"{log.name}: the declared unit of {name} is {declared}, but joint {joint!r} is "
                    f"{kinds[joint].name}.",
                    "Angular units belong to revolute joints, units of length to prismatic joints.",
                    f"Declare units by joint: {declaration(name, valid)}.",
                )


def declaration(name: str, units: Mapping[str, str]) -> str:
    """Code and options that declare units of a quantity by joint."""
    changed = {joint: unit for joint, unit in units.items() if SI_SCALE[unit] != 1}
    common = max(dict.fromkeys(changed.values()), key=list(changed.values()).count, default="")
    whole = 2 * list(units.values()).count(common) > len(units)
    if all(unit == common for unit in units.values()):
        return f'units={{"{name}": "{common}"}} or --unit {name}={common}'
    options = [f"--unit {name}={common}"] if whole else []
    single = units if whole else changed
    options += [f"--unit {name}.{x}={u}" for x, u in single.items() if not whole or u != common]
    return f"units={{{name!r}: {changed}}} or {' '.join(options)}"


def si_unit(kind: JointType, name: str) -> str:
    """SI unit of a quantity of a type of joint."""
    if name == "tau":
        return "N" if kind.coordinate_unit == "m" else "Nm"
    unit = kind.coordinate_unit or "rad"
    return unit if name == "q" else f"{unit}/s"


def _can_have(kind: JointType, name: str, unit: str) -> bool:
    """True if a type of joint can have a unit. Types with angles and lengths have SI units only."""
    if SI_SCALE[unit] == 1 or name == "t" or unit in CURRENT_UNITS:
        return True
    own = kind.coordinate_unit if name == "q" else kind.rate_unit
    return own == ("m" if unit in LINEAR_UNITS else "rad")


def nearest_unit(name: str, ratio: float, mech: Mechanism, joint: str) -> tuple[str, float] | None:
    """Unit other than SI that is nearest to a ratio of numbers, and the factor that it leaves unexplained.

    Args:
        name: "t", "q", "qd" or "tau", without currents.
        ratio: of the logged to the expected numbers.
        mech: the robot.
        joint: name of the joint, which must be able to have the unit.
    """
    kind = mech.joint_types[mech.joint_names.index(joint)]
    left = {
        unit: math.exp(abs(math.log(abs(ratio) * SI_SCALE[unit])))
        for unit in QUANTITY_UNITS[name]
        if SI_SCALE[unit] != 1 and unit not in CURRENT_UNITS and _can_have(kind, name, unit)
    }
    best = min(left, key=lambda x: left[x], default=None)
    return None if best is None else (best, left[best])


def check_finite_columns(raw: RawLog) -> None:
    """Check that each column of positions and velocities has finite numbers. Forces may be missing.

    Raises:
        FitError: names the column and the joint.
    """
    mech = raw.mech
    for name in mech.joint_names:
        columns = {"q": raw.q[..., mech.q_slice(name)]}
        if raw.qd is not None:
            columns["qd"] = raw.qd[..., mech.dof_slice(name)]
        for column, x in columns.items():
            if np.isfinite(x).any((0, 1)).all():
                continue
            other = {
                "q": f"lock the joint: --lock {name}=0 or mech.lock({{{name!r}: 0}}), with its position.",
                "qd": "leave out the velocities of all joints.",
            }[column]
            raise FitError(
                f"{raw.log.name}: {column} of joint {name!r} has no finite number.",
                "The sensor was off, or the column has text.",
                f'Name the right columns, columns={{"{column}": [...]}}, or {other}',
            )


def bursts(raw: RawLog) -> Iterator[Finding]:
    """Samples do not come in bursts, as those with receive times."""
    found = find_bursts(np.asarray(raw.log.t[:MAX_SPECTRUM_SAMPLES], np.float64))
    if found is not None:
        count, period = found
        yield finding(
            "bursts",
            f"Samples come in bursts of about {count:.0f}, every {period:.3g} s.",
            "Type --even-times, or call log.with_even_times(); or log the times of the measurements.",
            reason="These are times at which samples were received, not measured.",
        )


def sample_rate(raw: RawLog) -> Iterator[Finding]:
    """The sampling rate is plausible."""
    rate = raw.rate
    if MIN_RATE <= rate <= MAX_RATE:
        return
    if rate < MIN_RATE:
        distance = {
            u: abs(math.log(rate / SI_SCALE[u] / TYPICAL_RATE))
            for u in QUANTITY_UNITS["t"]
            if SI_SCALE[u] != 1
        }
        unit = min(distance, key=lambda u: distance[u])
        reason = "Accelerations, and so inertias, cannot be computed from such samples."
        advice = f'Declare the unit of time, units={{"t": "{unit}"}} or --unit t={unit}, or log more often.'
    else:
        declared = raw.log.units.get("t")
        reason = "Times are in seconds."
        advice = (
            f"Remove the declared unit t={declared}."
            if declared
            else "Multiply t by 1000 if it is in kiloseconds, or keep fewer samples."
        )
    message = f"The time between samples is {1 / rate:.4g} s."
    yield finding("sample_rate", message, advice, reason=reason)


def force_above_limit(raw: RawLog) -> Iterator[Finding]:
    """Forces do not exceed the effort limits."""
    if raw.log.current:
        return
    mech = raw.mech
    ratios: dict[str, float] = {}
    for name in mech.joint_names:
        dof = mech.dof_slice(name)
        tau, limits = np.abs(raw.tau[..., dof]), mech.effort_limit[dof].detach().cpu().numpy()
        if np.isfinite(tau).any((0, 1)).all() and (limits > 0).all() and np.isfinite(limits).all():
            median = np.nanmedian(tau, axis=(0, 1))
            ratios[name] = float((median / limits).max())
    above = {name: x for name, x in ratios.items() if x > MAX_FORCE_RATIO}
    units = {name: mech.joint_types[k].coordinate_unit for k, name in enumerate(mech.joint_names)}
    every = len(above) == len(ratios) and len(set(units.values())) == 1
    for name, ratio in above.items():
        unit, _ = nearest_unit("tau", ratio / TYPICAL_FORCE_RATIO, mech, name) or ("A", 1.0)
        where = "tau" if every else f"tau.{name}"
        yield finding(
            "force_above_limit",
            f"The median force of joint {name!r} is {ratio:.3g} times its effort limit.",
            f"Declare the unit, such as --unit {where}={unit}, or --unit {where}=A for motor currents; or "
            "correct the limit in the robot's file, or by mech.replace(effort_limit=...).",
            joints=[name],
            reason="Forces are in N m or N, and drives do not exceed their limits.",
        )


def position_range(raw: RawLog) -> Iterator[Finding]:
    """Joints do not move far beyond the range of their limits."""
    mech = raw.mech
    kinds = dict(zip(mech.joint_names, mech.joint_types, strict=True))
    messages: dict[str, str] = {}
    plausible: list[str] = []
    for name in vector_joints(mech):
        at = mech.q_slice(name)
        lower, upper = (x[at].detach().cpu().numpy() for x in (mech.lower, mech.upper))
        least, most = np.nanquantile(raw.q[..., at], (0.01, 0.99), axis=(0, 1))  # without outliers
        moves = most - least > MIN_RANGE_RATIO * (upper - lower)
        if (
            kinds[name].coordinate_unit == "rad"
            and (moves & (least > lower) & (most < upper)).all()
        ):
            plausible.append(name)
        for a, b, lo, hi in zip(least, most, lower, upper, strict=True):
            if math.isfinite(hi - lo) and hi > lo and b - a > MAX_RANGE_RATIO * (hi - lo):
                messages[name] = (
                    f"Joint {name!r} moves from {a:.4g} to {b:.4g}, its limits are {lo:.4g} and {hi:.4g}."
                )
    angles = [name for name in messages if kinds[name].coordinate_unit == "rad"]
    common = len(angles) > len(plausible)  # the range of a small motion in degrees is plausible too
    units = {
        name: "mm" if name in messages and kind.coordinate_unit == "m"
        else "deg" if kind.coordinate_unit == "rad" and (common or name in angles)
        else si_unit(kind, "q")
        for name, kind in kinds.items()
    }  # fmt: skip
    advice = f"Declare the unit, {declaration('q', units)}"
    if raw.qd is not None:
        rates = {name: f"{unit}/s" for name, unit in units.items()}
        advice += f", also of velocities if it is theirs, {declaration('qd', rates)}"
    for name, message in messages.items():
        yield finding(
            "position_range", message, f"{advice}, or correct the limits.",
            joints=[name], reason="Positions are in rad or m, as the limits are.",
        )  # fmt: skip


def vector_joints(mech: Mechanism) -> list[str]:
    """Joints whose velocities are the derivatives of their coordinates."""
    names = zip(mech.joint_names, mech.independent_joints, strict=True)
    return [name for name, k in names if mech.joints.kinds[k].vector]
