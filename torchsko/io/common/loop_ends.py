"""Closures of robot files from the poses of a loop joint on both links."""

from __future__ import annotations

import numpy as np

from torchsko.io.common.numbers import as_matrix, as_vector
from torchsko.mechanism.description import FIXED, ZERO, JointDescription, LinkDescription
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.welded import WORLD

WITH_AXIS = ("revolute", "prismatic")
"""Kinds whose markers have z along the axis."""

Place = tuple[np.ndarray, np.ndarray]
"""Rotation and position [m] of a loop joint in a link."""

FrameParts = tuple[list[LinkDescription], list[JointDescription]]
"""Massless links and fixed joints, which are frames of the mechanism."""


def loop_closure(
    name: str,
    kind: str,
    links: tuple[str | None, str | None],
    places: tuple[Place, Place],
    axes: np.ndarray | None = None,
) -> tuple[Closure, FrameParts]:
    """The closure of a loop joint, and the frame ``NAME_1`` if it needs one.

    Args:
        name: name of the loop joint.
        kind: kind of constraint.
        links: links of both ends; None for the inertial frame.
        places: poses of the joint in these links when the loop is closed.
        axes: axes of the markers in the joint's frame, columns of a rotation; None for the joint's own.
    """
    (R1, p1), (R2, p2) = places
    turn = np.eye(3) if axes is None else axes
    R1, R2 = R1 @ turn, R2 @ turn
    parts: FrameParts = ([], [])
    first, at = links[0], as_vector(p1)
    if first is None or (axes is not None and not np.array_equal(R1, np.eye(3))):
        marker = f"{name}_1"
        parent = WORLD if first is None else first
        weld = JointDescription(f"{marker}_fixed", FIXED, parent, marker, as_matrix(R1), at)
        parts = [LinkDescription(marker)], [weld]
        first, at, R1 = marker, ZERO, np.eye(3)
    relative = as_matrix(R1 @ R2.T)
    return Closure(name, kind, first, links[1], at, as_vector(p2), relative), parts


def axes_about(axis: np.ndarray) -> np.ndarray:
    """A rotation whose z axis is a unit vector; the identity for z itself."""
    if np.array_equal(axis, (0.0, 0.0, 1.0)):
        return np.eye(3)
    x = np.cross(axis, np.eye(3)[np.abs(axis).argmin()])
    x /= np.linalg.norm(x)
    return np.stack([x, np.cross(axis, x), axis], -1)
