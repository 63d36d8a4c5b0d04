"""Shapes of an SDF model: <visual> and <collision> of its links, meshes left unread.

A shape that has no meaning is left out and noted: the dynamics does without it.

Reference: SDFormat specification, http://sdformat.org/spec (geometry).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import as_matrix, as_vector, extent, number, vector
from torchsko.io.common.report import Report
from torchsko.io.sdf.sdf_poses import Frames, Pose, read_pose
from torchsko.io.xml.reader import Element
from torchsko.mechanism.description import Vector
from torchsko.mechanism.geometry import (
    Box,
    Capsule,
    Colour,
    Cylinder,
    Ellipsoid,
    Form,
    Geometry,
    Mesh,
    Plane,
    Shape,
    Sphere,
)

ONES: Vector = (1.0, 1.0, 1.0)


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
        frames: of the model.
        home: folder of the file; None for text.
        search: folders in which meshes may lie besides.
        report: takes note of shapes that are left out, or refuses them.
    """
    shapes = []
    for link in links:
        frame = link.attributes["name"].strip()
        for child in link.children:
            if child.tag not in ("visual", "collision"):
                continue
            where = f"link {frame!r} <{child.tag}> (line {child.line})"
            try:
                shapes.append(_shape(child, where, frame, frames, home, tuple(search)))
            except RobotFileError as error:
                report.fault(where, f"left out: {str(error).split(chr(10))[0]}", str(error))
    return Geometry(tuple(shapes))


def _shape(
    element: Element,
    where: str,
    frame: str,
    frames: Frames,
    home: str | None,
    search: tuple[str, ...],
) -> Shape:
    geometry = _child(element, "geometry")
    form = None if geometry is None else next(iter(geometry.children), None)
    if form is None or form.tag not in (*FORMS, "mesh", "plane"):
        raise RobotFileError(
            f"{where}: {'no shape' if form is None else f'a shape <{form.tag}>'} can be read.",
            f"Shapes are mesh, plane, {', '.join(FORMS)}.",
            "Write it as one of these.",
        )
    pose = _pose(element, where, frame, frames)
    if form.tag == "mesh":
        scale = _text(form, "scale")
        size = vector(scale, f"{where} <scale>") if scale else ONES
        made: Form = Mesh(_needed(form, "uri", where), size, home, search)
    elif form.tag == "plane":
        made, pose = _plane(form, where, pose)
    else:
        made = FORMS[form.tag](form, where)
    seen = element.tag == "visual"
    return Shape(
        made,
        frame,
        as_matrix(pose.rotation),
        as_vector(pose.position),
        visual=seen,
        collision=not seen,
        colour=_colour(element) if seen else None,
        name=element.attributes.get("name", "").strip(),
    )


def _pose(element: Element, where: str, frame: str, frames: Frames) -> Pose:
    """Of a shape in its link."""
    pose = _child(element, "pose")
    own = read_pose(pose, where)
    other = "" if pose is None else pose.attributes.get("relative_to", "")
    return frames.pose(frame).inverse() @ frames.pose(other) @ own if other else own


def _plane(form: Element, where: str, pose: Pose) -> tuple[Plane, Pose]:
    """A plane, and the pose of axes whose z is its normal."""
    normal = np.array(vector(_text(form, "normal") or "0 0 1", f"{where} <normal>"))
    length = float(np.linalg.norm(normal))
    if not 0 < length < math.inf:
        raise RobotFileError(
            f"{where}: the plane's normal is {normal.tolist()}.",
            "A plane has one direction across it.",
            "Write 0 0 1, say.",
        )
    words = (_text(form, "size") or "0 0").split()
    x, y = (extent(number(word, f"{where} <size>"), where) for word in (*words, "0", "0")[:2])
    z = normal / length
    side = np.eye(3)[int(np.abs(z).argmin())]
    across = side - z * (side @ z)
    across /= np.linalg.norm(across)
    turn = np.eye(3) if z[2] == 1 else np.stack([across, np.cross(z, across), z], -1)
    return Plane((x, y)), pose @ Pose(turn)


def _colour(element: Element) -> Colour | None:
    """The diffuse colour of a material; None where it gives none, or what is none."""
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


def _needed(element: Element, tag: str, where: str) -> str:
    if not (text := _text(element, tag)):
        raise RobotFileError(
            f"{where}: <{element.tag}> has no <{tag}>.",
            "The shape has no size without.",
            f"Write <{tag}> inside.",
        )
    return text


def _length(element: Element, tag: str, where: str) -> float:
    return extent(number(_needed(element, tag, where), f"{where} <{tag}>"), where)


def _lengths(element: Element, tag: str, where: str) -> Vector:
    x, y, z = vector(_needed(element, tag, where), f"{where} <{tag}>")
    return extent(x, where), extent(y, where), extent(z, where)


FORMS: dict[str, Callable[[Element, str], Form]] = {
    "box": lambda e, where: Box(_lengths(e, "size", where)),
    "sphere": lambda e, where: Sphere(_length(e, "radius", where)),
    "cylinder": lambda e, where: Cylinder(_length(e, "radius", where), _length(e, "length", where)),
    "capsule": lambda e, where: Capsule(_length(e, "radius", where), _length(e, "length", where)),
    "ellipsoid": lambda e, where: Ellipsoid(_lengths(e, "radii", where)),
}
