"""Angles that a log keeps within one turn, as encoders do, counted on: a jump by a turn is no motion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.memmap import forget
from torchsko.identification.signals.cleaning import within_reach

if TYPE_CHECKING:
    from torchsko.identification.logs.log import Log

Array = NDArray[np.floating[Any]]

TURN = 2 * np.pi

PIECE = 200_000
"""Samples that are looked at once."""

LARGER = 8.0
"""Step from a sample to the next over the usual one around it, up to which it is motion."""

AROUND = 5
"""Steps on each side that say what is usual: more than an outlier spoils."""

MOST = 0.99
"""Share of positions that lie within the turn: the others are outliers."""

COUNTED = TURN / 4
"""Usual step up to which turns can be counted [rad]: beyond half of one a joint seems to turn back."""


def counted_on(log: Log, names: Sequence[str] = ()) -> tuple[Log, list[str]]:
    """A log whose positions go on beyond a turn, where they were kept within one, and lines that say so.

    Positions are kept within a turn where they jump by one, always at the same place, and lie in the turn
    that ends there. What slides does not jump by 6.28 m, nor do parts of quaternions.

    Args:
        log: read piece by piece; positions that jump are copied.
        names: of the columns of q, for messages; their places when left out.

    Raises:
        FitError: where the turns of such a joint cannot be counted, for it turns too far in a sample.
    """
    jumping = np.zeros(log.q.shape[1], np.bool_)
    for at in range(0, len(log), PIECE):
        x = np.asarray(log.q[at : at + PIECE + 1], np.float64)
        jumping |= _far_apart(x)
        forget(log)
    found = {}
    for j in np.flatnonzero(jumping).tolist():
        x = np.array(log.q[:, j], np.float64)
        name = names[j] if names else f"column {j}"
        count, x = _counted(f"{log.name}: positions of {name}", x)
        if count:
            found[j] = (f"{name} {count} times", x)
    if not found:
        return log, []
    q = np.array(log.q, np.float64)
    q[:, list(found)] = np.stack([x for _, x in found.values()], -1)
    told = ", ".join(text for text, _ in found.values())
    return replace(log, q=q), [
        f"positions are kept within a turn, and jump by one: counted on, {told}"
    ]


def _far_apart(x: Array) -> NDArray[np.bool_]:
    """Which positions `[samples, num_q]` move by more than half a turn from a sample to the next."""
    # Most never do, which both ends of all steps tell in a part of the time; what is no number goes on.
    with np.errstate(over="ignore", invalid="ignore"):
        step = np.diff(x, axis=0)
    if not step.size or (step.max() <= TURN / 2 and step.min() >= -TURN / 2):
        return np.zeros(x.shape[1], np.bool_)
    return np.asarray((np.abs(np.diff(within_reach(x), axis=0)) > TURN / 2).any(0))


def _counted(what: str, x: Array) -> tuple[int, Array]:
    """How often positions `[samples]` jump by a turn, and the positions without these jumps."""
    fine = np.flatnonzero(np.isfinite(within_reach(x)))
    near = fine[np.abs(x[fine] - np.median(x[fine])) <= TURN] if len(fine) else fine
    if len(near) <= max(2 * AROUND, MOST * len(fine)):
        return 0, x
    near = near[np.append(True, np.diff(x[near]) != 0)]  # a slower sensor repeats itself
    a, b = x[near[:-1]], x[near[1:]]
    turns = np.rint((b - a) / TURN)
    left = np.abs(b - a - TURN * turns)
    at = np.flatnonzero(turns)
    beside = np.clip(at[:, None] + np.arange(-AROUND, AROUND + 1), 0, len(left) - 1)
    # A little more, for rounding of numbers in a file.
    usual = np.median(left[beside], axis=1) + 1e-6
    jumps = left[at] <= LARGER * usual
    if not jumps.any():
        return 0, x
    middle = (a + b)[at] / 2
    place, slack = np.median(middle[jumps]), LARGER * usual
    if np.mean(np.abs(x[fine] - place) <= TURN / 2 + slack.max()) < MOST:
        return 0, x
    if (step := float(np.median(usual[jumps]))) > COUNTED:
        raise FitError(
            f"{what} are kept within a turn, and move by {step:.3g} rad from sample to sample.",
            "From so far apart nobody tells how often it turned, and which way.",
            "Log more often, or the turns as well: positions that go on beyond a turn.",
        )
    at = at[jumps & (np.abs(middle - place) <= slack)]
    return len(at), _without(x, near[at + 1], turns[at])


def _without(x: Array, at: NDArray[np.intp], turns: Array) -> Array:
    """Positions less so many turns from each of some samples on."""
    shift = np.zeros_like(x)
    shift[at] = turns
    return x - TURN * np.cumsum(shift)
