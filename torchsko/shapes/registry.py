"""Kinds of shapes, and the functions of the pairs that have contact."""

from __future__ import annotations

from torchsko.shapes.box import Box
from torchsko.shapes.capsule import Capsule
from torchsko.shapes.cylinder import Cylinder
from torchsko.shapes.ellipsoid import Ellipsoid
from torchsko.shapes.form import Collision, Form
from torchsko.shapes.height_field import HeightField
from torchsko.shapes.mesh import Triangles
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere

SHAPES: tuple[type[Form], ...] = (
    Plane,
    HeightField,
    Sphere,
    Capsule,
    Ellipsoid,
    Cylinder,
    Box,
    Triangles,
)
"""Shapes with contact, in the order in which MuJoCo sorts the two shapes of a pair."""

KINDS = tuple(shape.kind for shape in SHAPES)
"""Kinds of these shapes."""

FIXED_KINDS = tuple(shape.kind for shape in SHAPES if shape.is_fixed)
"""Kinds that do not collide with one another."""

COLLISIONS: dict[tuple[str, str], Collision] = {
    (first, shape.kind): collision for shape in SHAPES for first, collision in shape.pairs.items()
}
"""Contact of two kinds, the earlier one first."""


def collides(first: str, second: str) -> bool:
    """True if two kinds have contact."""
    return (first, second) in COLLISIONS or (second, first) in COLLISIONS
