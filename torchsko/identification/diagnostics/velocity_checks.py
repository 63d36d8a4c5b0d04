"""Checks that the velocities of a raw log are the derivatives of its positions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchsko.identification.diagnostics.context import RawLog
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.diagnostics.unit_checks import (
    declaration,
    nearest_unit,
    si_unit,
    vector_joints,
)
from torchsko.identification.logs.log import Array
from torchsko.mechanism.mechanism import Mechanism

MAX_VELOCITY_RATIO = 2.0
"""Largest ratio of velocities to the derivative of positions that filters and noise can explain."""

MIN_CORRELATION = 0.9
"""Correlation above which two signals are taken to be proportional."""

MAX_UNRELATED = 0.5
"""Correlation below which velocities are taken to be unrelated to positions."""

RIGHT_COLUMNS = (
    'Name the right columns, columns={"qd": [...]} or --column qd=..., or leave out the velocities, '
    "dataclasses.replace(log, qd=None) or --column qd=-."
)
"""Advice for velocities that do not belong to the positions."""


def velocity_scale(raw: RawLog) -> Iterator[Finding]:
    """Velocities are the derivative of positions, not a multiple of it."""
    ratios = _velocity_ratios(raw)
    wrong = {
        name: x for name, x in ratios.items() if not 1 / MAX_VELOCITY_RATIO < x < MAX_VELOCITY_RATIO
    }
    every = len(wrong) == len(ratios)
    by_unit: dict[tuple[str, str], list[str]] = {}
    for name, ratio in wrong.items():
        by_unit.setdefault(_velocity_unit(ratio, raw.mech, name, every=every), []).append(name)
    for (quantity, unit), names in by_unit.items():
        listed = ", ".join(f"{name} {wrong[name]:.3g} times" for name in names)
        units = {
            name: unit if name in names else si_unit(kind, quantity)
            for name, kind in zip(raw.mech.joint_names, raw.mech.joint_types, strict=True)
        }
        if not unit:
            advice = RIGHT_COLUMNS
        elif quantity == "t":
            advice = f'Declare the unit, units={{"t": "{unit}"}} or --unit t={unit}.'
        else:
            advice = f"Declare the unit, {declaration(quantity, units)}."
        yield finding(
            "velocity_scale",
            f"Velocities of joints are multiples of the derivative of their positions: {listed}.",
            advice,
            joints=names,
            reason="Positions and velocities need consistent units and signs.",
        )


def _velocity_ratios(raw: RawLog) -> dict[str, float]:
    """Ratio of velocities to the derivative of positions that is farthest from 1, by correlated joint."""
    if raw.qd is None:
        return {}
    fine, mech = raw.without_gaps, raw.mech
    t, q, qd = raw.t[fine], raw.q[fine], raw.qd[fine]
    ratios: dict[str, float] = {}
    for name in vector_joints(mech):
        way = q[:, -1, mech.q_slice(name)] - q[:, 0, mech.q_slice(name)]
        integral = _integral(t, qd[..., mech.dof_slice(name)])
        for a, b in zip(way.T, integral.T, strict=True):
            correlation = _correlation(a, b)
            both = np.isfinite(a) & np.isfinite(b)
            a, b = a[both], b[both]
            if abs(correlation) > MIN_CORRELATION:
                x = math.copysign(math.sqrt(float(b @ b) / float(a @ a)), correlation)
                ratios[name] = max(x, ratios.get(name, x), key=lambda y: abs(math.log(abs(y))))
    return ratios


def _velocity_unit(ratio: float, mech: Mechanism, joint: str, *, every: bool) -> tuple[str, str]:
    """Quantity and unit that explain velocities that are a multiple of the derivative; empty if none does.

    Args:
        ratio: of velocities to the derivative of positions.
        mech: the robot.
        joint: name of the joint.
        every: whether all joints have such velocities, so that the times may be in another unit.
    """
    if 1 / MAX_VELOCITY_RATIO < abs(ratio) < MAX_VELOCITY_RATIO:
        return "", ""
    rates = {"t": ratio, "qd": ratio, "q": 1 / ratio}
    found = {
        (name, near[0]): near[1]
        for name, x in rates.items()
        if (every or name != "t") and (near := nearest_unit(name, x, mech, joint))
    }
    return min(found, key=lambda x: found[x], default=("", ""))


def velocity_column(raw: RawLog) -> Iterator[Finding]:
    """Velocities belong to the positions of the same joint."""
    if raw.qd is None:
        return
    fine, mech = raw.without_gaps, raw.mech
    t, q, qd = raw.t[fine], raw.q[fine], raw.qd[fine]
    names = vector_joints(mech)
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
                RIGHT_COLUMNS,
                joints=[name, *others[:1]],
            )


def _correlation(a: Array, b: Array) -> float:
    """Uncentered correlation of two series where both are finite; 0 if one is zero."""
    fine = np.isfinite(a) & np.isfinite(b)
    size = math.sqrt(float(a[fine] @ a[fine]) * float(b[fine] @ b[fine]))
    return float(a[fine] @ b[fine]) / size if size > 0 else 0.0


def _integral(t: Array, qd: Array) -> Array:
    """Integral of velocities over each block, `[blocks, dofs]`, by their median, robust to outliers."""
    return (t[:, -1:] - t[:, :1]) * np.median(qd, axis=1)
