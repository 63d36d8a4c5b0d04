"""Meshes: triangles, and files with triangles; contact is that of the convex hull."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from torchsko.shapes.candidate_points import FAR, ConvexHull, Placed, Points, dot, take
from torchsko.shapes.form import Collision, Form
from torchsko.shapes.height_field import terrain_corners
from torchsko.utils.shapes import matvec


def plane_mesh(plane: Placed, mesh: Placed) -> Points:
    """Corners of a face of the hull: of the faces at its lowest vertex, the one that faces the plane most.

    Corners above the center of the mesh are no candidates.
    """
    assert mesh.hull is not None
    vertices, faces = mesh.hull.vertices[..., None, :, :], mesh.hull.faces
    n = plane.axis
    local = matvec(mesh.rotation.mT, n)
    heights = matvec(vertices, local)
    least = heights.amin(-1, keepdim=True)
    lowest = _chosen(heights, faces.lowest).amin(-1) <= least
    facing = matvec(heights.new_tensor(faces.normals), local)
    index = torch.where(lowest, facing, torch.inf).argmin(-1, keepdim=True)
    batch = (*index.shape[:-1], len(faces.corners))
    corners = vertices.index_select(-2, _padded(faces.corners, vertices).flatten())
    corners = corners.unflatten(-2, (len(faces.corners), -1)).flatten(-2)
    corner = take(corners.expand(*batch, -1), index)[..., 0, :].unflatten(-1, (-1, 3))
    exists = torch.tensor([[k < len(x) for k in range(4)] for x in faces.corners])
    exists = exists.to(device=corner.device, dtype=corner.dtype).expand(*batch, -1)
    exists = take(exists, index)[..., 0, :] > 0
    relative = matvec(corner, local)
    distance = dot(n, mesh.position - plane.position)[..., None] + relative
    n = n[..., None, :]
    points = mesh.position[..., None, :] + matvec(mesh.rotation[..., None, :, :], corner)
    position = points - n * (distance / 2)[..., None]
    return Points.of(torch.where(exists & (relative <= 0), distance, FAR), position, n)


def _chosen(x: Tensor, rows: Sequence[Sequence[int]]) -> Tensor:
    """Entries of the last dimension by rows of indices, of which shorter ones repeat their first."""
    index = _padded(rows, x)
    return x.index_select(-1, index.flatten()).unflatten(-1, index.shape)


def _padded(rows: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    size = max(4, *map(len, rows))
    return torch.tensor([[*row, *[row[0]] * (size - len(row))] for row in rows], device=like.device)


def terrain_mesh(terrain: Placed, mesh: Placed) -> Points:
    """The vertices of the hull of a mesh."""
    assert mesh.hull is not None
    return terrain_corners(terrain, mesh, mesh.hull.vertices[..., None, :, :])


@dataclass(frozen=True, eq=False)
class Triangles(Form):
    """A surface of triangles.

    Attributes:
        vertices: vertices, `[n, 3]` [m].
        faces: vertex indices of each triangle, `[m, 3]`.
        hull: convex hull; None if it is not known.
    """

    vertices: np.ndarray
    faces: np.ndarray
    hull: ConvexHull | None = None

    kind: ClassVar[str] = "mesh"
    pairs: ClassVar[Mapping[str, Collision]] = {
        "plane": Collision(plane_mesh),
        "heightfield": Collision(terrain_mesh),
    }

    @property
    def contact_kind(self) -> str:
        """Another name without a convex hull."""
        return "mesh" if self.hull is not None else "mesh without hull"

    def mesh(self) -> tuple[np.ndarray, np.ndarray]:
        """The triangles."""
        return self.vertices, self.faces


@dataclass(frozen=True)
class Mesh(Form):
    """A mesh file, which is read when it is drawn.

    Attributes:
        path: path as written in the robot file.
        scale: scale factors along x, y and z.
        home: folder of the robot file; None if the robot was loaded from text.
        search: further folders given by the user; files outside of these and of `home` are not read.
    """

    path: str
    scale: tuple[float, ...] = (1.0, 1.0, 1.0)
    home: str | None = None
    search: tuple[str, ...] = ()

    kind: ClassVar[str] = "mesh file"


def triangles_of(form: Form) -> Triangles:
    """The surface of a shape; a `Mesh` has to be read first."""
    return form if isinstance(form, Triangles) else Triangles(*form.mesh())
