"""Shapes of a compiled MuJoCo model: its geoms with their numbers of contact, pairs and exclusions.

Meshes are triangles in the model already, about the centre and axes that MuJoCo gave them, and so is the
placement of their geoms: no file is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from torchsko.mechanism.description import Matrix
from torchsko.mechanism.geometry import (
    Box,
    Capsule,
    Cylinder,
    Ellipsoid,
    Form,
    Geometry,
    HeightField,
    Pair,
    Plane,
    Shape,
    Sphere,
    Surface,
    Triangles,
)
from torchsko.spatial.rotation import quaternion_to_matrix

PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = range(8)
"""MuJoCo's types of geoms (mjtGeom)."""

HIDDEN = 3
"""The first group that MuJoCo's viewer does not show."""

GREY = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo's colour of a geom that says nothing: its material's then."""

BITS = ("contype", "conaffinity", "condim", "priority", "solmix", "margin", "gap")
"""Numbers of a surface that a geom has one of."""


def read_geoms(model: Any, frames: Sequence[str | None]) -> Geometry:
    """All geoms of a model as shapes, in its order.

    Args:
        model: ``mujoco.MjModel``.
        frames: the frame of each of its bodies; None for the inertial frame.
    """
    meshes = [_triangles(model, k) for k in range(model.nmesh)]
    turns = quaternion_to_matrix(torch.tensor(model.geom_quat, dtype=torch.float64)).tolist()
    places, surfaces = model.geom_pos.tolist(), _surfaces(model)
    bodies, groups = model.geom_bodyid.tolist(), model.geom_group.tolist()
    colours, pairs, seen = _colours(model), _pairs(model), _seen(model)
    paired = {k for pair in pairs for k in (pair.first, pair.second)}
    shapes = tuple(
        Shape(
            _form(model, k, meshes),
            frames[bodies[k]],
            cast(Matrix, tuple(map(tuple, turns[k]))),
            tuple(places[k]),
            visual=seen[k],
            collision=bool(surface.contype or surface.conaffinity) or k in paired,
            colour=colours[k],
            name=model.geom(k).name,
            group=groups[k],
            surface=surface,
        )
        for k, surface in enumerate(surfaces)
    )
    return Geometry(shapes, pairs, _excluded(model, frames))


def _seen(model: Any) -> list[bool]:
    """Whether each geom is to be looked at: in a group that MuJoCo's viewer shows, and no mesh's stand-in.

    Where a body has a mesh that nothing touches, what touches in another group stands in for it: robosuite's
    models leave both in groups that are shown, and its own viewer hides one.
    """
    touching = (np.asarray(model.geom_contype) | np.asarray(model.geom_conaffinity)) != 0
    columns = (model.geom_bodyid, model.geom_group, touching, np.asarray(model.geom_type) == MESH)
    geoms = list(zip(*(column.tolist() for column in columns), strict=True))
    looks = {b for b, g, touches, mesh in geoms if b and g < HIDDEN and mesh and not touches}
    beside = {(b, g) for b, g, touches, _ in geoms if not touches}
    return [
        g < HIDDEN and not (touches and b in looks and (b, g) not in beside)
        for b, g, touches, _ in geoms
    ]


def _form(model: Any, k: int, meshes: Sequence[Triangles]) -> Form:
    kind, (x, y, z) = int(model.geom_type[k]), model.geom_size[k].tolist()
    if kind == PLANE:
        return Plane((2 * x, 2 * y))
    if kind == HFIELD:
        return _heights(model, int(model.geom_dataid[k]))
    if kind == SPHERE:
        return Sphere(x)
    if kind in (CAPSULE, CYLINDER):
        return (Capsule if kind == CAPSULE else Cylinder)(x, 2 * y)
    if kind == ELLIPSOID:
        return Ellipsoid((x, y, z))
    if kind == BOX:
        return Box((2 * x, 2 * y, 2 * z))
    return meshes[int(model.geom_dataid[k])]


def _triangles(model: Any, k: int) -> Triangles:
    start, count = int(model.mesh_vertadr[k]), int(model.mesh_vertnum[k])
    first, faces = int(model.mesh_faceadr[k]), int(model.mesh_facenum[k])
    return Triangles(
        np.array(model.mesh_vert[start : start + count]),
        np.array(model.mesh_face[first : first + faces]),
    )


def _heights(model: Any, k: int) -> HeightField:
    rows, columns = int(model.hfield_nrow[k]), int(model.hfield_ncol[k])
    start, (x, y, top, _) = int(model.hfield_adr[k]), model.hfield_size[k].tolist()
    heights = np.array(model.hfield_data[start : start + rows * columns]).reshape(rows, columns)
    return HeightField((2 * x, 2 * y), top * heights)


def _colours(model: Any) -> list[tuple[float, float, float, float]]:
    """The geoms' own colours, or those of their materials where they have none."""
    own, material = model.geom_rgba.tolist(), model.geom_matid.tolist()
    return [
        tuple(model.mat_rgba[m].tolist() if m >= 0 and tuple(rgba) == GREY else rgba)
        for rgba, m in zip(own, material, strict=True)
    ]


def _surfaces(model: Any) -> list[Surface]:
    numbers = {name: getattr(model, f"geom_{name}").tolist() for name in BITS}
    lists = {
        name: getattr(model, f"geom_{name}").tolist() for name in ("friction", "solref", "solimp")
    }
    found = []
    for k in range(model.ngeom):
        each: dict[str, Any] = {name: values[k] for name, values in numbers.items()}
        each |= {name: tuple(x[k]) for name, x in lists.items()}
        found.append(Surface(**each))
    return found


def _pairs(model: Any) -> tuple[Pair, ...]:
    """Pairs by name; of their five coefficients of friction the first of each kind."""
    found = []
    for k in range(model.npair):
        sliding, _, torsional, rolling, _ = model.pair_friction[k].tolist()
        surface = Surface(
            condim=int(model.pair_dim[k]),
            friction=(sliding, torsional, rolling),
            solref=tuple(model.pair_solref[k].tolist()),
            solimp=tuple(model.pair_solimp[k].tolist()),
            margin=float(model.pair_margin[k]),
            gap=float(model.pair_gap[k]),
        )
        found.append(Pair(int(model.pair_geom1[k]), int(model.pair_geom2[k]), surface))
    return tuple(found)


def _excluded(
    model: Any, frames: Sequence[str | None]
) -> tuple[tuple[str | None, str | None], ...]:
    """Bodies that never touch: MuJoCo keeps them as two numbers in one."""
    signs = (int(x) for x in model.exclude_signature)
    return tuple((frames[sign >> 16], frames[sign & 0xFFFF]) for sign in signs)
