"""What of a log cannot be: positions far beyond limits, velocities that are not those of positions."""

from __future__ import annotations

import math

import numpy as np

from torchsko.errors import FitError
from torchsko.learn.columns import OF, SCALE
from torchsko.learn.log import Array, Log
from torchsko.learn.settings import Settings
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


def refuse_other_units(mech: Mechanism, log: Log, settings: Settings) -> None:
    """Refuse a log whose numbers are in another unit than the robot's, as far as that shows.

    Args:
        mech: the nominal robot.
        log: what was measured.
        settings: its rate.

    Raises:
        FitError: on positions far beyond limits, or velocities that are another multiple of theirs; names
            the joint.
    """
    size = max(2, round(BLOCK * settings.rate))
    starts = np.unique(np.linspace(0, max(len(log) - size - 1, 0), BLOCKS).astype(int))
    rows = (starts[:, None] + np.arange(size + 1)).clip(max=len(log) - 1)
    t, q = (np.asarray(x[rows], np.float64) for x in (log.t, log.q))
    whole = (np.diff(t, axis=1) <= settings.gap).all(1)
    qd = None if log.qd is None else np.asarray(log.qd[rows], np.float64)
    for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        if not mech.joints.kinds[k].vector:
            continue
        at, dof = mech.q_slice(name), mech.dof_slice(name)
        _refuse_far(mech, log, name, q[..., at])
        if qd is not None:
            _refuse_multiples(log, name, t[whole], q[whole][..., at], qd[whole][..., dof])


def _refuse_far(mech: Mechanism, log: Log, name: str, q: Array) -> None:
    lower, upper = (x[mech.q_slice(name)].detach().cpu().numpy() for x in (mech.lower, mech.upper))
    # Single outliers are another matter.
    least, most = np.nanquantile(q, (0.01, 0.99), axis=(0, 1))
    for a, b, lo, hi in zip(least, most, lower, upper, strict=True):
        if math.isfinite(hi - lo) and hi > lo and b - a > FAR * (hi - lo):
            raise FitError(
                f"{log.name}: joint {name!r} moves from {a:.4g} to {b:.4g}, "
                f"its limits are {lo:.4g} and {hi:.4g}.\n"
                "A log is in rad or m, as the robot is, and moves within its limits.\n"
                'Declare the unit, units={"q": "deg"} or --unit q=deg, or give the robot its true limits.'
            )


def _refuse_multiples(log: Log, name: str, t: Array, q: Array, qd: Array) -> None:
    moved = q[:, -1] - q[:, 0]
    told = (np.diff(t, axis=1)[..., None] * (qd[:, 1:] + qd[:, :-1]) / 2).sum(1)
    for a, b in zip(moved.T, told.T, strict=True):
        fine = np.isfinite(a) & np.isfinite(b)
        a, b = a[fine], b[fine]
        both = math.sqrt(float(a @ a) * float(b @ b))
        alike = float(a @ b) / both if both > 0 else 0.0
        ratio = math.copysign(math.sqrt(float(b @ b) / float(a @ a)), alike) if both > 0 else 1.0
        if abs(alike) > SURE and not 1 / TWICE < ratio < TWICE:
            raise FitError(
                f"{log.name}: velocities of joint {name!r} are {ratio:.3g} times what its positions move.\n"
                f"Both are of one unit, and of one sign.\n{_likely(ratio)}"
            )


def _likely(ratio: float) -> str:
    """What to do about velocities that are so many times what positions move."""
    if 1 / TWICE < abs(ratio) < TWICE:
        return "Turn the sign of one of them, or name the right columns."
    signs = {"t": 1, "qd": 1, "q": -1}
    each = [(name, unit) for name in signs for unit in OF[name] if SCALE[unit] != 1]
    off = [abs(math.log(abs(ratio)) + signs[name] * math.log(SCALE[unit])) for name, unit in each]
    name, unit = each[off.index(min(off))]
    return f'Declare the unit, units={{"{name}": "{unit}"}} or --unit {name}={unit}, say.'
