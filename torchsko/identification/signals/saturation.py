"""Forces that pile up where they end, as of a drive at its limit that is measured with noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from torchsko.identification.logs.log import Array, Log
from torchsko.identification.signals.cleaning import Faults, within_reach
from torchsko.identification.uncertainty.residuals import Residuals
from torchsko.mechanism.mechanism import Mechanism

SAMPLES = 200_000
"""First samples of a log that are looked at."""

WIDE = 3.0
"""Deviations of noise on each side of a limit."""

STEEP = 3.0
"""Samples there over those in as wide a band next to it: a signal that turns has twice as many."""

SHARE = 0.01
"""Of all samples, at least."""

OFTEN = 3
"""Times that a force comes there, at least."""

ASKED = 0.15
"""What a fit asks for beyond it in the mean, over what it is usually off: dry friction piles up, too."""

SURE = 3.0
"""Standard errors of that mean by what errors are elsewhere: those of a visit, while they last, are one."""


def piled(mech: Mechanism, log: Log, left: Residuals, faults: Faults) -> list[str]:
    """Lines that name joints whose forces pile up at an end, where the robot that was fitted asks for more.

    Without noise such forces are found before, and do not count
    (`torchsko.identification.signals.cleaning.cut_off`).

    Args:
        mech: the robot.
        log: what was measured.
        left: what the fit leaves over.
        faults: of joints with forces that do not count already nothing is told.
    """
    t = np.asarray(log.t[:SAMPLES], np.float64)
    at = left.t.numpy()
    if len(at) < 2:
        return []
    # Errors are known of some stretches only.
    near = np.clip(np.searchsorted(at, t), 1, len(at) - 1)
    known = (at[near] - at[near - 1] <= 3 * np.median(np.diff(at))) & (t >= at[0]) & (t <= at[-1])
    lines, step = [], float(np.median(np.diff(t)))
    for name in mech.joint_names:
        if name in faults.saturated:
            continue
        for j in range(mech.num_dof)[mech.dof_slice(name)]:
            force = within_reach(np.asarray(log.tau[:SAMPLES, j], np.float64))
            error = np.where(known, np.interp(t, at, left.error[:, j].numpy()), np.nan)
            ends = [(sign, *_end(sign * force)) for sign in (1.0, -1.0)]
            others = error[known & (ends[0][-1] == 0) & (ends[1][-1] == 0)]
            for sign, limit, noise, visit in ends:
                there = visit > 0
                asked = sign * error[there & known]
                times = len(np.unique(visit[there & known]))
                if times < OFTEN or not len(others):
                    continue
                apart = max(times, len(asked) * step / float(left.lasting[j]))
                unsure = SURE * math.sqrt(np.square(others).mean() / apart)
                usual = float(left.error[:, j].square().mean().sqrt())
                if asked.mean() > max(ASKED * usual, unsure):
                    lines.append(
                        f"{100 * there.mean():.0f} percent of the forces of {name} are {sign * limit:.4g} "
                        "but for noise, where the robot needs more: a drive at its limit. They count: "
                        f"give the joint an effort limit of {limit - WIDE * noise:.4g}, and they do not"
                    )
    return lines


def _end(force: Array) -> tuple[float, float, NDArray[np.int64]]:
    """The upper end at which a signal piles up, its noise, and at which visit samples are there, from 1 on.

    Where a signal does not, no sample is.
    """
    none = math.nan, 0.0, np.zeros(len(force), np.int64)
    finite = force[np.isfinite(force)]
    if len(finite) < 3:
        return none
    bend = finite[1:-1] - (finite[:-2] + finite[2:]) / 2
    noise = 1.4826 * float(np.median(np.abs(bend))) / math.sqrt(1.5)
    if not noise > 0:
        return none
    top = float(np.quantile(finite, 1 - SHARE / 10))
    tried = np.arange(top - 4 * noise, top + 1.5 * noise, noise / 2)
    if not len(tried):  # an outlier beside which noise is rounding
        return none
    wide = WIDE * noise
    limit = float(max(tried, key=lambda x: np.count_nonzero(np.abs(finite - x) <= wide)))
    there = np.abs(force - limit) <= wide
    beside = np.count_nonzero((finite < limit - wide) & (finite >= limit - 3 * wide))
    # A visit begins where the signal comes from far.
    side = np.where(there, 1, np.where(force < limit - 3 * wide, -1, 0))
    comes = np.flatnonzero(side)
    starts = np.diff(side[comes], prepend=-1) > 0
    visit = np.zeros(len(force), np.int64)
    visit[comes] = np.cumsum(starts) * (side[comes] > 0)
    count = np.count_nonzero(there)
    if count < SHARE * len(force) or count < STEEP * beside or visit.max() < OFTEN:
        return none
    return limit, noise, visit
