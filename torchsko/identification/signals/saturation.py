"""Saturation: forces at the effort limit of a robot file, or clipped at the limit of a drive."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

MIN_PLATEAU = 3
"""Shortest run of samples at the extreme value that counts as a plateau, and smallest number of plateaus."""

MIN_PEAK_RATIO = 8
"""Smallest ratio of samples at the extreme value to samples at the next value.

The peaks of a quantized signal that is not clipped have a ratio of about two.
"""


SATURATED_SHARE = 0.999
"""Force over the effort limit of a joint from which on it counts as saturated."""

MAX_LIMIT_RATIO = 1.05
"""Force over the effort limit up to which it may be noise of a saturated force."""

MIN_SHARE_ABOVE = 0.01
"""Share of larger forces from which on the effort limit is not that of the drive."""


def at_effort_limit(force: Array, effort_limit: Array) -> NDArray[np.bool_]:
    """Mark forces at the effort limits of a robot file.

    Files often state another limit than that at which a drive saturates, such as a continuous torque. A joint
    whose forces clearly exceed its limit has no marks.

    Args:
        force: `[num_dof, samples]`.
        effort_limit: `[num_dof]`.
    """
    size, limit = np.abs(force), effort_limit[:, None]
    with np.errstate(invalid="ignore"):  # missing forces are nan
        above = (size > MAX_LIMIT_RATIO * limit).mean(1, keepdims=True)
        return np.asarray((size >= SATURATED_SHARE * limit) & (above < MIN_SHARE_ABOVE))


def saturation_limits(x: Array) -> Array:
    """Find the values at which signals are clipped, by plateaus at their extremes.

    Args:
        x: `[samples, signals]`.

    Returns:
        Lower and upper limits, `[2, signals]`; infinite where a signal is not clipped.
    """
    limits = np.stack([np.full(x.shape[1], -np.inf), np.full(x.shape[1], np.inf)])
    for j, row in enumerate(x.T):
        finite = row[np.isfinite(row)]
        for side, (extreme, initial) in enumerate(((np.min, np.inf), (np.max, -np.inf))):
            top = extreme(finite, initial=initial)
            at = np.flatnonzero(finite == top)
            # Most signals reach their extreme once, and have no plateau.
            runs = np.diff(np.append(np.flatnonzero(np.diff(at, prepend=-2) > 1), len(at)))
            # Zero is no limit of a drive: a flying base or a lifted foot has zero force.
            if top and (runs >= MIN_PLATEAU).sum() >= MIN_PLATEAU and len(at) < len(finite):
                others = np.delete(finite, at)
                # The longest plateau may be a robot at rest.
                clipped = runs.sum() - runs.max()
                if clipped >= MIN_PEAK_RATIO * (others == extreme(others)).sum():
                    limits[side, j] = top
    return limits
