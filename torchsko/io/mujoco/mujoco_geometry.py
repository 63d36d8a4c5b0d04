"""Shapes of a compiled MuJoCo model: geoms with contact parameters, contact pairs and excluded pairs.

The model contains the triangles of meshes, relative to the frames that MuJoCo chose, so no file is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from torchsko.io.common.numbers import as_vector
from torchsko.mechanism.description import Matrix
from torchsko.mechanism.geometry import Geometry, Pair, Shape, Surface
from torchsko.shapes.box import Box
from torchsko.shapes.candidate_points import ConvexHull
from torchsko.shapes.capsule import Capsule
from torchsko.shapes.cylinder import Cylinder
from torchsko.shapes.ellipsoid import Ellipsoid
from torchsko.shapes.form import Form
from torchsko.shapes.height_field import HeightField
from torchsko.shapes.mesh import Triangles
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere
from torchsko.spatial.rotation import quaternion_to_matrix

PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = range(8)
"""MuJoCo's types of geoms (mjtGeom)."""

FIRST_HIDDEN_GROUP = 3
"""First group that MuJoCo's viewer hides."""

DEFAULT_COLOR = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo's default color of a geom; its material's color is used instead."""

MAX_CORNERS = 4
"""Largest number of corners of a face of a mesh that touch a plane."""

SCALAR_FIELDS = ("contype", "conaffinity", "condim", "priority", "solmix", "margin", "gap")
VECTOR_FIELDS = ("friction", "solref", "solimp")


def read_geoms(model: Any, frames: Sequence[str | None]) -> Geometry:
    """All geoms of a model as shapes, in the model's order.

    Args:
        model: ``mujoco.MjModel``.
        frames: name of the frame of each body; None for the inertial frame.
    """
    meshes = [_triangles(model, k) for k in range(model.nmesh)]
    rotations = quaternion_to_matrix(torch.tensor(model.geom_quat, dtype=torch.float64)).tolist()
    positions, surfaces = model.geom_pos.tolist(), _surfaces(model)
    bodies, groups = model.geom_bodyid.tolist(), model.geom_group.tolist()
    colors, pairs, visual = _colors(model), _pairs(model), _is_visual(model)
    paired = {k for pair in pairs for k in (pair.first, pair.second)}
    shapes = tuple(
        Shape(
            _form(model, k, meshes),
            frames[bodies[k]],
            cast(Matrix, tuple(map(tuple, rotations[k]))),
            tuple(positions[k]),
            visual=visual[k],
            collision=bool(surface.contype or surface.conaffinity) or k in paired,
            color=colors[k],
            name=model.geom(k).name,
            group=groups[k],
            surface=surface,
        )
        for k, surface in enumerate(surfaces)
    )
    return Geometry(shapes, pairs, _excluded(model, frames))


def _is_visual(model: Any) -> list[bool]:
    """True for each geom in a visible group that is not the collision shape of a visual mesh.

    In robosuite's models both shapes are in visible groups. If a body has a mesh without contact, its geoms
    with contact in groups that have no geom without contact are collision shapes only.
    """
    contact = (np.asarray(model.geom_contype) | np.asarray(model.geom_conaffinity)) != 0
    columns = (model.geom_bodyid, model.geom_group, contact, np.asarray(model.geom_type) == MESH)
    geoms = list(zip(*(column.tolist() for column in columns), strict=True))
    with_mesh = {
        b for b, g, touches, mesh in geoms if b and g < FIRST_HIDDEN_GROUP and mesh and not touches
    }
    visual_groups = {(b, g) for b, g, touches, _ in geoms if not touches}
    return [
        g < FIRST_HIDDEN_GROUP and not (touches and b in with_mesh and (b, g) not in visual_groups)
        for b, g, touches, _ in geoms
    ]


def _form(model: Any, k: int, meshes: Sequence[Triangles]) -> Form:
    kind = int(model.geom_type[k])
    if kind == HFIELD:
        return _heights(model, int(model.geom_dataid[k]))
    if kind == MESH:
        return meshes[int(model.geom_dataid[k])]
    return primitive(kind, model.geom_size[k].tolist())


def primitive(kind: int, size: Sequence[float]) -> Form:
    """A primitive shape of MuJoCo's type and half sizes [m]."""
    x, y, z = size
    if kind == PLANE:
        return Plane((2 * x, 2 * y))
    if kind == SPHERE:
        return Sphere(x)
    if kind in (CAPSULE, CYLINDER):
        return (Capsule if kind == CAPSULE else Cylinder)(x, 2 * y)
    if kind == ELLIPSOID:
        return Ellipsoid((x, y, z))
    return Box((2 * x, 2 * y, 2 * z))


def _triangles(model: Any, k: int) -> Triangles:
    start, count = int(model.mesh_vertadr[k]), int(model.mesh_vertnum[k])
    first, faces = int(model.mesh_faceadr[k]), int(model.mesh_facenum[k])
    return Triangles(
        np.array(model.mesh_vert[start : start + count]),
        np.array(model.mesh_face[first : first + faces]),
        _hull(model, k),
    )


def _hull(model: Any, k: int) -> ConvexHull | None:
    """Hull of a mesh, from MuJoCo's polygons; None if it has none."""
    first, count = int(model.mesh_polyadr[k]), int(model.mesh_polynum[k])
    if int(model.mesh_graphadr[k]) < 0 or not count:
        return None
    polygons = range(first, first + count)
    starts, sizes = model.mesh_polyvertadr, model.mesh_polyvertnum
    faces = [model.mesh_polyvert[starts[n] : starts[n] + sizes[n]].tolist() for n in polygons]
    vertices = sorted({v for face in faces for v in face})
    place = {v: n for n, v in enumerate(vertices)}
    points = np.array(model.mesh_vert[int(model.mesh_vertadr[k]) :], dtype=float)
    lowest, corners, normals = [], [], []
    for n, face in zip(polygons, faces, strict=True):
        starting = [face] if len(face) <= MAX_CORNERS else [[v] for v in face]
        for entry in starting:
            chosen = face if len(face) <= MAX_CORNERS else _quadrilateral(points, face, entry[0])
            lowest.append(tuple(place[v] for v in entry))
            corners.append(tuple(place[v] for v in chosen))
            normals.append(as_vector(model.mesh_polynormal[n]))
    return ConvexHull(tuple(vertices), tuple(lowest), tuple(corners), tuple(normals))


def _quadrilateral(points: np.ndarray, face: Sequence[int], start: int) -> list[int]:
    """Four corners of a polygon with one given, by moving the others on while the area grows."""
    at, count = list(face).index(start), len(face)
    ring = [face[(at + k) % count] for k in range(count)]
    x = points[ring]

    def area(p: Sequence[int]) -> float:
        return float(np.linalg.norm(np.cross(x[p[2]] - x[p[0]], x[p[3]] - x[p[1]])))

    places = [0, 1, 2, 3]
    best, k = area(places), 3
    while k:
        moved = [*places[:k], places[k] + 1, *places[k + 1 :]]
        bound = moved[k + 1] if k < 3 else count
        larger = moved[k] < bound and area(moved) > best
        places, best, k = (moved, area(moved), 3) if larger else (places, best, k - 1)
    return [ring[p] for p in places]


def _heights(model: Any, k: int) -> HeightField:
    rows, columns = int(model.hfield_nrow[k]), int(model.hfield_ncol[k])
    start, (x, y, top, base) = int(model.hfield_adr[k]), model.hfield_size[k].tolist()
    data = np.array(model.hfield_data[start : start + rows * columns], dtype=np.float64)
    heights = top * data.reshape(rows, columns)
    return HeightField((2 * x, 2 * y), heights, base + float(heights.min()))


def _colors(model: Any) -> list[tuple[float, float, float, float]]:
    """Colors of geoms; those of their materials if they have the default color."""
    colors, materials = model.geom_rgba.tolist(), model.geom_matid.tolist()
    return [
        tuple(model.mat_rgba[m].tolist() if m >= 0 and tuple(rgba) == DEFAULT_COLOR else rgba)
        for rgba, m in zip(colors, materials, strict=True)
    ]


def _surfaces(model: Any) -> list[Surface]:
    scalars = {name: getattr(model, f"geom_{name}").tolist() for name in SCALAR_FIELDS}
    vectors = {name: getattr(model, f"geom_{name}").tolist() for name in VECTOR_FIELDS}
    surfaces = []
    for k in range(model.ngeom):
        values: dict[str, Any] = {name: x[k] for name, x in scalars.items()}
        values |= {name: tuple(x[k]) for name, x in vectors.items()}
        invweight = tuple(model.body_invweight0[int(model.geom_bodyid[k])].tolist())
        surfaces.append(Surface(**values, invweight=invweight))
    return surfaces


def _pairs(model: Any) -> tuple[Pair, ...]:
    """Contact pairs; of the five friction coefficients, the first of each kind."""
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
            friction_pair=tuple(model.pair_friction[k].tolist()),
            solref_friction=tuple(model.pair_solreffriction[k].tolist()),
        )
        found.append(Pair(int(model.pair_geom1[k]), int(model.pair_geom2[k]), surface))
    return tuple(found)


def _excluded(
    model: Any, frames: Sequence[str | None]
) -> tuple[tuple[str | None, str | None], ...]:
    """Pairs of bodies without contact; MuJoCo stores both indices in one number."""
    signatures = (int(x) for x in model.exclude_signature)
    return tuple((frames[x >> 16], frames[x & 0xFFFF]) for x in signatures)
