"""What of a log cannot be: positions far beyond limits, velocities that are not those of positions."""

from __future__ import annotations

import math

import numpy as np

from torchsko.errors import FitError
from torchsko.identification.diagnostics.angle_units import refuse_degrees, refuse_kinds
from torchsko.identification.diagnostics.quaternion_convention import refuse_other_habits
from torchsko.identification.logs.log import Array, Log
from torchsko.identification.logs.units import QUANTITY_UNITS, SI_SCALE
from torchsko.identification.signals.cleaning import mask_invalid_magnitudes
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.mechanism import Mechanism

FAR = 4.0
"""Range of a joint's positions over that of its limits from which on they are in another unit."""

BLOCKS = 200
"""Blocks of a log that are looked at, evenly spread."""

BLOCK = 0.1
"""Length of a block [s]."""

SURE = 0.9
"""Correlation of velocities with what positions move by from which on they belong together."""

TWICE = 2.0
"""Ratio of the two that no filter and no noise makes."""


SLOWEST, FASTEST = 5.0, 3e4
"""Rates of samples beyond which times are in other units [Hz]: forces are not told so seldom or so often."""

USUAL = 500.0
"""Rate of a log; the unit that brings times nearest to it is likely [Hz]."""

FOLLOWS = 0.5
"""Correlation of forces with the nominal robot's, friction set aside, from which on their size tells."""

LARGE = 5.0
"""Median of a joint's forces over its limit from which on they are in another unit."""


def refuse_other_units(mech: Mechanism, log: Log, rate: float) -> None:
    """Refuse a log whose numbers are none, or in another unit than the robot's, as far as that shows.

    Args:
        mech: the nominal robot.
        log: what was measured.
        rate: of the log [Hz].

    Raises:
        FitError: on declared units that a joint cannot have, columns without a number, samples too far or too
            near to one another, positions or forces far beyond limits, or velocities that are another
            multiple of theirs; names the joint.
    """
    refuse_kinds(mech, log)
    _refuse_rate(log, rate)
    size = max(2, round(BLOCK * rate))
    starts = np.unique(np.linspace(0, max(len(log) - size - 1, 0), BLOCKS).astype(int))
    rows = (starts[:, None] + np.arange(size + 1)).clip(max=len(log) - 1)

    def blocks(x: Array) -> Array:
        found = mask_invalid_magnitudes(np.asarray(x[rows], np.float64))
        log.release_pages()  # of an array that is mapped, whole folios around each block are in memory
        return found

    t, q = blocks(log.t), blocks(log.q)
    whole = (np.diff(t, axis=1) <= 2.5 / rate).all(1)
    tau = blocks(log.tau)
    qd = None if log.qd is None else blocks(log.qd)
    floating = free_joints(mech)
    for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        at, dof = mech.q_slice(name), mech.dof_slice(name)
        _refuse_blank(log, name, {"q": q[..., at], "qd": qd if qd is None else qd[..., dof]})
        measured = np.isfinite(tau[..., dof]).any((0, 1))
        if name not in floating:  # where a robot floats it may have no sensor
            _refuse_blank(log, name, {"tau": tau[..., dof]})
        if not log.current and measured.all():
            _refuse_large(mech, log, name, tau[..., dof])
        if not mech.joints.kinds[k].vector:
            continue
        _refuse_far(mech, log, name, q[..., at])
        if qd is not None:
            _refuse_multiples(log, name, t[whole], q[whole][..., at], qd[whole][..., dof])
    if qd is not None:
        _refuse_others(mech, log, t[whole], q[whole], qd[whole])
        refuse_other_habits(mech, log, t[whole], q[whole], qd[whole])
    refuse_degrees(mech, log, q[:, 0], tau[:, 0])


def _refuse_rate(log: Log, rate: float) -> None:
    if SLOWEST <= rate <= FASTEST:
        return
    if rate < SLOWEST:
        off = {
            u: abs(math.log(rate / SI_SCALE[u] / USUAL))
            for u in QUANTITY_UNITS["t"]
            if SI_SCALE[u] != 1
        }
        unit = min(off, key=lambda u: off[u])
        why = "Inertia shows in accelerations, which times so far apart do not tell."
        advice = (
            f'Declare the unit, units={{"t": "{unit}"}} or --unit t={unit}, say, or log more often.'
        )
    else:
        unit = log.units.get("t")
        why = "Joints do not move between, and forces are not measured so often: t is in s."
        advice = (
            f"Leave the unit t={unit} out." if unit else "Multiply t by 1000, say, or thin the log."
        )
    raise FitError(
        f"{log.name}: samples are {1 / rate:.4g} s apart.",
        f"{why}",
        f"{advice}",
    )


def _refuse_blank(log: Log, name: str, columns: dict[str, Array | None]) -> None:
    for what, x in columns.items():
        if x is not None and not np.isfinite(x).any((0, 1)).all():
            other = (
                "leave the velocities of all joints out: positions tell them."
                if what == "qd"
                else f"lock the joint: mech.lock({{{name!r}: ...}})."
            )
            if what == "tau":
                other = f"put zeros where nothing drives the joint, or {other}"
            raise FitError(
                f"{log.name}: {what} of joint {name!r} is nowhere a finite number.",
                "A column of words, or of a sensor that was off, tells nothing.",
                f'Name the right column, columns={{"{what}": [...]}}, or {other}',
            )


def _refuse_large(mech: Mechanism, log: Log, name: str, tau: Array) -> None:
    limit = mech.effort_limit[mech.dof_slice(name)].detach().cpu().numpy()
    for middle, most in zip(np.nanmedian(np.abs(tau), axis=(0, 1)), limit, strict=True):
        if 0 < most < math.inf and middle > LARGE * most:
            raise FitError(
                f"{log.name}: the median force of joint {name!r} is {middle:.4g}, its limit {most:.4g}.",
                "A log is in N m or N, as the robot is, and drives keep their limits.",
                'Declare the unit, units={"tau": "mNm"} or --unit tau=mNm, '
                "or give the robot its true limits.",
            )


def _refuse_far(mech: Mechanism, log: Log, name: str, q: Array) -> None:
    lower, upper = (x[mech.q_slice(name)].detach().cpu().numpy() for x in (mech.lower, mech.upper))
    # Single outliers are another matter.
    least, most = np.nanquantile(q, (0.01, 0.99), axis=(0, 1))
    for a, b, lo, hi in zip(least, most, lower, upper, strict=True):
        if math.isfinite(hi - lo) and hi > lo and b - a > FAR * (hi - lo):
            types = dict(zip(mech.joint_names, mech.joint_types, strict=True))
            unit = "mm" if types[name].coordinate_unit == "m" else "deg"
            raise FitError(
                f"{log.name}: joint {name!r} moves from {a:.4g} to {b:.4g}, "
                f"its limits are {lo:.4g} and {hi:.4g}.",
                "A log is in rad or m, as the robot is, and moves within its limits.",
                f'Declare the unit, units={{"q": "{unit}"}} or --unit q={unit}, or of this joint '
                f"--unit q.{name}={unit}, or give the robot its true limits.",
            )


def _alike(a: Array, b: Array) -> float:
    """The cosine between two series, where both are numbers; 0 where one is nothing."""
    fine = np.isfinite(a) & np.isfinite(b)
    both = math.sqrt(float(a[fine] @ a[fine]) * float(b[fine] @ b[fine]))
    return float(a[fine] @ b[fine]) / both if both > 0 else 0.0


def _moved_by(t: Array, qd: Array) -> Array:
    """How far velocities go in each block, `[blocks, dofs]`; outliers do not."""
    return (t[:, -1:] - t[:, :1]) * np.median(qd, axis=1)


def _refuse_others(mech: Mechanism, log: Log, t: Array, q: Array, qd: Array) -> None:
    """Refuse velocities that are those of another joint, or of none."""
    named = zip(mech.joint_names, mech.independent_joints, strict=True)
    names = [name for name, k in named if mech.joints.kinds[k].vector]
    told, middle = _moved_by(t, qd), q.shape[1] // 2
    for name in names:
        for at, dof in zip(
            *(range(x.start, x.stop) for x in (mech.q_slice(name), mech.dof_slice(name))),
            strict=True,
        ):
            early, late = q[:, middle, at] - q[:, 0, at], q[:, -1, at] - q[:, middle, at]
            # What moves goes on as it began; noise turns back.
            if _alike(early, late) < SURE or abs(_alike(early + late, told[:, dof])) > FOLLOWS:
                continue
            whose = [
                other
                for other in names
                for j in range(mech.num_dof)[mech.dof_slice(other)]
                if j != dof and _alike(early + late, told[:, j]) > SURE
            ]
            raise FitError(
                f"{log.name}: velocities of joint {name!r} are not those of its positions"
                + (f", but stand in the column of joint {whose[0]!r}.\n" if whose else ".\n")
                + "Both are of one joint: what it moves is its velocity times the time.\n"
                'Name the right columns, columns={"qd": [...]} or --column qd=..., or leave qd out.'
            )


def _refuse_multiples(log: Log, name: str, t: Array, q: Array, qd: Array) -> None:
    moved = q[:, -1] - q[:, 0]
    told = _moved_by(t, qd)
    for a, b in zip(moved.T, told.T, strict=True):
        fine = np.isfinite(a) & np.isfinite(b)
        a, b = a[fine], b[fine]
        both, alike = math.sqrt(float(a @ a) * float(b @ b)), _alike(a, b)
        ratio = math.copysign(math.sqrt(float(b @ b) / float(a @ a)), alike) if both > 0 else 1.0
        if abs(alike) > SURE and not 1 / TWICE < ratio < TWICE:
            raise FitError(
                f"{log.name}: velocities of joint {name!r} are {ratio:.3g} times what its positions move.",
                "Both are of one unit, and of one sign.",
                f"{_likely(ratio)}",
            )


def _likely(ratio: float) -> str:
    """What to do about velocities that are so many times what positions move."""
    if 1 / TWICE < abs(ratio) < TWICE:
        return "Turn the sign of one of them, or name the right columns."
    signs = {"t": 1, "qd": 1, "q": -1}
    each = [(name, unit) for name in signs for unit in QUANTITY_UNITS[name] if SI_SCALE[unit] != 1]
    off = [
        abs(math.log(abs(ratio)) + signs[name] * math.log(SI_SCALE[unit])) for name, unit in each
    ]
    name, unit = each[off.index(min(off))]
    return f'Declare the unit, units={{"{name}": "{unit}"}} or --unit {name}={unit}, say.'
