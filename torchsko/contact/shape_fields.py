"""Fields of `ContactModel` about shapes: sizes, placements, hulls of meshes and heights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from torchsko.contact.shape_pairs import body_of
from torchsko.errors import MechanismError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.candidate_points import ConvexHull
from torchsko.shapes.height_field import HeightField
from torchsko.shapes.mesh import Triangles


def mesh_hulls(
    mech: Mechanism, used: Sequence[int]
) -> tuple[tuple[ConvexHull, ...], list[list[float]], dict[int, int]]:
    """Hulls of meshes, all their vertices, and the hull of each shape."""
    hulls: list[ConvexHull] = []
    vertices: list[list[float]] = []
    found, meshes = {}, {}
    for n, k in enumerate(used):
        form = mech.geometry.shapes[k].form
        if not isinstance(form, Triangles) or form.hull is None:
            continue
        if id(form) not in found:
            found[id(form)] = len(hulls)
            count = len(form.hull.vertices)
            own = tuple(range(len(vertices), len(vertices) + count))
            hulls.append(replace(form.hull, vertices=own))
            vertices += form.vertices[list(form.hull.vertices)].tolist()
        meshes[n] = found[id(form)]
    return tuple(hulls), vertices, meshes


def height_fields(mech: Mechanism, used: Sequence[int]) -> tuple[dict[int, int], np.ndarray]:
    """Number of the height field of each shape, and all heights."""
    fields: dict[int, int] = {}
    heights = []
    for n, k in enumerate(used):
        form = mech.geometry.shapes[k].form
        if isinstance(form, HeightField):
            fields[n] = len(heights)
            heights.append(form.heights)
    if len({x.shape for x in heights}) > 1:
        raise MechanismError(
            f"the height fields of {mech.name!r} have {[x.shape for x in heights]} rows and columns.",
            "Heights are one tensor [fields, rows, columns].",
            "Give all height fields the same numbers of rows and columns.",
        )
    return fields, np.stack(heights) if heights else np.zeros((0, 0, 0))


def shape_fields(
    mech: Mechanism, used: Sequence[int], number: Callable[..., Tensor]
) -> dict[str, Any]:
    """Bodies, sizes and placements of the shapes in any pair."""
    shapes = [mech.geometry.shapes[k] for k in used]
    bodies = [body_of(mech, shape.frame) for shape in shapes]
    rotation = number([shape.rotation for shape in shapes], 3, 3)
    position = number([shape.position for shape in shapes], 3)
    for k, shape in enumerate(shapes):
        if shape.frame is not None:
            f = mech.frame_index(shape.frame)
            R, r = mech.frame_rotation[f], mech.frame_position[f]
            position[k] = r + R @ position[k]
            rotation[k] = R @ rotation[k]
    return {
        "shape_bodies": tuple(mech.num_bodies if b < 0 else b for b in bodies),
        "shape_size": number([shape.form.half_sizes for shape in shapes], 3),
        "shape_rotation": rotation,
        "shape_position": position,
    }
