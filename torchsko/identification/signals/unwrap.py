"""Unwrapping of angles that a log keeps within one turn, as absolute encoders do."""

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

MAX_TYPICAL_STEP = TURN / 4
"""Largest typical step with which turns are counted [rad]: beyond half a turn they are ambiguous."""


def unwrap_angles(log: Log, names: Sequence[str] = ()) -> tuple[Log, dict[str, int]]:
    """Unwrap positions that are kept within one turn.

    A position is wrapped if it jumps by a turn, always at the same place, and lies within the turn that ends
    there. Prismatic joints and quaternions do not show this pattern.

    Args:
        log: read piece by piece; only wrapped positions are copied.
        names: of the columns of q, for messages; column numbers if empty.

    Returns:
        The log, and the number of jumps by name of each unwrapped position.

    Raises:
        FitError: if a joint moves too far from sample to sample to count its turns.
    """
    jumps = np.zeros(log.q.shape[1], np.bool_)
    for at in range(0, len(log), PIECE_SAMPLES):
        x = np.asarray(log.q[at : at + PIECE_SAMPLES + 1], np.float64)
        jumps |= _has_half_turn_step(x)
        log.release_pages()
    unwrapped = {}
    for j in np.flatnonzero(jumps).tolist():
        x = np.array(log.q[:, j], np.float64)
        name = names[j] if names else f"column {j}"
        count, x = _unwrap(f"{log.name}: positions of {name}", x)
        if count:
            unwrapped[j] = (name, count, x)
    if not unwrapped:
        return log, {}
    q = np.array(log.q, np.float64)
    q[:, list(unwrapped)] = np.stack([x for _, _, x in unwrapped.values()], -1)
    return replace(log, q=q), {name: count for name, count, _ in unwrapped.values()}


def _has_half_turn_step(x: Array) -> NDArray[np.bool_]:
    """Mark positions `[samples, num_q]` with a step of more than half a turn."""
    # The extremes of all steps decide most logs, in a fraction of the time; nan goes on below.
    with np.errstate(over="ignore", invalid="ignore"):
        step = np.diff(x, axis=0)
    if not step.size or (step.max() <= TURN / 2 and step.min() >= -TURN / 2):
        return np.zeros(x.shape[1], np.bool_)
    valid = mask_invalid_magnitudes(x)
    return np.asarray((np.abs(np.diff(valid, axis=0)) > TURN / 2).any(0))


def _unwrap(label: str, x: Array) -> tuple[int, Array]:
    """Count the wraps of positions `[samples]`, and remove them."""
    finite = np.flatnonzero(np.isfinite(mask_invalid_magnitudes(x)))
    if not len(finite):
        return 0, x
    near = finite[np.abs(x[finite] - np.median(x[finite])) <= TURN]
    if len(near) <= max(2 * TYPICAL_STEPS, MIN_WRAPPED_SHARE * len(finite)):
        return 0, x
    near = near[np.append(True, np.diff(x[near]) != 0)]  # omit repeated samples of a slow sensor
    before, after = x[near[:-1]], x[near[1:]]
    turns = np.rint((after - before) / TURN)
    step = np.abs(after - before - TURN * turns)
    at = np.flatnonzero(turns)
    around = np.clip(at[:, None] + np.arange(-TYPICAL_STEPS, TYPICAL_STEPS + 1), 0, len(step) - 1)
    # 1e-6 rad for the rounding of numbers in a file.
    typical = np.median(step[around], axis=1) + 1e-6
    wraps = step[at] <= MAX_STEP_RATIO * typical
    if not wraps.any():
        return 0, x
    middle = (before + after)[at] / 2
    place, tolerance = np.median(middle[wraps]), MAX_STEP_RATIO * typical
    within_turn = np.abs(x[finite] - place) <= TURN / 2 + tolerance.max()
    if np.mean(within_turn) < MIN_WRAPPED_SHARE:
        return 0, x
    if (typical_step := float(np.median(typical[wraps]))) > MAX_TYPICAL_STEP:
        raise FitError(
            f"{label} wrap around at one turn, and move by {typical_step:.3g} rad from sample to sample.",
            "The number and direction of turns between such samples is ambiguous.",
            "Log at a higher rate, or log positions that are not wrapped.",
        )
    chosen = wraps & (np.abs(middle - place) <= tolerance)
    shift = np.zeros_like(x)
    shift[near[at[chosen] + 1]] = turns[at[chosen]]
    return int(chosen.sum()), x - TURN * np.cumsum(shift)
