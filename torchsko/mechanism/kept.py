"""What a robot file says besides its dynamics, kept: named states, loops, lists of contact pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.mechanism.description import IDENTITY, ZERO, Matrix, Vector

FrameName = str | None
"""Name of a frame, or None for the inertial frame."""

Map = Callable[[Tensor], Tensor]


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
        control_names: of the actuators whose controls these are; see `torchsko.Actuators.held_at`.
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
        kind: "connect" where the points coincide, "weld" where their frames do not turn either.
        frame1: that carries the first point.
        frame2: that carries the second.
        position1: of the point in the first frame [m].
        position2: of the point in the second frame [m].
        rotation: of a weld, takes coordinates of the second frame to those of the first.
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
class ContactPair:
    """Two shapes that a file lets touch, whatever its masks say. Nothing uses it yet.

    Attributes:
        geom1: name of the one, made up where the file has none.
        geom2: name of the other.
        condim: dimension of the contact: 1 frictionless, 3 sliding, 4 spinning, 6 rolling friction.
        friction: two of sliding [1], one of spinning [m], two of rolling [m].
        solref: see `Closure`.
        solreffriction: the same in the directions of friction.
        solimp: see `Closure`.
        margin: distance at which the contact is found [m].
        gap: of that, what lies before forces act [m].
    """

    geom1: str
    geom2: str
    condim: int
    friction: tuple[float, ...]
    solref: tuple[float, ...]
    solreffriction: tuple[float, ...]
    solimp: tuple[float, ...]
    margin: float
    gap: float


@dataclass(frozen=True)
class Kept:
    """All of it.

    Attributes:
        keyframes: named states.
        closures: loops.
        excluded: pairs of frames whose shapes pass through each other.
        pairs: pairs of shapes that touch.
    """

    keyframes: tuple[Keyframe, ...] = ()
    closures: tuple[Closure, ...] = ()
    excluded: tuple[tuple[FrameName, FrameName], ...] = ()
    pairs: tuple[ContactPair, ...] = ()

    def to(self, target: torch.device | torch.dtype) -> Kept:
        """The same on another device, or in another floating-point type."""
        return replace(self, keyframes=tuple(key.to(target) for key in self.keyframes))

    def mapped(self, q: Map, qd: Map) -> Kept:
        """The same with each state in other coordinates."""
        keys = (replace(key, q=q(key.q), qd=qd(key.qd)) for key in self.keyframes)
        return replace(self, keyframes=tuple(keys))

    def beside(self, other: Kept, prefix: str) -> Kept:
        """Of two robots as one, the names of the second with a prefix; states say too little then."""

        def named(frame: FrameName) -> FrameName:
            return None if frame is None else prefix + frame

        closures = (
            replace(c, name=prefix + c.name, frame1=named(c.frame1), frame2=named(c.frame2))
            for c in other.closures
        )
        pairs = (replace(p, geom1=prefix + p.geom1, geom2=prefix + p.geom2) for p in other.pairs)
        return Kept(
            closures=(*self.closures, *closures),
            excluded=(*self.excluded, *((named(a), named(b)) for a, b in other.excluded)),
            pairs=(*self.pairs, *pairs),
        )


NOTHING_KEPT = Kept()
