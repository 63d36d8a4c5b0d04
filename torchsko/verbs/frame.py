"""Frames: by name, or with a placement relative to a named frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.loops.placements import MarkerPlace, Placements
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.placement import check_position, check_rotation
from torchsko.mechanism.state import shared_batch
from torchsko.mechanism.validation import check_placement
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import concatenate


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame with a placement relative to a named one: a tool, a sensor. The placement has gradients.

    Attributes:
        body: name from ``mech.frame_names``.
        rotation: from coordinates of this frame to those of ``body``, `[*batch, 3, 3]`; None for the
            identity.
        position: origin of this frame in ``body``, `[*batch, 3]` [m]; None for zero.

    Raises:
        MechanismError: when the rotation is not orthonormal, or the position not finite.
    """

    body: str
    rotation: Tensor | None = None
    position: Tensor | None = None

    def __post_init__(self) -> None:
        check_rotation(f"rotation of a frame on {self.body!r}", self.rotation)
        check_position(f"position of a frame on {self.body!r}", self.position)

    def __repr__(self) -> str:
        # Error texts may be built while tracing; printing a tensor must not become part of a kernel.
        given = {"rotation": self.rotation, "position": self.position}
        placed = [f"{name}={_placement_text(x)}" for name, x in given.items() if x is not None]
        return f"Frame({', '.join([repr(self.body), *placed])})"


def _placement_text(x: Any) -> str:
    """The values of a single placement if they can be read, else its shape."""
    values = concrete_values(x, 9)
    if values is None:
        return f"{list(x.shape)}" if isinstance(x, Tensor) else f"{x!r}"
    return f"{values.round(6).tolist()}"


Frames = str | Frame | Sequence[str | Frame]
"""Names from ``mech.frame_names`` or `Frame` objects, one or several."""


def with_frames(
    mech: Mechanism, frames: Frames, **states: Tensor
) -> tuple[Mechanism, tuple[int, ...]]:
    """The mechanism with the placed frames added, and the indices of the requested frames.

    Args:
        mech: the mechanism.
        frames: names from ``mech.frame_names``, `Frame` of your own, or one of these; one at least.
        **states: by name; placements have to broadcast with them.

    Raises:
        MechanismError: on an unknown frame, or none.
        ShapeError: when a placement does not fit, or its batch dimensions.
    """
    several = listed(frames)
    for frame in several:
        if not isinstance(frame, str | Frame):
            raise MechanismError(
                f"frames holds {frame!r}.",
                "A frame is a name of mech.frame_names, or a Frame on one of them.",
                f"Pass {mech.frame_names[-1]!r}, say, or a list of such names.",
            )
    if not several:
        raise MechanismError(
            f"frames={frames!r} names no frames.",
            "There is nothing to compute.",
            f"Pass {mech.frame_names[-1]!r}, or a list of such names.",
        )
    own = [frame for frame in several if isinstance(frame, Frame)]
    numbers, count = [], mech.num_frames
    for frame in several:
        if isinstance(frame, Frame):
            numbers.append(count)
            count += 1
        else:
            numbers.append(mech.frame_index(frame))
    return (_joined(mech, own, states) if own else mech), tuple(numbers)


def listed(frames: Any) -> tuple[Any, ...]:
    """Frames as a tuple."""
    if isinstance(frames, str | Frame) or not isinstance(frames, Iterable):
        return (frames,)
    return tuple(frames)


def _joined(mech: Mechanism, own: Sequence[Frame], states: Mapping[str, Tensor]) -> Mechanism:
    """The mechanism with added frames, batch dimensions checked against the states."""
    batches: dict[str, Sequence[int]] = {name: x.shape[:-1] for name, x in states.items()}
    batches = {"the mechanism": mech.batch_shape} | batches
    for i, frame in enumerate(own):
        one = "a frame" if len(own) == 1 else f"Frame {i}"
        batches |= check_frame(mech, frame, one)
    shared_batch(batches)
    placed = Placements.of(mech, [place_of(mech, frame) for frame in own])
    bodies = [mech.frame_body[mech.frame_index(frame.body)] for frame in own]
    return add_frames(mech, bodies, placed.rotation, placed.position)


def check_frame(mech: Mechanism, frame: Frame, one: str = "a frame") -> dict[str, Sequence[int]]:
    """Batch dimensions of the rotation and the position of a frame, by name.

    Raises:
        ShapeError: when their shape, dtype or device does not fit the mechanism.
    """
    batches: dict[str, Sequence[int]] = {}
    for name, shape in (("rotation", (3, 3)), ("position", (3,))):
        what = f"{name} of {one} on {frame.body!r}"
        batches[f"the {what}"] = check_placement(mech, what, getattr(frame, name), shape)
    return batches


def place_of(mech: Mechanism, frame: str | Frame) -> MarkerPlace:
    """A frame as a marker."""
    if isinstance(frame, Frame):
        return MarkerPlace(mech.frame_index(frame.body), frame.rotation, frame.position)
    return MarkerPlace(mech.frame_index(frame), None, None)


def add_frames(
    mech: Mechanism, bodies: Sequence[int], rotation: Tensor, position: Tensor
) -> Mechanism:
    """The mechanism with further frames, at the end.

    Args:
        mech: the mechanism.
        bodies: that carry the frames.
        rotation: frame to body coordinates, `[*batch, n, 3, 3]`.
        position: origins in the bodies, `[*batch, n, 3]` [m].
    """
    changes: dict[str, Any] = {
        "frame_rotation": concatenate([mech.frame_rotation, rotation], -3),
        "frame_position": concatenate([mech.frame_position, position], -2),
        "frame_names": mech.frame_names + tuple(f"<frame {i}>" for i in range(len(bodies))),
        "frame_body": mech.frame_body + tuple(bodies),
    }
    names = (field.name for field in fields(mech))
    return Mechanism(**{name: changes.get(name, getattr(mech, name)) for name in names})
