"""Visual and collision shapes of a robot as plain data.

Dynamics ignores shapes. A shape refers to its frame by name, so locking joints and replacing parameters leave
it unchanged. Meshes of a URDF file are paths, which are read for drawing (`torchsko.io.common.meshes`);
meshes of a compiled MuJoCo model are triangles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchsko.mechanism.description import IDENTITY, ZERO, Matrix, Vector
from torchsko.shapes.form import Form

Color = tuple[float, float, float, float]
"""Red, green, blue and opacity, 0 to 1."""


@dataclass(frozen=True)
class Surface:
    """Contact parameters of a shape, with the names of MuJoCo's geom attributes.

    Attributes:
        contype: bit mask; a contact needs a common bit with the other shape's `conaffinity`.
        conaffinity: bit mask for the other shape's `contype`.
        condim: dimension of the contact force: 1, 3, 4 or 6.
        priority: the shape of higher priority sets the contact parameters; equal priorities are mixed.
        friction: sliding [1], torsional [m] and rolling [m] friction coefficients.
        solmix: weight for mixing parameters.
        solref: two reference parameters of the soft constraint.
        solimp: five impedance parameters of the soft constraint.
        margin: distance at which a contact becomes active [m].
        gap: distance beyond the margin at which a simulator still lists contacts, without force [m].
        friction_pair: five friction coefficients of an explicit pair; empty for the three of ``friction``.
        solref_friction: reference parameters of the friction of elliptic cones; zeros for ``solref``.
        invweight: inverse mass and inverse inertia of the body in the initial configuration [1/kg,
            1/(kg m^2)]; empty if they are computed from the mechanism.
    """

    contype: int = 1
    conaffinity: int = 1
    condim: int = 3
    priority: int = 0
    friction: Vector = (1.0, 0.005, 0.0001)
    solmix: float = 1.0
    solref: tuple[float, float] = (0.02, 1.0)
    solimp: tuple[float, ...] = (0.9, 0.95, 0.001, 0.5, 2.0)
    margin: float = 0.0
    gap: float = 0.0
    friction_pair: tuple[float, ...] = ()
    solref_friction: tuple[float, float] = (0.0, 0.0)
    invweight: tuple[float, ...] = ()


@dataclass(frozen=True)
class Shape:
    """A geometric primitive or mesh attached to a frame.

    Attributes:
        form: primitive or mesh.
        frame: name of the frame; None for the inertial frame.
        rotation: from coordinates of the form to those of the frame.
        position: origin of the form in the frame [m].
        visual: whether it is a visual shape.
        collision: whether it is a collision shape.
        color: color; None if the file has none.
        name: name; empty if the file has none.
        group: MuJoCo's visualization group.
        surface: contact parameters; None if the file has none.
    """

    form: Form
    frame: str | None = None
    rotation: Matrix = IDENTITY
    position: Vector = ZERO
    visual: bool = True
    collision: bool = False
    color: Color | None = None
    name: str = ""
    group: int = 0
    surface: Surface | None = None


@dataclass(frozen=True)
class Pair:
    """An explicit contact pair, independent of the shapes' bit masks.

    Attributes:
        first: index of a shape.
        second: index of the other shape.
        surface: contact parameters.
    """

    first: int
    second: int
    surface: Surface


@dataclass(frozen=True)
class Geometry:
    """All shapes of a mechanism.

    Attributes:
        shapes: shapes in file order.
        pairs: explicit contact pairs.
        excluded: pairs of frames without contact; None is the inertial frame.
    """

    shapes: tuple[Shape, ...] = ()
    pairs: tuple[Pair, ...] = ()
    excluded: tuple[tuple[str | None, str | None], ...] = ()

    def __repr__(self) -> str:
        num_visual, num_collision = (
            sum(getattr(shape, kind) for shape in self.shapes) for kind in ("visual", "collision")
        )
        return f"Geometry({len(self.shapes)} shapes: {num_visual} visual, {num_collision} for collision)"

    @property
    def visual(self) -> tuple[Shape, ...]:
        """The visual shapes."""
        return tuple(shape for shape in self.shapes if shape.visual)

    @property
    def collision(self) -> tuple[Shape, ...]:
        """The collision shapes."""
        return tuple(shape for shape in self.shapes if shape.collision)

    def select(self, indices: Sequence[int]) -> Geometry:
        """Some of the shapes, with the contact pairs between them and all excluded pairs of frames."""
        place = {k: n for n, k in enumerate(indices)}
        pairs = tuple(
            replace(pair, first=place[pair.first], second=place[pair.second])
            for pair in self.pairs
            if pair.first in place and pair.second in place
        )
        return Geometry(tuple(self.shapes[k] for k in indices), pairs, self.excluded)

    def without_weights(self) -> Geometry:
        """Copy without the inverse weights of the file, which are then computed from the mechanism."""
        shapes = tuple(
            replace(shape, surface=replace(shape.surface, invweight=()))
            if shape.surface is not None and shape.surface.invweight
            else shape
            for shape in self.shapes
        )
        return replace(self, shapes=shapes)


NO_SHAPES = Geometry()
"""Geometry of a robot without shapes."""


def joined(first: Geometry, second: Geometry, prefix: str, on: str, place: Any) -> Geometry:
    """The shapes of two mechanisms, the second attached to a frame of the first.

    Args:
        first: shapes of the first mechanism.
        second: shapes of the second mechanism.
        prefix: added to frame and shape names of the second.
        on: frame of the first that replaces the second's inertial frame.
        place: rotation and position of that inertial frame in `on`, as nested sequences; only read if a shape
            is fixed to the inertial frame.
    """
    if not second.shapes:
        return first
    count = len(first.shapes)

    def named(frame: str | None) -> str:
        return on if frame is None else prefix + frame

    moved = tuple(
        replace(
            shape,
            frame=named(shape.frame),
            name=prefix + shape.name if shape.name else "",
            **({} if shape.frame is not None else _transformed(shape, *place)),
        )
        for shape in second.shapes
    )
    pairs = tuple(
        replace(pair, first=count + pair.first, second=count + pair.second) for pair in second.pairs
    )
    excluded = tuple((named(a), named(b)) for a, b in second.excluded)
    return Geometry(first.shapes + moved, first.pairs + pairs, first.excluded + excluded)


def _transformed(shape: Shape, R: Sequence[Sequence[float]], r: Sequence[float]) -> dict[str, Any]:
    """Placement of a shape in a frame in which the shape's frame has the pose (R, r)."""
    columns = list(zip(*shape.rotation, strict=True))
    return {
        "rotation": tuple(tuple(_dot(row, column) for column in columns) for row in R),
        "position": tuple(x + _dot(row, shape.position) for row, x in zip(R, r, strict=True)),
    }


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
