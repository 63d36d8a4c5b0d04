"""Placement of the markers of constraints in their bodies: of closures, and of frames that are held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchsko.mechanism.description import IDENTITY, ZERO
from torchsko.utils.shapes import concatenate, matvec

if TYPE_CHECKING:
    from torchsko.mechanism.file_data.file_metadata import Closure
    from torchsko.mechanism.numbering import TreeNumbering

Vector = tuple[float, ...]

INERTIAL = -1
"""Index of the inertial frame among frames and bodies."""


class MarkerPlace(NamedTuple):
    """A marker in a frame.

    Attributes:
        frame: index of the frame, or `INERTIAL`.
        rotation: marker to frame coordinates, `[*batch, 3, 3]` or row by row; None for the identity.
        position: origin in the frame, `[*batch, 3]` or its coordinates [m]; None for zero.
    """

    frame: int
    rotation: Tensor | tuple[Vector, ...] | None
    position: Tensor | Vector | None

    def body(self, mech: TreeNumbering) -> int:
        """Body that carries the marker, or `INERTIAL`."""
        return INERTIAL if self.frame == INERTIAL else mech.frame_body[self.frame]


def closure_places(mech: TreeNumbering, closure: Closure) -> tuple[MarkerPlace, MarkerPlace]:
    """Both markers of a closure between frames."""
    turned = tuple(zip(*closure.rotation, strict=True))
    one, two = (
        INERTIAL if frame is None else mech.frame_index(frame)
        for frame in (closure.frame1, closure.frame2)
    )
    return (
        MarkerPlace(one, None, _unless(ZERO, closure.position1)),
        MarkerPlace(two, _unless(IDENTITY, turned), _unless(ZERO, closure.position2)),
    )


def _unless(default: tuple[Any, ...], values: Sequence[Any]) -> tuple[Any, ...] | None:
    """The values; None for the default, which takes no operations."""
    return None if tuple(values) == default else tuple(values)


class Placements(NamedTuple):
    """Numbers of several constraints.

    Attributes:
        rotation: marker to body coordinates, `[*batch, 2 c, 3, 3]` for c constraints between frames; those of
            a constraint follow one another.
        position: origins of the markers in their bodies, `[*batch, 2 c, 3]` [m].
        parameters: numbers of all constraints, one constraint after the other, `[*batch, p]`.
    """

    rotation: Tensor
    position: Tensor
    parameters: Tensor

    @staticmethod
    def of(
        mech: TreeNumbering, places: Sequence[MarkerPlace], parameters: Sequence[float] = ()
    ) -> Placements:
        """Placements in the bodies of a mechanism, with gradients to its frames."""
        like = {"dtype": mech.dtype, "device": mech.device}
        numbers = torch.tensor(list(parameters), **like)
        identity, zero = torch.eye(3, **like), torch.zeros(3, **like)
        if not places:
            return Placements(identity[None][:0], zero[None][:0], numbers)
        rotations, positions = [], []
        for frame, rotation, position in places:
            rotation, position = (
                x if x is None or isinstance(x, Tensor) else torch.tensor(x, **like)
                for x in (rotation, position)
            )
            if frame == INERTIAL:
                R = identity if rotation is None else rotation
                r = zero if position is None else position
            else:
                R = mech.frame_rotation[..., frame, :, :]
                r = mech.frame_position[..., frame, :]
                r = r if position is None else r + matvec(R, position)
                R = R if rotation is None else R @ rotation
            rotations.append(R[..., None, :, :])
            positions.append(r[..., None, :])
        return Placements(concatenate(rotations, -3), concatenate(positions, -2), numbers)
