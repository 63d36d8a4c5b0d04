"""Shapes of the links of a URDF or SDF file; meshes are not read.

An invalid shape is left out and reported as a fault, since it does not affect the dynamics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torchsko.errors import RobotFileError
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import Matrix, Vector
from torchsko.mechanism.geometry import Color, Geometry, Shape
from torchsko.shapes.form import Form

ONES: Vector = (1.0, 1.0, 1.0)
"""Scale of a mesh without a scale."""


class PlacedForm(NamedTuple):
    """A form, its pose in its link, and its color."""

    form: Form
    rotation: Matrix
    position: Vector
    color: Color | None


def read_link_shapes(
    links: Iterable[tuple[str, Element]],
    read: Callable[[Element, str, str], PlacedForm],
    report: Report,
) -> Geometry:
    """All <visual> and <collision> shapes.

    Args:
        links: names and elements of links.
        read: reads a shape, given its element, its name for messages, and the name of its link.
        report: records invalid shapes as faults.
    """
    shapes = []
    for frame, link in links:
        for child in link.children:
            if child.tag not in ("visual", "collision"):
                continue
            where = f"link {frame!r} <{child.tag}> (line {child.line})"
            try:
                placed = read(child, where, frame)
            except RobotFileError as error:
                report.fault(where, f"left out: {error.what}", error)
                continue
            visual = child.tag == "visual"
            shapes.append(
                Shape(
                    placed.form,
                    frame,
                    placed.rotation,
                    placed.position,
                    visual=visual,
                    collision=not visual,
                    color=placed.color if visual else None,
                    name=child.attributes.get("name", "").strip(),
                )
            )
    return Geometry(tuple(shapes))
