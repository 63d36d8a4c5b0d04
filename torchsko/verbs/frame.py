"""Frames: by name, or with a placement relative to a named frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.placement import check_position, check_rotation
from torchsko.mechanism.state import shared_batch
from torchsko.mechanism.validation import check_placement
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import concatenate, matvec


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
        for name, shape in (("rotation", (3, 3)), ("position", (3,))):
            x, what = getattr(frame, name), f"{name} of {one} on {frame.body!r}"
            batches[f"the {what}"] = check_placement(mech, what, x, shape)
    shared_batch(batches)
    turns, shifts, bodies = [], [], []
    for frame in own:
        k = mech.frame_index(frame.body)
        R, r = mech.frame_rotation[..., k, :, :], mech.frame_position[..., k, :]
        if frame.position is not None:
            r = r + matvec(R, frame.position)
        R = R if frame.rotation is None else R @ frame.rotation
        turns.append(R[..., None, :, :])
        shifts.append(r[..., None, :])
        bodies.append(mech.frame_body[k])
    changes: dict[str, Any] = {
        "frame_rotation": concatenate([mech.frame_rotation, *turns], -3),
        "frame_position": concatenate([mech.frame_position, *shifts], -2),
        "frame_names": mech.frame_names + tuple(f"<frame {i}>" for i in range(len(own))),
        "frame_body": mech.frame_body + tuple(bodies),
    }
    names = (field.name for field in fields(mech))
    return Mechanism(**{name: changes.get(name, getattr(mech, name)) for name in names})
