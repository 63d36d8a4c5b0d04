"""Shapes in new URDF files; meshes retain the path from the robot's file."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from xml.sax.saxutils import quoteattr

import numpy as np

from torchsko.io.common.losses import Losses
from torchsko.io.common.numbers import as_matrix
from torchsko.io.urdf.edit_urdf import rpy_from_rotation
from torchsko.io.xml.edits import words
from torchsko.mechanism.geometry import Shape, Surface
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.box import Box
from torchsko.shapes.capsule import Capsule
from torchsko.shapes.cylinder import Cylinder
from torchsko.shapes.form import Form
from torchsko.shapes.mesh import Mesh
from torchsko.shapes.sphere import Sphere


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
    if shape.color is None:
        return ""
    name = "_".join(f"{round(255 * x):02x}" for x in shape.color)
    return f'<material name="rgba_{name}"><color rgba="{words(shape.color)}"/></material>'


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


def note_shapes(mech: Mechanism, losses: Losses) -> None:
    """Note shapes, their contact parameters and pairs, which URDF does not have."""
    geometry = mech.geometry
    lost = Counter(
        type(s.form).__name__.lower() for s in geometry.shapes if _urdf_form(s.form) is None
    )
    losses.add_if([f"{n} of kind {kind}" for kind, n in lost.items()], "shapes:")
    surfaces = [replace(s.surface, invweight=()) for s in geometry.shapes if s.surface is not None]
    if any(surface != Surface() for surface in surfaces):
        losses.add("contact parameters of shapes")
    if geometry.pairs:
        losses.add(f"{len(geometry.pairs)} contact pairs")
    if geometry.excluded:
        losses.add(f"{len(geometry.excluded)} excluded pairs")
