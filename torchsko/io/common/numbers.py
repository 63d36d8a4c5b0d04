"""Numbers of a robot file: strict decimals, clean rotations, unit axes; and arrays as tuples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from torchsko.errors import RobotFileError
from torchsko.mechanism.description import Matrix, Vector

# Python's float() also takes "1_0", digits of other scripts and "infinity"; files mean none.
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)


def number(text: str, where: str) -> float:
    """A finite decimal number.

    Args:
        text: as written.
        where: the element and attribute, for the message.

    Raises:
        RobotFileError: not a number, or not finite.
    """
    word = text.strip()
    value = float(word) if is_decimal(word) else math.nan
    if math.isfinite(value):
        return value
    if math.isinf(value) or _NOT_FINITE.fullmatch(word):
        raise RobotFileError(
            f"{where} is {word!r}, which is not finite.",
            "One such number spreads to every torque and acceleration.",
            "Write a finite number, or leave out an optional attribute.",
        )
    raise RobotFileError(not_a_number(text, where))


def is_decimal(word: str) -> bool:
    """Whether a word is a decimal number."""
    return bool(_DECIMAL.fullmatch(word))


def not_a_number(text: str, where: str) -> str:
    """Message that an attribute holds no number."""
    return (
        f"{where} is {text!r}, which is not a number.\n"
        "Numbers are decimal, such as 0.25, -1 or 3e-4.\n"
        "Correct that attribute."
    )


def extent(x: float, where: str) -> float:
    """A length of a shape, which is not negative.

    Raises:
        RobotFileError: it is.
    """
    if x < 0:
        raise RobotFileError(
            f"{where}: a length is {x}, which is negative.",
            "No shape has such a size.",
            "Write zero or a positive number.",
        )
    return x


def vector(text: str, where: str) -> Vector:
    """Three finite decimal numbers, parted by white space.

    Raises:
        RobotFileError: not three, or one of them not a finite number.
    """
    words = text.split()
    if len(words) != 3:
        raise RobotFileError(
            f"{where} is {text!r}: {len(words)} numbers instead of 3.",
            "A vector is three numbers parted by spaces.",
            'Write, for example, "0 0 1".',
        )
    x, y, z = (number(word, where) for word in words)
    return (x, y, z)


def as_vector(x: Iterable[float]) -> Vector:
    """Three numbers of an array as floats."""
    a, b, c = map(float, x)
    return a, b, c


def as_matrix(x: Iterable[Iterable[float]]) -> Matrix:
    """Three rows of an array as floats."""
    a, b, c = map(as_vector, x)
    return a, b, c


def clean(value: float) -> float:
    """A cosine or sine, with values within 1e-14 of 0 and +-1 made exact.

    cos(pi/2) in floating point is 6e-17. Rotations by multiples of pi/2 are nearly all rotations in
    real files; exact zeros in them let later stages drop terms.
    """
    nearest = round(value)
    return float(nearest) if abs(value - nearest) <= 1e-14 else value


def rotation_from_rpy(rpy: Vector) -> Matrix:
    """The rotation of fixed-axis roll, pitch, yaw: ``R = Rz(yaw) Ry(pitch) Rx(roll)``.

    Args:
        rpy: angles about the fixed x, y and z axes [rad].

    Returns:
        The matrix that takes coordinates in the rotated frame to coordinates in the fixed one.
    """
    cr, cp, cy = (clean(math.cos(angle)) for angle in rpy)
    sr, sp, sy = (clean(math.sin(angle)) for angle in rpy)
    return (
        (clean(cy * cp), clean(cy * sp * sr - sy * cr), clean(cy * sp * cr + sy * sr)),
        (clean(sy * cp), clean(sy * sp * sr + cy * cr), clean(sy * sp * cr - cy * sr)),
        (clean(-sp), clean(cp * sr), clean(cp * cr)),
    )


def unit(axis: Vector, where: str) -> Vector:
    """The axis at length one.

    Raises:
        RobotFileError: the axis is zero.
    """
    # Scaled first, so that neither tiny nor huge components under- or overflow.
    largest = max(abs(x) for x in axis)
    if largest < 1e-12:
        raise RobotFileError(
            f"{where} is zero: {axis}.",
            "An axis of length zero has no direction to move along.",
            'Write the direction of motion in the joint frame, for example xyz="0 0 1".',
        )
    scaled = [x / largest for x in axis]
    length = math.hypot(*scaled)
    x, y, z = (clean(s / length) for s in scaled)
    return (x, y, z)
