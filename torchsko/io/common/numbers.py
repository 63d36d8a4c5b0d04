"""Numbers in robot files: decimals, vectors, axes and rotations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import numpy as np

from torchsko.errors import RobotFileError
from torchsko.mechanism.description import Matrix, Vector

# float() would also accept "1_0", digits of other scripts and "infinity".
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)


def number(text: str, where: str) -> float:
    """Parse a finite decimal number.

    Args:
        text: as written in the file.
        where: element and attribute, for the message.

    Raises:
        RobotFileError: if it is not a number, or not finite.
    """
    word = text.strip()
    value = float(word) if is_decimal(word) else math.nan
    if math.isfinite(value):
        return value
    if math.isinf(value) or _NOT_FINITE.fullmatch(word):
        raise RobotFileError(
            f"{where} is {word!r}, which is not finite.",
            "It would make all torques and accelerations nan.",
            "Write a finite number, or leave out an optional attribute.",
        )
    raise not_a_number(text, where)


def is_decimal(word: str) -> bool:
    """True if a word is a decimal number."""
    return bool(_DECIMAL.fullmatch(word))


def not_a_number(text: str, where: str) -> RobotFileError:
    """The error for an attribute that is not a number."""
    return RobotFileError(
        f"{where} is {text!r}, which is not a number.",
        "Numbers are decimal, such as 0.25, -1 or 3e-4.",
        "Correct that attribute.",
    )


def extent(x: float, where: str) -> float:
    """Check that a length of a shape is not negative.

    Raises:
        RobotFileError: if it is negative.
    """
    if x < 0:
        raise RobotFileError(
            f"{where}: a length is {x}, which is negative.",
            advice="Write zero or a positive number.",
        )
    return x


def vector(text: str, where: str) -> Vector:
    """Parse three finite decimal numbers separated by white space.

    Raises:
        RobotFileError: if they are not three, or one is not a finite number.
    """
    words = text.split()
    if len(words) != 3:
        raise RobotFileError(
            f"{where} is {text!r}: {len(words)} numbers instead of 3.",
            "A vector is three numbers separated by spaces.",
            'Write, for example, "0 0 1".',
        )
    x, y, z = (number(word, where) for word in words)
    return (x, y, z)


def as_vector(x: Iterable[float]) -> Vector:
    """An array of three numbers as a tuple of floats."""
    a, b, c = map(float, x)
    return a, b, c


def as_matrix(x: Iterable[Iterable[float]]) -> Matrix:
    """A 3 x 3 array as nested tuples of floats."""
    a, b, c = map(as_vector, x)
    return a, b, c


def clean(value: float) -> float:
    """Round a cosine or sine within 1e-14 of 0 or +-1 to that value.

    cos(pi/2) in floating point is 6e-17. Nearly all rotations in robot files are multiples of pi/2, and
    exact zeros let later stages drop terms.
    """
    nearest = round(value)
    return float(nearest) if abs(value - nearest) <= 1e-14 else value


def rotation_from_rpy(rpy: Vector) -> Matrix:
    """Rotation matrix of fixed-axis roll, pitch, yaw: ``R = Rz(yaw) Ry(pitch) Rx(roll)``.

    Args:
        rpy: angles about the fixed x, y and z axes [rad].

    Returns:
        The matrix that takes coordinates in the rotated frame to coordinates in the fixed frame.
    """
    cr, cp, cy = (clean(math.cos(angle)) for angle in rpy)
    sr, sp, sy = (clean(math.sin(angle)) for angle in rpy)
    return (
        (clean(cy * cp), clean(cy * sp * sr - sy * cr), clean(cy * sp * cr + sy * sr)),
        (clean(sy * cp), clean(sy * sp * sr + cy * cr), clean(sy * sp * cr - cy * sr)),
        (clean(-sp), clean(cp * sr), clean(cp * cr)),
    )


def quaternion_from_matrix(R: np.ndarray) -> np.ndarray:
    """Unit quaternion w x y z of a rotation matrix, from the largest of its four squares.

    Reference: Shepperd 1978, Quaternion from rotation matrix, J. Guidance and Control 1(3).
    """
    t = np.array([np.trace(R), *np.diag(R)])
    i = int(t.argmax())
    skew = np.array([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
    if i == 0:
        quat = np.array([1 + t[0], *skew])
    else:
        row = R[i - 1] + R[:, i - 1]
        row[i - 1] = 1 + 2 * R[i - 1, i - 1] - t[0]
        quat = np.array([skew[i - 1], *row])
    return quat / np.linalg.norm(quat)


def unit(axis: Vector, where: str) -> Vector:
    """Normalize an axis.

    Raises:
        RobotFileError: if the axis is zero.
    """
    # Scaling first avoids under- and overflow of the squares.
    largest = max(abs(x) for x in axis)
    if largest < 1e-12:
        raise RobotFileError(
            f"{where} is zero: {axis}.",
            "An axis of length zero has no direction.",
            'Write the direction of motion in the joint frame, for example xyz="0 0 1".',
        )
    scaled = [x / largest for x in axis]
    length = math.hypot(*scaled)
    x, y, z = (clean(s / length) for s in scaled)
    return (x, y, z)
