"""Principal inertias for MJCF, which satisfy the triangle inequality exactly, as MuJoCo requires."""

from __future__ import annotations

import numpy as np
import torch

from torchsko.errors import MechanismError
from torchsko.io.common.numbers import quaternion_from_matrix
from torchsko.io.xml.edits import words
from torchsko.mechanism.description import LinkDescription

SMALLEST_MOMENT = 1e-18
"""Moment of inertia that is rounding [kg m^2]."""

ROUNDING_FACTOR = 100
"""Tolerated violation of the triangle inequality, in units of the relative rounding."""


def principal_inertia(
    body: str, inertia: np.ndarray, eps: float, axes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Principal moments [kg m^2] and the quaternion w x y z of their axes.

    The largest moment of a flat body is the sum of the others; rounding above that is removed.

    Args:
        body: name of the body, for the message.
        inertia: `[3, 3]` about the center of mass [kg m^2].
        eps: relative rounding of the inertia.
        axes: `[3, 3]`, takes coordinates of `inertia` to body coordinates; identity when left out.

    Raises:
        MechanismError: if a moment exceeds the sum of the others by more than rounding.
    """
    frame = np.eye(3) if axes is None else axes
    if np.any(inertia != np.diag(np.diag(inertia))):
        moments, vectors = np.linalg.eigh(inertia)
        frame = frame @ (vectors * np.sign(np.linalg.det(vectors)))
    else:
        moments = np.diag(inertia)
    moments = np.where(np.abs(moments) < SMALLEST_MOMENT, 0.0, moments)
    largest = int(moments.argmax())
    bound = float(np.delete(moments, largest).sum())
    if moments[largest] > (1.0 + ROUNDING_FACTOR * eps) * bound:
        raise MechanismError(
            f"the inertia of {body!r} is unphysical: principal moments {words(moments)} kg m^2.",
            "The largest exceeds the sum of the others (the triangle inequality), which MuJoCo refuses.",
            "Correct it with mech.replace(inertia=...), or save to URDF.",
        )
    moments = np.where(np.arange(3) == largest, min(moments[largest], bound), moments)
    return moments, quaternion_from_matrix(frame)


def is_physical(link: LinkDescription, dtype: torch.dtype) -> bool:
    """True if MuJoCo accepts the inertia of a link."""
    try:
        moments, _ = principal_inertia(link.name, np.array(link.inertia), torch.finfo(dtype).eps)
    except MechanismError:
        return False
    return link.mass >= 0 and bool(moments.min() >= 0)
