"""Frames on flexible bodies, and the motion of points with the modal coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsko.mechanism.flexible.beam_shapes import Array


@dataclass(frozen=True)
class PointMotion:
    """Undeformed positions and shapes of points.

    Attributes:
        points: `[k, 3]`.
        shapes: `[k, 3, n]`.
        slopes: `[k, 3, n]`.
        second_order: `[k, 3, n, n]`.
    """

    points: Array
    shapes: Array
    slopes: Array
    second_order: Array

    @staticmethod
    def still(point: Array, count: int) -> PointMotion:
        """One point that does not move in the body frame."""
        zero = np.zeros((1, 3, count))
        return PointMotion(point[None], zero, zero, np.zeros((1, 3, count, count)))

    def joined(self, other: PointMotion) -> PointMotion:
        """The points of both."""
        mine, theirs = vars(self).values(), vars(other).values()
        return PointMotion(*(np.concatenate(pair) for pair in zip(mine, theirs, strict=True)))

    def relative_to(self, frame: PointMotion, rotation: Array) -> PointMotion:
        """Motion relative to a frame, one point with the rotation `[3, 3]`, in its axes."""
        apart = self.points - frame.points
        shapes = self.shapes - frame.shapes
        turn = np.moveaxis(frame.slopes, -1, 1)  # [1, n, 3]
        swung = np.cross(turn, apart[:, None])  # [k, n, 3]
        once = np.cross(turn[:, :, None], np.moveaxis(shapes, -1, 1)[:, None])  # [k, n, n, 3]
        bent = np.cross(turn[:, :, None], swung[:, None]) / 2 - once
        bent = np.moveaxis(bent + bent.swapaxes(1, 2), -1, 1)
        back = rotation.T
        second = self.second_order - frame.second_order + bent
        return PointMotion(
            apart @ rotation,
            back @ (shapes - np.moveaxis(swung, -1, 1)),
            back @ (self.slopes - frame.slopes),
            np.einsum("ij,kjnm->kinm", back, second),
        )


@dataclass(frozen=True, eq=False)
class Marker:
    """A frame on a flexible body, to which joints attach.

    Attributes:
        point: origin in the body frame, undeformed, `[3]` [m].
        rotation: marker to body coordinates, undeformed, `[3, 3]`; the identity by default.
        shape: displacement of the origin per modal coordinate, `[3, n]`.
        slope: rotation vector of the marker per modal coordinate, in body axes, `[3, n]`; zero by default.
        second_order: second-order shapes of the origin, `[3, n, n]`; zero by default.
    """

    point: Any
    shape: Any
    slope: Any = None
    rotation: Any = None
    second_order: Any = None

    def motion(self) -> PointMotion:
        """Position and shapes as those of one point."""
        parts = (self.point, self.shape, self.slope, self.second_order)
        return PointMotion(*(x[None] for x in parts))
