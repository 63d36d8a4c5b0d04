"""Data of a robot file besides its dynamics: initial configuration, named states and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.mechanism.description import IDENTITY, ZERO, Matrix, Vector

FrameName = str | None
"""Name of a frame, or None for the inertial frame."""

Map = Callable[[Tensor], Tensor]

Place = Sequence[Sequence[Any]]
"""Rotation and position [m], as nested sequences."""


@dataclass(frozen=True, eq=False)
class Keyframe:
    """A state that a file names.

    Attributes:
        name: of it, made up where the file has none.
        time: [s].
        q: configuration, `[num_q]`; joints that follow others are where these put them.
        qd: velocity, `[num_dof]`.
        activation: of actuators, `[len(activation_names)]`.
        ctrl: controls, `[len(control_names)]`.
        activation_names: of the actuators whose activations these are, in the order of the file.
        control_names: of the actuators whose controls these are; see `torchsko.Actuators.at_keyframe`.
    """

    name: str
    time: float
    q: Tensor
    qd: Tensor
    activation: Tensor
    ctrl: Tensor
    activation_names: tuple[str, ...] = ()
    control_names: tuple[str, ...] = ()

    def to(self, target: torch.device | torch.dtype) -> Keyframe:
        """The same on another device, or in another floating-point type."""
        names = ("q", "qd", "activation", "ctrl")
        return replace(self, **{name: getattr(self, name).to(target) for name in names})


@dataclass(frozen=True)
class Closure:
    """A loop: two frames that are held together where each carries a point. Nothing enforces it yet.

    Attributes:
        name: of it, made up where the file has none.
        kind: "connect" where the points coincide, "weld" where their frames do not turn either; or the type
            of the joint that closes the loop.
        frame1: that carries the first point.
        frame2: that carries the second.
        position1: of the point in the first frame [m].
        position2: of the point in the second frame [m].
        rotation: takes coordinates of the second frame to those of the first where the loop is closed.
        active: whether it holds at the start.
        solref: of MuJoCo's soft constraint: time constant [s] and damping ratio; or stiffness and damping.
        solimp: of the same: its impedance.
    """

    name: str
    kind: str
    frame1: FrameName
    frame2: FrameName
    position1: Vector = ZERO
    position2: Vector = ZERO
    rotation: Matrix = IDENTITY
    active: bool = True
    solref: tuple[float, ...] = ()
    solimp: tuple[float, ...] = ()


@dataclass(frozen=True)
class FileMetadata:
    """Data of a robot file besides its dynamics.

    Attributes:
        keyframes: named states.
        closures: loops.
        initial: configuration in which the file puts the robot, `[num_q]`; None: the neutral one.
    """

    keyframes: tuple[Keyframe, ...] = ()
    closures: tuple[Closure, ...] = ()
    initial: Tensor | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        counts = f"{len(self.keyframes)} keyframes, {len(self.closures)} closures"
        return f"FileMetadata({counts})"

    def to(self, target: torch.device | torch.dtype) -> FileMetadata:
        """The same on another device, or in another floating-point type."""
        start = None if self.initial is None else self.initial.to(target)
        return replace(
            self, keyframes=tuple(key.to(target) for key in self.keyframes), initial=start
        )

    def map_states(self, q: Map, qd: Map) -> FileMetadata:
        """Apply maps of configurations and of velocities to each state."""
        keys = (replace(key, q=q(key.q), qd=qd(key.qd)) for key in self.keyframes)
        return replace(
            self, keyframes=tuple(keys), initial=None if self.initial is None else q(self.initial)
        )

    def merge_loops(
        self, other: FileMetadata, prefix: str, on: str, place: Place | None
    ) -> FileMetadata:
        """The loops of two robots as one; named states say too little then, and starts are not known here.

        Args:
            other: of the second robot.
            prefix: before its names.
            on: the frame that stands for its inertial frame.
            place: rotation and position of that in `on`; None where it has many, and its loops to it go.
        """
        R, r = (np.eye(3), np.zeros(3)) if place is None else map(np.array, place)
        closures = [
            _appended(c, prefix, on, R, r)
            for c in other.closures
            if place is not None or None not in (c.frame1, c.frame2)
        ]
        return FileMetadata(closures=(*self.closures, *closures))


def _appended(c: Closure, prefix: str, on: str, R: np.ndarray, r: np.ndarray) -> Closure:
    """A loop whose inertial frame is placed at (R, r) on a frame."""
    changes: dict[str, Any] = {"name": prefix + c.name}
    turn = np.array(c.rotation)
    for end in ("1", "2"):
        frame, position = getattr(c, f"frame{end}"), getattr(c, f"position{end}")
        changes[f"frame{end}"] = on if frame is None else prefix + frame
        if frame is None:
            changes[f"position{end}"] = tuple((R @ position + r).tolist())
            turn = R @ turn if end == "1" else turn @ R.T
    return replace(c, **changes, rotation=tuple(map(tuple, turn.tolist())))


NO_FILE_METADATA = FileMetadata()
