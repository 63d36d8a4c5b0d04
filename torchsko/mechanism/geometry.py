"""Shapes of a robot: what it looks like and what may touch, kept as plain data.

No verb reads them. A shape stands on a frame by name, so joints may be locked, bodies merged and parameters
replaced without touching it. Meshes of a URDF file are paths, which nothing reads until they are drawn
(`torchsko.io.common.meshes`); those of a compiled MuJoCo model are triangles already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchsko.mechanism.description import IDENTITY, ZERO, Matrix, Vector

if TYPE_CHECKING:
    import numpy as np

Colour = tuple[float, float, float, float]
"""Red, green, blue and opacity, 0 to 1."""


@dataclass(frozen=True)
class Box:
    """A cuboid about its origin; `size`: its edges [m]."""

    size: Vector


@dataclass(frozen=True)
class Sphere:
    """A ball; `radius` [m]."""

    radius: float


@dataclass(frozen=True)
class Cylinder:
    """A cylinder about z; `radius` and `length` [m]."""

    radius: float
    length: float


@dataclass(frozen=True)
class Capsule:
    """A cylinder about z with two half balls; `length` [m] without them."""

    radius: float
    length: float


@dataclass(frozen=True)
class Ellipsoid:
    """An ellipsoid; `radii` along x, y and z [m]."""

    radii: Vector


@dataclass(frozen=True)
class Plane:
    """A plane through the origin, z its normal; `size`: its edges as drawn [m], 0 where it has no end."""

    size: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, eq=False)
class HeightField:
    """Heights over a rectangle about the origin.

    Attributes:
        size: edges along x and y [m].
        heights: `[rows along y, columns along x]` [m].
    """

    size: tuple[float, float]
    heights: np.ndarray


@dataclass(frozen=True, eq=False)
class Triangles:
    """A surface of triangles.

    Attributes:
        vertices: `[n, 3]` [m].
        faces: numbers of their corners, `[m, 3]`.
    """

    vertices: np.ndarray
    faces: np.ndarray


@dataclass(frozen=True)
class Mesh:
    """A file of triangles that has not been read.

    Attributes:
        path: as the robot file writes it.
        scale: along x, y and z.
        home: folder of the robot file; None where it was text.
        search: folders that the user named; nothing is read outside of these and of `home`.
    """

    path: str
    scale: Vector = (1.0, 1.0, 1.0)
    home: str | None = None
    search: tuple[str, ...] = ()


Form = Box | Sphere | Cylinder | Capsule | Ellipsoid | Plane | HeightField | Triangles | Mesh


@dataclass(frozen=True)
class Surface:
    """How a shape touches: MuJoCo's numbers of a geom, by its names.

    Attributes:
        contype: bits that it has; it touches whose `conaffinity` has one of them.
        conaffinity: bits that it touches.
        condim: dimensions of a contact's force: 1, 3, 4 or 6.
        priority: whose numbers count where two touch; equal ones are mixed.
        friction: sliding; torsional [m]; rolling [m].
        solmix: weight in the mixing.
        solref: two numbers of the reference motion.
        solimp: five numbers of the impedance.
        margin: distance from which on a contact exists [m].
        gap: part of it without force [m].
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


@dataclass(frozen=True)
class Shape:
    """A form at a place on a frame.

    Attributes:
        form: what it is.
        frame: name of the frame that carries it; None: the inertial frame.
        rotation: takes coordinates of the form to those of the frame.
        position: origin of the form in the frame [m].
        visual: whether it is meant to be seen.
        collision: whether it is meant to touch.
        colour: None where nothing says.
        name: empty where the file has none.
        group: MuJoCo's number for what is shown together.
        surface: how it touches; None where the file does not say.
    """

    form: Form
    frame: str | None = None
    rotation: Matrix = IDENTITY
    position: Vector = ZERO
    visual: bool = True
    collision: bool = False
    colour: Colour | None = None
    name: str = ""
    group: int = 0
    surface: Surface | None = None


@dataclass(frozen=True)
class Pair:
    """Two shapes that touch whatever their bits say, by number, and how.

    Attributes:
        first: number of a shape.
        second: number of the other.
        surface: of this contact.
    """

    first: int
    second: int
    surface: Surface


@dataclass(frozen=True)
class Geometry:
    """All shapes of a mechanism.

    Attributes:
        shapes: in file order.
        pairs: which touch by name.
        excluded: pairs of frames whose shapes never touch; None: the inertial frame.
    """

    shapes: tuple[Shape, ...] = ()
    pairs: tuple[Pair, ...] = ()
    excluded: tuple[tuple[str | None, str | None], ...] = ()

    def __repr__(self) -> str:
        seen, touching = (
            sum(getattr(shape, kind) for shape in self.shapes) for kind in ("visual", "collision")
        )
        return f"Geometry({len(self.shapes)} shapes: {seen} visual, {touching} for collision)"

    @property
    def visual(self) -> tuple[Shape, ...]:
        """The shapes that are meant to be seen."""
        return tuple(shape for shape in self.shapes if shape.visual)

    @property
    def collision(self) -> tuple[Shape, ...]:
        """The shapes that are meant to touch."""
        return tuple(shape for shape in self.shapes if shape.collision)


NO_SHAPES = Geometry()
"""Of a robot without shapes."""


def joined(first: Geometry, second: Geometry, prefix: str, on: str, place: Any) -> Geometry:
    """The shapes of one mechanism with those of another on a frame of it.

    Args:
        first: of the one.
        second: of the other.
        prefix: before the names of the other's frames.
        on: the frame that stands for the other's inertial frame.
        place: rotation and position of the other's inertial frame in `on`, as nested sequences; not
            read where nothing stands on that.
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
            **({} if shape.frame is not None else _moved(shape, *place)),
        )
        for shape in second.shapes
    )
    pairs = tuple(
        replace(pair, first=count + pair.first, second=count + pair.second) for pair in second.pairs
    )
    excluded = tuple((named(a), named(b)) for a, b in second.excluded)
    return Geometry(first.shapes + moved, first.pairs + pairs, first.excluded + excluded)


def _moved(shape: Shape, R: Sequence[Sequence[float]], r: Sequence[float]) -> dict[str, Any]:
    """The placement of a shape, seen from a frame in which its own is at (R, r)."""
    columns = list(zip(*shape.rotation, strict=True))
    return {
        "rotation": tuple(tuple(_dot(row, column) for column in columns) for row in R),
        "position": tuple(x + _dot(row, shape.position) for row, x in zip(R, r, strict=True)),
    }


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
