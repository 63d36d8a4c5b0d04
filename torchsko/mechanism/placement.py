"""Rotations and positions that users give as tensors, refused where their values are there to be read."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchsko.errors import MechanismError
from torchsko.utils.concrete_values import concrete_values

ROTATION_SLACK = 1e-5
"""Entries of R R* - 1 in a rotation of which six digits were printed."""

MOST_READ = 1000
"""Numbers that are looked at where a training loop may pass: some 40 microseconds, no more."""


def check_rotation(what: str, R: Any, most: int = MOST_READ) -> None:
    """Refuse matrices that are no rotations.

    What is traced, mapped or on a device is not looked at, nor are more than `most` numbers.

    Args:
        what: R in words.
        R: `[*batch, 3, 3]`; of another shape or type it is left to others to refuse.
        most: numbers that are looked at.

    Raises:
        MechanismError: says what to type.
    """
    rows = concrete_values(R, most)
    if rows is None or rows.shape[-2:] != (3, 3) or are_rotations(rows):
        return
    raise MechanismError(
        f"the {what} is no rotation.",
        "The columns of a rotation are orthonormal and right-handed.",
        "Correct the matrix, or leave it out.",
    )


def check_position(what: str, r: Any, most: int = MOST_READ) -> None:
    """Refuse positions that are not finite, as `check_rotation` does rotations.

    Raises:
        MechanismError: says what to type.
    """
    values = concrete_values(r, most)
    if values is not None and not np.isfinite(values).all():
        raise MechanismError(
            f"the {what} is not finite.",
            "Every number of a robot is.",
            "Correct the position [m].",
        )


def are_rotations(rows: np.ndarray) -> bool:
    """Whether all matrices `[*, 3, 3]` are rotations."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.einsum("...ij,...kj->...ik", rows, rows) - np.eye(3)
    fits = np.abs(apart).max(initial=0.0) <= ROTATION_SLACK  # nan compares as false
    return bool(fits and (np.linalg.det(rows) > 0).all())
