"""Checks of the numbers and names that users pass to the builder of robots."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

from torchsko.errors import MechanismError
from torchsko.mechanism.description import Matrix, Vector


def checked_name(name: Any, what: str) -> str:
    """A name, refused if it is not a string."""
    if not isinstance(name, str):
        raise MechanismError(
            f"the name of a {what} is {name!r}, which is not a string.",
            advice=f"Pass {str(name)!r}.",
        )
    return name


def checked_number(value: Any, what: str) -> float:
    """A finite or infinite number as a float."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise MechanismError(
            f"the {what} is {value!r}.",
            "It has to be a number in SI units.",
            "Pass 0.5, say.",
        ) from None


def checked_vector(values: Sequence[float], what: str) -> Vector:
    """Three numbers."""
    x, y, z = (checked_number(value, what) for value in _three(values, what))
    return x, y, z


def checked_matrix(rows: Sequence[Sequence[float]], what: str) -> Matrix:
    """Three rows of three numbers."""
    rows = _three(rows, what)
    if not any(isinstance(row, Sized) and getattr(row, "ndim", 1) for row in rows):
        raise MechanismError(
            f"the {what} is a row of numbers.",
            "It has to be a 3 x 3 matrix.",
            "Pass [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]].",
        )
    x, y, z = (checked_vector(row, f"row of the {what}") for row in rows)
    return x, y, z


def _three(values: Sequence[Any], what: str) -> Sequence[Any]:
    count = len(values) if isinstance(values, Sized) else 1
    if count != 3:
        raise MechanismError(
            f"the {what} has {count} components.",
            "It has to have three.",
            "Pass three numbers, or three rows of three.",
        )
    return values
