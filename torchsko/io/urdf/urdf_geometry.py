"""Shapes of a URDF file: <visual> and <collision> of its links; meshes are not read.

Source of the format: the ROS wiki's page urdf/XML/link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchsko.errors import RobotFileError
from torchsko.io.common.file_shapes import ONES, PlacedForm, read_link_shapes
from torchsko.io.common.numbers import extent, number, rotation_from_rpy, vector
from torchsko.io.urdf.urdf_fields import attribute, missing_child, place
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import IDENTITY, ZERO, Matrix, Vector
from torchsko.mechanism.geometry import Color, Geometry
from torchsko.shapes.box import Box
from torchsko.shapes.capsule import Capsule
from torchsko.shapes.cylinder import Cylinder
from torchsko.shapes.form import Form
from torchsko.shapes.mesh import Mesh
from torchsko.shapes.sphere import Sphere


def read_geometry(
    root: Element, home: str | None, search: Sequence[str], report: Report
) -> Geometry:
    """All shapes of a robot.

    Args:
        root: the <robot> element.
        home: folder of the file; None for text.
        search: further trusted folders for meshes.
        report: records invalid shapes as faults.
    """
    colors = _colors(root)
    links = [(e.attributes.get("name", ""), e) for e in root.children if e.tag == "link"]

    def read(element: Element, where: str, frame: str) -> PlacedForm:
        return _shape(element, where, colors, home, tuple(search))

    return read_link_shapes([(name, link) for name, link in links if name], read, report)


def _shape(
    element: Element,
    where: str,
    colors: dict[str, Color],
    home: str | None,
    search: tuple[str, ...],
) -> PlacedForm:
    parts = {child.tag: child for child in element.children}
    geometry = parts.get("geometry")
    if geometry is None or not geometry.children:
        if geometry is None:
            raise missing_child(element, "geometry", where)
        raise missing_child(geometry, "box", where)
    form = geometry.children[0]
    read = FORMS.get(form.tag.removeprefix("drake:"))
    if form.tag == "mesh":
        shape: Form = _mesh(form, where, home, search)
    elif read is not None:
        shape = read(form, where)
    else:
        raise RobotFileError(
            f"{where}: the shape <{form.tag}> is unknown.",
            f"Shapes are mesh, {', '.join(FORMS)}.",
            "Write it as one of these.",
        )
    rotation, position = _placement(parts.get("origin"), where)
    return PlacedForm(shape, rotation, position, _color(parts.get("material"), colors))


def _placement(origin: Element | None, where: str) -> tuple[Matrix, Vector]:
    if origin is None:
        return IDENTITY, ZERO
    xyz, rpy = (origin.attributes.get(key) for key in ("xyz", "rpy"))
    return (
        IDENTITY if rpy is None else rotation_from_rpy(vector(rpy, place(origin, "rpy", where))),
        ZERO if xyz is None else vector(xyz, place(origin, "xyz", where)),
    )


def _length(element: Element, key: str, where: str) -> float:
    return extent(number(attribute(element, key, where), place(element, key, where)), where)


def _box(element: Element, where: str) -> Box:
    x, y, z = vector(attribute(element, "size", where), place(element, "size", where))
    return Box((extent(x, where), extent(y, where), extent(z, where)))


FORMS: dict[str, Callable[[Element, str], Form]] = {
    "box": _box,
    "sphere": lambda e, where: Sphere(_length(e, "radius", where)),
    "cylinder": lambda e, where: Cylinder(_length(e, "radius", where), _length(e, "length", where)),
    "capsule": lambda e, where: Capsule(_length(e, "radius", where), _length(e, "length", where)),
}


def _mesh(element: Element, where: str, home: str | None, search: tuple[str, ...]) -> Mesh:
    scale = element.attributes.get("scale")
    return Mesh(
        attribute(element, "filename", where),
        ONES if scale is None else vector(scale, place(element, "scale", where)),
        home,
        search,
    )


def _colors(root: Element) -> dict[str, Color]:
    """Colors of named materials, which may be defined anywhere in the file."""
    found: dict[str, Color] = {}
    elements = [e for e in root.children if e.tag == "material"]
    for link in root.children:
        if link.tag == "link":
            for child in link.children:
                if child.tag == "visual":
                    elements += [e for e in child.children if e.tag == "material"]
    for element in elements:
        name, color = element.attributes.get("name"), _own_color(element)
        if name and color is not None:
            found.setdefault(name, color)
    return found


def _color(material: Element | None, colors: dict[str, Color]) -> Color | None:
    if material is None:
        return None
    own = _own_color(material)
    return colors.get(material.attributes.get("name", "")) if own is None else own


def _own_color(material: Element) -> Color | None:
    """The color in a material; None if there is none or it is invalid."""
    for child in material.children:
        if child.tag == "color":
            words = child.attributes.get("rgba", "").split()
            try:
                r, g, b, a = (number(word, "rgba") for word in words)
            except (RobotFileError, ValueError):
                return None
            return r, g, b, a
    return None
