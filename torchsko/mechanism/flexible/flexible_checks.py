"""Checks of the arrays of flexible bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchsko.errors import MechanismError
from torchsko.mechanism.flexible.beam_shapes import Array

ROUNDING = 1e-10
"""Relative size below which a singular value, an eigenvalue or an asymmetry is rounding."""

SLACK = 0.2
"""Largest distance of a marker from the box of the points, relative to its size: mass points stand inside."""


def checked_array(value: Any, name: str, shape: tuple[int, ...]) -> Array:
    """An array of this shape; zero, or the identity of a rotation, for None."""
    if value is None:
        return np.eye(3) if name.startswith("rotation") else np.zeros(shape)
    array = np.array(value, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise MechanismError(
            f"{name} of a flexible body has shape {list(array.shape)}, or is not finite.",
            "Its size follows from the numbers of points and shapes.",
            f"Pass finite numbers of shape {list(shape)}.",
        )
    return array


def refuse_indefinite(name: str, matrix: Array) -> None:
    """Refuse a matrix that is not symmetric and positive semidefinite.

    Raises:
        MechanismError: names the matrix and its eigenvalue.
    """
    refuse_asymmetry(name, matrix)
    scale = np.abs(matrix).max()
    least = np.linalg.eigvalsh(matrix).min()
    if least < -ROUNDING * scale:
        raise MechanismError(
            f"the {name} of a flexible body has the eigenvalue {least:.3g}.",
            f"A {name} matrix is positive semidefinite: deformation stores and dissipates energy.",
            "Correct the matrix; a sign error is a common cause.",
        )


def refuse_asymmetry(name: str, matrix: Array) -> None:
    """Refuse a matrix that is not symmetric.

    Raises:
        MechanismError: names the matrix.
    """
    scale = np.abs(matrix).max()
    asymmetry = np.abs(matrix - matrix.T).max()
    if asymmetry > ROUNDING * scale:
        raise MechanismError(
            f"the {name} of a flexible body is not symmetric: entries differ by {asymmetry:.3g}.",
            f"The {name} matrix of modal coordinates is symmetric.",
            f"Pass ({name} + {name}.T) / 2 if the difference is rounding.",
        )


def refuse_beam(
    length: float, density: float, stiffness: Mapping[str, float], counts: Sequence[int], basis: str
) -> None:
    """Refuse an unknown basis, and numbers that are not positive.

    Raises:
        MechanismError: names the number.
    """
    if basis not in ("static", "clamped"):
        raise MechanismError(
            f"a beam has the basis {basis!r}.", "There are two.", 'Pass "static" or "clamped".'
        )
    needed = {"length": length, "density": density}
    needed |= {name: x for (name, x), n in zip(stiffness.items(), counts, strict=True) if n}
    for name, value in needed.items():
        if not 0 < value < np.inf:
            raise MechanismError(
                f"a beam has {name} = {value}.",
                "Length, density and the stiffness of each kind of shape are positive.",
                f"Pass a positive {name}, or no shapes of this kind.",
            )


def refuse_dependent_shapes(names: Sequence[str], columns: Array) -> None:
    """Refuse shapes, `[rows, n]`, that are not independent.

    Raises:
        MechanismError: names the rank and the modes whose shapes depend on those before them.
    """
    lengths = np.linalg.norm(columns, axis=0)
    columns = columns / np.where(lengths > 0, lengths, 1.0)
    found, dependent = np.zeros((len(columns), 0)), []
    for name, column in zip(names, columns.T, strict=True):
        left = column - found @ (found.T @ column)
        left = left - found @ (found.T @ left)
        size = np.linalg.norm(left)
        if size < ROUNDING:
            dependent.append(name)
        else:
            found = np.concatenate([found, left[:, None] / size], -1)
    if dependent:
        raise MechanismError(
            f"the shapes of a flexible body have rank {found.shape[1]} of {len(names)}: "
            f"{', '.join(map(repr, dependent))} depend on the shapes before them.",
            "Modal coordinates are independent, so their shapes have to be.",
            f"Leave out {', '.join(map(repr, dependent))}.",
        )


def refuse_marker(name: str, point: Array, corners: Array) -> None:
    """Refuse a marker with the name of a point, or away from the box of all points of its body.

    Raises:
        MechanismError: names the marker and its position.
    """
    if name.isdigit():
        raise MechanismError(
            f"a marker has the name {name!r}.",
            "The mass points of a flexible link have numbers as names.",
            "Pass a name with a letter.",
        )
    low, high = corners.min(0), corners.max(0)
    slack = SLACK * (high - low).max()
    if ((point < low - slack) | (point > high + slack)).any():
        raise MechanismError(
            f"marker {name!r} stands at {point.tolist()}, outside of the flexible body.",
            f"Its points lie between {low.tolist()} and {high.tolist()}.",
            "Pass the position of the marker in the body frame [m].",
        )
