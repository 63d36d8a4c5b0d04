"""Unwrapping of positions that a log keeps within one turn, or within the range of another counter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.signals.cleaning import mask_invalid_magnitudes

if TYPE_CHECKING:
    from torchsko.identification.logs.log import Log

Array = NDArray[np.floating[Any]]

TURN = 2 * np.pi

PIECE_SAMPLES = 200_000
"""Samples that are read at a time."""

MAX_STEP_RATIO = 8.0
"""Largest step of the motion at a wrap, over the typical step around it."""

TYPICAL_STEPS = 5
"""Steps on each side of a wrap from which the typical step is estimated, robust to an outlier."""

MIN_WRAPPED_SHARE = 0.99
"""Smallest share of positions within the turn; the others may be outliers."""

MAX_TYPICAL_STEP = 0.25
"""Largest typical step with which jumps are counted, in periods: beyond half a period they are ambiguous."""

MIN_JUMP_RATIO = 10.0
"""Smallest jump of a counter, over the mean step of the positions."""

MIN_JUMPS = 2
"""Smallest number of jumps from which a period other than a turn is estimated."""

MIN_JUMP_SPEED = 0.3
"""Speed around jumps, over the root mean square speed: a repeated motion restarts at rest."""

MAX_TURN_ERROR = 0.01
"""Relative distance of an estimated period from a multiple of a turn up to which it is that multiple."""


def unwrap_angles(log: Log, names: Sequence[str] = ()) -> tuple[Log, dict[str, tuple[int, float]]]:
    """Unwrap positions that are kept within one turn, or within another period.

    A position is wrapped if it jumps by one amount, always at the same place and with the same speed before
    and after, and lies within the range of this amount that ends there. Quaternions do not show this pattern.

    Args:
        log: read piece by piece; only wrapped positions are copied.
        names: of the columns of q, for messages; column numbers if empty.

    Returns:
        The log; and the number of jumps and their amount [rad or m] by name of each unwrapped position.

    Raises:
        FitError: if a joint moves too far from sample to sample to count its turns.
    """
    jumps = np.zeros(log.q.shape[1], np.bool_)
    for at in range(0, len(log), PIECE_SAMPLES):
        x = np.asarray(log.q[at : at + PIECE_SAMPLES + 1], np.float64)
        jumps |= _has_jump(x)
        log.release_pages()
    unwrapped = {}
    for j in np.flatnonzero(jumps).tolist():
        x = np.array(log.q[:, j], np.float64)
        name = names[j] if names else f"column {j}"
        label = f"{log.name}: positions of {name}"
        period = TURN
        count, unwrapped_x = _unwrap(label, x, TURN)
        if not count and (found := _find_period(x)) is not None:
            period = found
            count, unwrapped_x = _unwrap(label, x, period)
        if count:
            unwrapped[j] = (name, (count, period), unwrapped_x)
    if not unwrapped:
        return log, {}
    q = np.array(log.q, np.float64)
    q[:, list(unwrapped)] = np.stack([x for _, _, x in unwrapped.values()], -1)
    return replace(log, q=q), {name: jumps for name, jumps, _ in unwrapped.values()}


def _has_jump(x: Array) -> NDArray[np.bool_]:
    """Mark positions `[samples, num_q]` with a step of more than half a turn, or far above the mean one."""
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(np.diff(x, axis=0))
        if not len(size):
            return np.zeros(x.shape[1], np.bool_)
        most, mean = size.max(0), size.mean(0)
    # Steps that are not finite are examined below, without invalid magnitudes.
    jump = np.asarray(~(most <= np.minimum(TURN / 2, MIN_JUMP_RATIO * mean)))
    if not np.isfinite(most).all():
        valid = np.abs(np.diff(mask_invalid_magnitudes(x), axis=0))
        largest, mean = np.nanmax(valid, axis=0, initial=0.0), np.nansum(valid, axis=0) / len(valid)
        jump = np.asarray(largest > np.minimum(TURN / 2, MIN_JUMP_RATIO * mean))
    return jump


def _find_period(x: Array) -> float | None:
    """Amount by which positions `[samples]` jump; None if they do not jump by one amount at one place."""
    x = x[np.isfinite(mask_invalid_magnitudes(x))]
    x = x[np.append(True, np.diff(x) != 0)] if len(x) else x
    if len(x) <= 4 * TYPICAL_STEPS:
        return None
    step = np.diff(x)
    size = np.abs(step)
    at = np.flatnonzero(size > MIN_JUMP_RATIO * size.mean())
    at = at[(at > 0) & (at < len(step) - 1)]
    if len(at) < MIN_JUMPS:
        return None
    around = (step[at - 1] + step[at + 1]) / 2
    # A jump by a period P against the motion of speed v is v - sign(v) P.
    amount = np.abs(step[at] - around)
    period = float(np.median(amount))
    small = size[size <= MIN_JUMP_RATIO * size.mean()]
    noise = MAX_STEP_RATIO * max(float(np.median(small)), 1e-6)
    one_amount = np.mean(np.abs(amount - period) <= noise) >= 1 - 1 / MIN_JUMP_RATIO
    one_range = np.ptp(np.quantile(x, (0.001, 0.999))) <= period + noise
    moving = np.median(np.abs(around)) >= MIN_JUMP_SPEED * np.sqrt(np.mean(small**2))
    against = np.mean(step[at] * around < 0) >= 1 - 1 / MIN_JUMP_RATIO
    if not (one_amount and one_range and moving and against and period > 4 * noise):
        return None
    turns = round(period / TURN)
    near = turns and abs(period - turns * TURN) <= MAX_TURN_ERROR * period
    return turns * TURN if near else float(amount[np.abs(amount - period) <= noise].mean())


def _unwrap(label: str, x: Array, period: float) -> tuple[int, Array]:
    """Count the wraps of positions `[samples]`, and remove them."""
    finite = np.flatnonzero(np.isfinite(mask_invalid_magnitudes(x)))
    if not len(finite):
        return 0, x
    near = finite[np.abs(x[finite] - np.median(x[finite])) <= period]
    if len(near) <= max(2 * TYPICAL_STEPS, MIN_WRAPPED_SHARE * len(finite)):
        return 0, x
    near = near[np.append(True, np.diff(x[near]) != 0)]  # omit repeated samples of a slow sensor
    before, after = x[near[:-1]], x[near[1:]]
    turns = np.rint((after - before) / period)
    step = np.abs(after - before - period * turns)
    at = np.flatnonzero(turns)
    around = np.clip(at[:, None] + np.arange(-TYPICAL_STEPS, TYPICAL_STEPS + 1), 0, len(step) - 1)
    # 1e-6 rad for the rounding of numbers in a file.
    typical = np.median(step[around], axis=1) + 1e-6
    wraps = step[at] <= MAX_STEP_RATIO * typical
    if not wraps.any():
        return 0, x
    middle = (before + after)[at] / 2
    place, tolerance = np.median(middle[wraps]), MAX_STEP_RATIO * typical
    within_turn = np.abs(x[finite] - place) <= period / 2 + tolerance.max()
    if np.mean(within_turn) < MIN_WRAPPED_SHARE:
        return 0, x
    if (typical_step := float(np.median(typical[wraps]))) > MAX_TYPICAL_STEP * period:
        raise FitError(
            f"{label} wrap around at one turn, and move by {typical_step:.3g} rad from sample to sample.",
            "The number and direction of turns between such samples is ambiguous.",
            "Log at a higher rate, or log positions that are not wrapped.",
        )
    chosen = wraps & (np.abs(middle - place) <= tolerance)
    shift = np.zeros_like(x)
    shift[near[at[chosen] + 1]] = turns[at[chosen]]
    return int(chosen.sum()), x - period * np.cumsum(shift)
