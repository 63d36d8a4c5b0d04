"""Shapes in new URDF and MJCF files.

Shapes that the format does not support are left out with a warning. Meshes retain the path from the robot's
file.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np

from torchsko.errors import RobotFileWarning
from torchsko.io.common.numbers import as_matrix, quaternion_from_matrix
from torchsko.io.urdf.edit_urdf import rpy_from_rotation
from torchsko.io.xml.edits import words
from torchsko.mechanism.geometry import (
    Box,
    Capsule,
    Cylinder,
    Ellipsoid,
    Form,
    Mesh,
    Plane,
    Shape,
    Sphere,
)
from torchsko.mechanism.mechanism import Mechanism

VISUAL_GROUP, COLLISION_GROUP = 2, 3
"""MuJoCo's groups of visual geoms, and of collision geoms, which its viewer hides."""


def urdf_shapes(mech: Mechanism, frame: str | None) -> list[str]:
    """<visual> and <collision> elements on a frame; None: the inertial frame."""
    lines = []
    for shape in mech.geometry.shapes:
        form = _urdf_form(shape.form)
        if shape.frame != frame or form is None:
            continue
        R, p = np.array(shape.rotation), np.array(shape.position)
        origin = f'<origin xyz="{words(p)}" rpy="{words(rpy_from_rotation(as_matrix(R)))}"/>'
        name = f" name={quoteattr(shape.name)}" if shape.name else ""
        content = f"{origin}<geometry>{form}</geometry>"
        if shape.visual:
            lines.append(f"    <visual{name}>{content}{_material(shape)}</visual>")
        if shape.collision:
            lines.append(f"    <collision{name}>{content}</collision>")
    return lines


def _material(shape: Shape) -> str:
    if shape.colour is None:
        return ""
    name = "_".join(f"{round(255 * x):02x}" for x in shape.colour)
    return f'<material name="rgba_{name}"><color rgba="{words(shape.colour)}"/></material>'


def _urdf_form(form: Form) -> str | None:
    """The URDF element of a form; None if URDF has none."""
    if isinstance(form, Box):
        return f'<box size="{words(form.size)}"/>'
    if isinstance(form, Sphere):
        return f'<sphere radius="{form.radius!r}"/>'
    if isinstance(form, Cylinder | Capsule):
        tag = "cylinder" if isinstance(form, Cylinder) else "capsule"
        return f'<{tag} radius="{form.radius!r}" length="{form.length!r}"/>'
    if isinstance(form, Mesh):
        return f'<mesh filename={quoteattr(form.path)} scale="{words(form.scale)}"/>'
    return None


def mjcf_geoms(mech: Mechanism, body: int) -> list[str]:
    """<geom> elements on a body; -1: the world."""
    names = Counter(shape.name for shape in mech.geometry.shapes)
    lines = []
    for shape in mech.geometry.shapes:
        carrier, R, p = _on_body(mech, shape)
        form = _mjcf_form(shape.form, carrier)
        if carrier != body or form is None:
            continue
        name = f"name={quoteattr(shape.name)} " if names[shape.name] == 1 and shape.name else ""
        numbers = _surface(shape)
        if shape.colour is not None:
            numbers["rgba"] = words(shape.colour)
        text = "".join(f' {key}="{value}"' for key, value in numbers.items())
        quaternion = words(quaternion_from_matrix(R))
        lines.append(f'<geom {name}{form} pos="{words(p)}" quat="{quaternion}"{text}/>')
    return lines


def _on_body(mech: Mechanism, shape: Shape) -> tuple[int, np.ndarray, np.ndarray]:
    """The body that carries a shape, and the shape's pose on it."""
    R, p = np.array(shape.rotation), np.array(shape.position)
    if shape.frame is None:
        return -1, R, p
    i = mech.frame_index(shape.frame)
    rotation, position = (
        getattr(mech, field)[i].detach().cpu().double().numpy()
        for field in ("frame_rotation", "frame_position")
    )
    return mech.frame_body[i], rotation @ R, rotation @ p + position


def _surface(shape: Shape) -> dict[str, str]:
    """MuJoCo's contact parameters and group of a shape."""
    surface = shape.surface
    if surface is None:
        contact = {} if shape.collision else {"contype": "0", "conaffinity": "0"}
        group = VISUAL_GROUP if shape.visual else COLLISION_GROUP
        return contact | {"group": str(0 if shape.visual and shape.collision else group)}
    whole = {key: getattr(surface, key) for key in ("contype", "conaffinity", "condim", "priority")}
    real = {key: words([getattr(surface, key)]) for key in ("solmix", "margin", "gap")}
    rows = {key: words(getattr(surface, key)) for key in ("friction", "solref", "solimp")}
    return {key: str(x) for key, x in whole.items()} | real | rows | {"group": str(shape.group)}


def _mjcf_form(form: Form, carrier: int) -> str | None:
    """Type and size of a geom; None for forms that are not primitives or not valid in MuJoCo."""
    sizes: dict[type, tuple[str, Callable[[Any], list[float]]]] = {
        Box: ("box", lambda f: [x / 2 for x in f.size]),
        Sphere: ("sphere", lambda f: [f.radius]),
        Cylinder: ("cylinder", lambda f: [f.radius, f.length / 2]),
        Capsule: ("capsule", lambda f: [f.radius, f.length / 2]),
        Ellipsoid: ("ellipsoid", lambda f: list(f.radii)),
    }
    if isinstance(form, Plane) and carrier < 0:
        return f'type="plane" size="{words([form.size[0] / 2, form.size[1] / 2, 1.0])}"'
    if type(form) not in sizes:
        return None
    kind, size = sizes[type(form)]
    numbers = size(form)
    return f'type="{kind}" size="{words(numbers)}"' if min(numbers) > 0 else None


def mjcf_excludes(mech: Mechanism) -> list[str]:
    """The <contact> element for pairs of bodies without contact."""
    lines = []
    for pair in mech.geometry.excluded:
        bodies = [-1 if x is None else mech.frame_body[mech.frame_index(x)] for x in pair]
        if bodies[0] == bodies[1]:
            continue
        first, second = ("world" if b < 0 else mech.body_names[b] for b in bodies)
        lines.append(f"    <exclude body1={quoteattr(first)} body2={quoteattr(second)}/>")
    return ["  <contact>", *lines, "  </contact>"] if lines else []


def warn_unsupported_shapes(mech: Mechanism, format: str) -> None:
    """Warn of shapes that are left out of a new file."""

    def supported(shape: Shape) -> bool:
        if format == "URDF":
            return _urdf_form(shape.form) is not None
        return _mjcf_form(shape.form, _on_body(mech, shape)[0]) is not None

    geometry = mech.geometry
    counts = Counter(type(s.form).__name__.lower() for s in geometry.shapes if not supported(s))
    lost = [f"{count} of kind {kind}" for kind, count in counts.items()]
    lost += [f"{len(geometry.pairs)} contact pairs"] * bool(geometry.pairs)
    lost += [f"{len(geometry.excluded)} excluded pairs"] * (
        format == "URDF" and bool(geometry.excluded)
    )
    if lost:
        warnings.warn(
            f"shapes of {mech.name!r} are left out of the new {format} file: {', '.join(lost)}.\n"
            "The format does not support them, or they are in separate files.\n"
            "Pass like=FILE with the original file to preserve them.",
            RobotFileWarning,
            stacklevel=5,
        )
