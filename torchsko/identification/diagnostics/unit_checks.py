"""Checks of the units and signs of a raw log against the limits of the robot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from torchsko.errors import FitError
from torchsko.identification.diagnostics.context import RawLog
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.logs.log import Array, Log
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

MAX_FORCE_RATIO = 5.0
"""Largest plausible ratio of the median force to the effort limit."""

MAX_VELOCITY_RATIO = 2.0
"""Largest ratio of velocities to the derivative of positions that filters and noise can explain."""

MIN_CORRELATION = 0.9
"""Correlation above which two signals are taken to be proportional."""

MAX_UNRELATED = 0.5
"""Correlation below which velocities are taken to be unrelated to positions."""


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
                    x: u if _can_have(kinds[x], name, u) else _si_unit(kinds[x], name)
                    for x, u in by_joint.items()
                    if x in kinds
                }
                raise FitError(
                    f"{log.name}: the declared unit of {name} is {declared}, but joint {joint!r} is "
                    f"{kinds[joint].name}.",
                    "Angular units belong to revolute joints, units of length to prismatic joints.",
                    f"Declare units by joint: {_declaration(name, valid)}.",
                )


def _declaration(name: str, units: Mapping[str, str]) -> str:
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


def _si_unit(kind: JointType, name: str) -> str:
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
    for name in raw.mech.joint_names:
        dof = raw.mech.dof_slice(name)
        tau = raw.tau[..., dof]
        if not np.isfinite(tau).any((0, 1)).all():
            continue
        limits = raw.mech.effort_limit[dof].detach().cpu().numpy()
        for median, limit in zip(np.nanmedian(np.abs(tau), axis=(0, 1)), limits, strict=True):
            if 0 < limit < math.inf and median > MAX_FORCE_RATIO * limit:
                yield finding(
                    "force_above_limit",
                    f"The median force of joint {name!r} is {median:.4g}, its effort limit {limit:.4g}.",
                    'Declare the unit, units={"tau": "mNm"} or --unit tau=mNm, or correct the limit: '
                    "mech.replace(effort_limit=...).",
                    joints=[name],
                    reason="Forces are in N m or N, and drives do not exceed their limits.",
                )


def position_range(raw: RawLog) -> Iterator[Finding]:
    """Joints do not move far beyond the range of their limits."""
    mech = raw.mech
    kinds = dict(zip(mech.joint_names, mech.joint_types, strict=True))
    messages: dict[str, str] = {}
    for name in _vector_joints(mech):
        at = mech.q_slice(name)
        lower, upper = (x[at].detach().cpu().numpy() for x in (mech.lower, mech.upper))
        least, most = np.nanquantile(raw.q[..., at], (0.01, 0.99), axis=(0, 1))  # without outliers
        for a, b, lo, hi in zip(least, most, lower, upper, strict=True):
            if math.isfinite(hi - lo) and hi > lo and b - a > MAX_RANGE_RATIO * (hi - lo):
                messages[name] = (
                    f"Joint {name!r} moves from {a:.4g} to {b:.4g}, its limits are {lo:.4g} and {hi:.4g}."
                )
    angles = any(kinds[name].coordinate_unit == "rad" for name in messages)
    units = {
        name: "mm" if name in messages and kind.coordinate_unit == "m"
        else "deg" if angles and kind.coordinate_unit == "rad" else _si_unit(kind, "q")
        for name, kind in kinds.items()
    }  # fmt: skip
    advice = f"Declare the unit, {_declaration('q', units)}"
    if raw.qd is not None:
        rates = {name: f"{unit}/s" for name, unit in units.items()}
        advice += f", also of velocities if it is theirs, {_declaration('qd', rates)}"
    for name, message in messages.items():
        yield finding(
            "position_range", message, f"{advice}, or correct the limits.",
            joints=[name], reason="Positions are in rad or m, as the limits are.",
        )  # fmt: skip


def velocity_scale(raw: RawLog) -> Iterator[Finding]:
    """Velocities are the derivative of positions, not a multiple of it."""
    if raw.qd is None:
        return
    fine, mech = raw.without_gaps, raw.mech
    t, q, qd = raw.t[fine], raw.q[fine], raw.qd[fine]
    for name in _vector_joints(mech):
        way = q[:, -1, mech.q_slice(name)] - q[:, 0, mech.q_slice(name)]
        integral = _integral(t, qd[..., mech.dof_slice(name)])
        for a, b in zip(way.T, integral.T, strict=True):
            correlation = _correlation(a, b)
            both = np.isfinite(a) & np.isfinite(b)
            a, b = a[both], b[both]
            if abs(correlation) <= MIN_CORRELATION:
                continue
            ratio = math.copysign(math.sqrt(float(b @ b) / float(a @ a)), correlation)
            if not 1 / MAX_VELOCITY_RATIO < ratio < MAX_VELOCITY_RATIO:
                yield finding(
                    "velocity_scale",
                    f"Velocities of joint {name!r} are {ratio:.3g} times the derivative of its positions.",
                    _likely_unit(ratio),
                    joints=[name],
                    reason="Positions and velocities need consistent units and signs.",
                )


def _likely_unit(ratio: float) -> str:
    """Advice for velocities that are a multiple of the derivative of positions."""
    if 1 / MAX_VELOCITY_RATIO < abs(ratio) < MAX_VELOCITY_RATIO:
        return "Change the sign of one of them, or name the right columns."
    signs = {"t": 1, "qd": 1, "q": -1}
    each = [(name, unit) for name in signs for unit in QUANTITY_UNITS[name] if SI_SCALE[unit] != 1]
    distance = [
        abs(math.log(abs(ratio)) + signs[name] * math.log(SI_SCALE[unit])) for name, unit in each
    ]
    name, unit = each[distance.index(min(distance))]
    return f'Declare the unit, units={{"{name}": "{unit}"}} or --unit {name}={unit}.'


def velocity_column(raw: RawLog) -> Iterator[Finding]:
    """Velocities belong to the positions of the same joint."""
    if raw.qd is None:
        return
    fine, mech = raw.without_gaps, raw.mech
    t, q, qd = raw.t[fine], raw.q[fine], raw.qd[fine]
    names = _vector_joints(mech)
    integral, middle = _integral(t, qd), q.shape[1] // 2
    for name in names:
        places = (range(x.start, x.stop) for x in (mech.q_slice(name), mech.dof_slice(name)))
        for at, dof in zip(*places, strict=True):
            early, late = q[:, middle, at] - q[:, 0, at], q[:, -1, at] - q[:, middle, at]
            # Both halves of a block are correlated only if the joint moves more than its noise.
            if _correlation(early, late) < MIN_CORRELATION:
                continue
            way = early + late
            if abs(_correlation(way, integral[:, dof])) > MAX_UNRELATED:
                continue
            others = [
                other
                for other in names
                for j in range(mech.num_dof)[mech.dof_slice(other)]
                if j != dof and _correlation(way, integral[:, j]) > MIN_CORRELATION
            ]
            where = f" but are in the column of joint {others[0]!r}" if others else ""
            yield finding(
                "velocity_column",
                f"Velocities of joint {name!r} do not match its positions{where}.",
                'Name the right columns, columns={"qd": [...]} or --column qd=..., or leave out qd.',
                joints=[name, *others[:1]],
            )


def _vector_joints(mech: Mechanism) -> list[str]:
    """Joints whose velocities are the derivatives of their coordinates."""
    names = zip(mech.joint_names, mech.independent_joints, strict=True)
    return [name for name, k in names if mech.joints.kinds[k].vector]


def _correlation(a: Array, b: Array) -> float:
    """Uncentred correlation of two series where both are finite; 0 if one is zero."""
    fine = np.isfinite(a) & np.isfinite(b)
    size = math.sqrt(float(a[fine] @ a[fine]) * float(b[fine] @ b[fine]))
    return float(a[fine] @ b[fine]) / size if size > 0 else 0.0


def _integral(t: Array, qd: Array) -> Array:
    """Integral of velocities over each block, `[blocks, dofs]`, by their median, robust to outliers."""
    return (t[:, -1:] - t[:, :1]) * np.median(qd, axis=1)
