"""Checks of rotations and positions given as tensors, if their values can be read cheaply."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchsko.errors import MechanismError
from torchsko.utils.concrete_values import concrete_values

ROTATION_SLACK = 1e-5
"""Largest entry of R R* - 1 accepted: files print about six digits."""

MAX_CHECKED_ENTRIES = 1000
"""Most entries that are checked: about 40 microseconds, which a training loop can afford."""


def check_rotation(what: str, R: Any, most: int = MAX_CHECKED_ENTRIES) -> None:
    """Refuse matrices that are not rotations.

    Traced or batched tensors, tensors on another device, and tensors with more than `most` entries are not
    checked.

    Args:
        what: name of R for the message.
        R: rotations, `[*batch, 3, 3]`; other shapes and types are ignored.
        most: largest number of entries that is checked.

    Raises:
        MechanismError: when a matrix is not a rotation.
    """
    rows = concrete_values(R, most)
    if rows is None or rows.shape[-2:] != (3, 3) or are_rotations(rows):
        return
    raise MechanismError(
        f"the {what} is not a rotation.",
        "The columns of a rotation are orthonormal and right-handed.",
        "Correct the matrix, or leave it out.",
    )


def check_position(what: str, r: Any, most: int = MAX_CHECKED_ENTRIES) -> None:
    """Refuse positions that are not finite, under the conditions of `check_rotation`.

    Raises:
        MechanismError: when a position is not finite.
    """
    values = concrete_values(r, most)
    if values is not None and not np.isfinite(values).all():
        raise MechanismError(
            f"the {what} is not finite.",
            "Parameters of a robot are finite numbers.",
            "Correct the position [m].",
        )


def are_rotations(rows: np.ndarray) -> bool:
    """True if all matrices `[*, 3, 3]` are rotations."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.einsum("...ij,...kj->...ik", rows, rows) - np.eye(3)
    fits = np.abs(error).max(initial=0.0) <= ROTATION_SLACK  # nan compares as false
    return bool(fits and (np.linalg.det(rows) > 0).all())
