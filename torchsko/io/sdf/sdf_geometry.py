"""Shapes of an SDF model: <visual> and <collision> of its links; meshes are not read.

Reference: SDFormat specification, http://sdformat.org/spec (geometry).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from torchsko.errors import RobotFileError
from torchsko.io.common.file_shapes import ONES, PlacedForm, read_link_shapes
from torchsko.io.common.numbers import as_matrix, as_vector, extent, number, vector
from torchsko.io.sdf.sdf_poses import Frames, Pose, read_pose
from torchsko.io.xml.reader import Element
from torchsko.io.xml.report import Report
from torchsko.mechanism.description import Vector
from torchsko.mechanism.geometry import Color, Geometry
from torchsko.shapes.box import Box
from torchsko.shapes.capsule import Capsule
from torchsko.shapes.cylinder import Cylinder
from torchsko.shapes.ellipsoid import Ellipsoid
from torchsko.shapes.form import Form
from torchsko.shapes.mesh import Mesh
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere


def read_shapes(
    links: Iterable[Element],
    frames: Frames,
    home: str | None,
    search: Sequence[str],
    report: Report,
) -> Geometry:
    """All shapes of the links of a model.

    Args:
        links: its <link> elements.
        frames: frames of the model.
        home: folder of the file; None for text.
        search: further trusted folders for meshes.
        report: records invalid shapes as faults.
    """

    def read(element: Element, where: str, frame: str) -> PlacedForm:
        return _shape(element, where, frame, frames, home, tuple(search))

    return read_link_shapes([(x.attributes["name"].strip(), x) for x in links], read, report)


def _shape(
    element: Element,
    where: str,
    frame: str,
    frames: Frames,
    home: str | None,
    search: tuple[str, ...],
) -> PlacedForm:
    geometry = _child(element, "geometry")
    form = None if geometry is None else next(iter(geometry.children), None)
    if form is None or form.tag not in (*FORMS, "mesh", "plane"):
        raise RobotFileError(
            f"{where} {'has no shape' if form is None else f'has the unknown shape <{form.tag}>'}.",
            f"Shapes are mesh, plane, {', '.join(FORMS)}.",
            "Write it as one of these.",
        )
    pose = _pose(element, where, frame, frames)
    if form.tag == "mesh":
        scale = _text(form, "scale")
        size = vector(scale, f"{where} <scale>") if scale else ONES
        shape: Form = Mesh(_required_text(form, "uri", where), size, home, search)
    elif form.tag == "plane":
        shape, pose = _plane(form, where, pose)
    else:
        shape = FORMS[form.tag](form, where)
    rotation, position = as_matrix(pose.rotation), as_vector(pose.position)
    return PlacedForm(shape, rotation, position, _color(element))


def _pose(element: Element, where: str, frame: str, frames: Frames) -> Pose:
    """Pose of a shape in its link."""
    child = _child(element, "pose")
    pose = read_pose(child, where)
    reference = "" if child is None else child.attributes.get("relative_to", "")
    return frames.pose(frame).inverse() @ frames.pose(reference) @ pose if reference else pose


def _plane(form: Element, where: str, pose: Pose) -> tuple[Plane, Pose]:
    """A plane, and the pose of a frame whose z axis is its normal."""
    normal = np.array(vector(_text(form, "normal") or "0 0 1", f"{where} <normal>"))
    length = float(np.linalg.norm(normal))
    if not 0 < length < math.inf:
        raise RobotFileError(
            f"{where}: the plane's normal is {normal.tolist()}.",
            "It has no direction.",
            "Write 0 0 1, say.",
        )
    words = (_text(form, "size") or "0 0").split()
    x, y = (extent(number(word, f"{where} <size>"), where) for word in (*words, "0", "0")[:2])
    z = normal / length
    helper = np.eye(3)[int(np.abs(z).argmin())]
    x_axis = helper - z * (helper @ z)
    x_axis /= np.linalg.norm(x_axis)
    rotation = np.eye(3) if z[2] == 1 else np.stack([x_axis, np.cross(z, x_axis), z], -1)
    return Plane((x, y)), pose @ Pose(rotation)


def _color(element: Element) -> Color | None:
    """The diffuse color of a material; None if there is none or it is invalid."""
    material = _child(element, "material")
    try:
        words = [number(x, "diffuse") for x in _text(material, "diffuse").split()]
        r, g, b, a = (*words, 1.0)[:4] if len(words) == 3 else words
    except (RobotFileError, ValueError):
        return None
    return r, g, b, a


def _child(element: Element | None, tag: str) -> Element | None:
    return next((c for c in element.children if c.tag == tag), None) if element else None


def _text(element: Element | None, tag: str) -> str:
    child = _child(element, tag)
    return "" if child is None else child.text.strip()


def _required_text(element: Element, tag: str, where: str) -> str:
    if not (text := _text(element, tag)):
        raise RobotFileError(
            f"{where}: <{element.tag}> has no <{tag}>.",
            advice=f"Write <{tag}> inside it.",
        )
    return text


def _length(element: Element, tag: str, where: str) -> float:
    return extent(number(_required_text(element, tag, where), f"{where} <{tag}>"), where)


def _lengths(element: Element, tag: str, where: str) -> Vector:
    x, y, z = vector(_required_text(element, tag, where), f"{where} <{tag}>")
    return extent(x, where), extent(y, where), extent(z, where)


FORMS: dict[str, Callable[[Element, str], Form]] = {
    "box": lambda e, where: Box(_lengths(e, "size", where)),
    "sphere": lambda e, where: Sphere(_length(e, "radius", where)),
    "cylinder": lambda e, where: Cylinder(_length(e, "radius", where), _length(e, "length", where)),
    "capsule": lambda e, where: Capsule(_length(e, "radius", where), _length(e, "length", where)),
    "ellipsoid": lambda e, where: Ellipsoid(_lengths(e, "radii", where)),
}
