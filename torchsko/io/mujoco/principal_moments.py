"""Principal moments of inertia as MuJoCo takes them: the triangle inequality holds to the last bit."""

from __future__ import annotations

import numpy as np

from torchsko.errors import MechanismError
from torchsko.io.xml.edits import words

ROUNDINGS = 100
"""Of a matrix's entries, in what is found from it."""


def physical(body: str, moments: np.ndarray, eps: float) -> np.ndarray:
    """Principal moments of a body, none larger than the sum of the others.

    Of a flat body one is the sum, which rounding exceeds.

    Args:
        body: its name, for the message.
        moments: `[3]`, in any order [kg m^2].
        eps: relative rounding of the numbers that they were found from.

    Raises:
        MechanismError: one exceeds the sum of the others by more than rounding.
    """
    largest = int(moments.argmax())
    most = float(np.delete(moments, largest).sum())
    if moments[largest] > (1.0 + ROUNDINGS * eps) * most:
        raise MechanismError(
            f"no rigid body has the inertia of {body!r}: principal moments {words(moments)} kg m^2.",
            "The largest exceeds the sum of the others (the triangle inequality), which MuJoCo refuses.",
            "Correct it, mech.replace(inertia=...), or save to URDF.",
        )
    return np.where(np.arange(3) == largest, min(moments[largest], most), moments)
