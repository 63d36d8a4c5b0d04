"""The shapes of a mechanism in a new file: URDF, or MJCF.

What a format has no word for is left out and counted. Meshes keep the path that the robot's file gave them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np

from torchsko.errors import RobotFileWarning
from torchsko.io.common.numbers import as_matrix
from torchsko.io.common.quaternion import quaternion_from_matrix
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

SEEN, TOUCHING = 2, 3
"""Groups of geoms that are meant to be seen only, and to touch only, which MuJoCo's viewer hides."""


def urdf_shapes(mech: Mechanism, frame: str | None) -> list[str]:
    """<visual> and <collision> of what stands on a frame, None for the inertial one."""
    lines = []
    for shape in mech.geometry.shapes:
        form = _urdf_form(shape.form)
        if shape.frame != frame or form is None:
            continue
        R, p = np.array(shape.rotation), np.array(shape.position)
        origin = f'<origin xyz="{words(p)}" rpy="{words(rpy_from_rotation(as_matrix(R)))}"/>'
        name = f" name={quoteattr(shape.name)}" if shape.name else ""
        inside = f"{origin}<geometry>{form}</geometry>"
        if shape.visual:
            lines.append(f"    <visual{name}>{inside}{_material(shape)}</visual>")
        if shape.collision:
            lines.append(f"    <collision{name}>{inside}</collision>")
    return lines


def _material(shape: Shape) -> str:
    if shape.colour is None:
        return ""
    name = "_".join(f"{round(255 * x):02x}" for x in shape.colour)
    return f'<material name="rgba_{name}"><color rgba="{words(shape.colour)}"/></material>'


def _urdf_form(form: Form) -> str | None:
    """The element of a form; None where URDF has none."""
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
    """The <geom>s of a body, -1 for the world."""
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
        turn = words(quaternion_from_matrix(R))
        lines.append(f'<geom {name}{form} pos="{words(p)}" quat="{turn}"{text}/>')
    return lines


def _on_body(mech: Mechanism, shape: Shape) -> tuple[int, np.ndarray, np.ndarray]:
    """The body that carries a shape, and its pose there."""
    R, p = np.array(shape.rotation), np.array(shape.position)
    if shape.frame is None:
        return -1, R, p
    i = mech.frame_index(shape.frame)
    turn, shift = (
        getattr(mech, field)[i].detach().cpu().double().numpy()
        for field in ("frame_rotation", "frame_position")
    )
    return mech.frame_body[i], turn @ R, turn @ p + shift


def _surface(shape: Shape) -> dict[str, str]:
    """How it touches, in MuJoCo's numbers, and whether it is shown."""
    surface = shape.surface
    if surface is None:
        touches = {} if shape.collision else {"contype": "0", "conaffinity": "0"}
        group = 0 if shape.visual and shape.collision else SEEN if shape.visual else TOUCHING
        return touches | {"group": str(group)}
    whole = {key: getattr(surface, key) for key in ("contype", "conaffinity", "condim", "priority")}
    real = {key: words([getattr(surface, key)]) for key in ("solmix", "margin", "gap")}
    rows = {key: words(getattr(surface, key)) for key in ("friction", "solref", "solimp")}
    return {key: str(x) for key, x in whole.items()} | real | rows | {"group": str(shape.group)}


def _mjcf_form(form: Form, carrier: int) -> str | None:
    """Type and size of a form; None where it is no primitive, or MuJoCo takes no such one."""
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
    """The <contact> of bodies that never touch."""
    found = []
    for pair in mech.geometry.excluded:
        bodies = [-1 if x is None else mech.frame_body[mech.frame_index(x)] for x in pair]
        if bodies[0] == bodies[1]:
            continue
        one, two = ("world" if b < 0 else mech.body_names[b] for b in bodies)
        found.append(f"    <exclude body1={quoteattr(one)} body2={quoteattr(two)}/>")
    return ["  <contact>", *found, "  </contact>"] if found else []


def tell_left_out(mech: Mechanism, format: str) -> None:
    """Warn of shapes that a new file does not have."""

    def said(shape: Shape) -> bool:
        if format == "URDF":
            return _urdf_form(shape.form) is not None
        return _mjcf_form(shape.form, _on_body(mech, shape)[0]) is not None

    geometry = mech.geometry
    counts = Counter(type(s.form).__name__.lower() for s in geometry.shapes if not said(s))
    lost = [f"{count} of kind {kind}" for kind, count in counts.items()]
    lost += [f"{len(geometry.pairs)} contact pairs"] * bool(geometry.pairs)
    lost += [f"{len(geometry.excluded)} excluded pairs"] * (
        format == "URDF" and bool(geometry.excluded)
    )
    if lost:
        warnings.warn(
            f"shapes of {mech.name!r} are left out of a new file in {format}: {', '.join(lost)}.\n"
            "It has no words for them, or they are in files of their own.\n"
            "Save like the original file to keep all of it.",
            RobotFileWarning,
            stacklevel=5,
        )
