"""Tessellation of geometric forms into triangles."""

from __future__ import annotations

import numpy as np

from torchsko.mechanism.geometry import (
    Box,
    Capsule,
    Cylinder,
    Ellipsoid,
    Form,
    HeightField,
    Plane,
    Sphere,
    Triangles,
)

CIRCLE_POINTS = 32
"""Points on a tessellated circle."""

PLANE_SIZE = 20.0
"""Edge length at which an infinite plane is drawn [m]."""


def triangles_of(form: Form) -> Triangles:
    """Tessellate a form; faces are counter-clockwise seen from outside.

    Args:
        form: any form except `Mesh`, which has to be read first.
    """
    if isinstance(form, Triangles):
        return form
    if isinstance(form, Box):
        return Triangles(_CUBE * np.array(form.size), _CUBE_FACES)
    if isinstance(form, Sphere):
        return _revolve(*_arc(form.radius, 0.0))
    if isinstance(form, Capsule):
        return _revolve(*_arc(form.radius, form.length))
    if isinstance(form, Ellipsoid):
        ball = _revolve(*_arc(1.0, 0.0))
        return Triangles(ball.vertices * np.array(form.radii), ball.faces)
    if isinstance(form, Cylinder):
        half = form.length / 2
        # Each rim appears twice: the faces at a sharp edge share no vertex.
        radii = np.array([0.0, form.radius, form.radius, form.radius, form.radius, 0.0])
        return _revolve(radii, np.array([-half, -half, -half, half, half, half]))
    if isinstance(form, Plane):
        x, y = (size or PLANE_SIZE for size in form.size)
        return _grid(np.zeros((2, 2)), (x, y))
    if isinstance(form, HeightField):
        return _grid(form.heights, form.size)
    raise TypeError(f"{type(form).__name__} cannot be tessellated")


_CUBE = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])
_CUBE_FACES = np.array(
    [
        [0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1],
        [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3],
    ]
)  # fmt: skip


def _arc(radius: float, length: float) -> tuple[np.ndarray, np.ndarray]:
    """Radii and heights of a meridian from pole to pole: two hemispheres and a cylinder between them."""
    angle = np.linspace(-np.pi / 2, np.pi / 2, CIRCLE_POINTS // 2 + 1)
    r, z = radius * np.cos(angle), radius * np.sin(angle)
    r[0] = r[-1] = 0.0
    if length == 0.0:
        return r, z
    middle = len(angle) // 2
    low, high = slice(None, middle + 1), slice(middle, None)
    return (
        np.concatenate([r[low], r[high]]),
        np.concatenate([z[low] - length / 2, z[high] + length / 2]),
    )


def _revolve(r: np.ndarray, z: np.ndarray) -> Triangles:
    """The surface of revolution of a meridian about z."""
    angle = 2 * np.pi * np.arange(CIRCLE_POINTS) / CIRCLE_POINTS
    ring = np.stack([np.cos(angle), np.sin(angle)], -1)
    corners = np.concatenate(
        [r[:, None, None] * ring, np.broadcast_to(z[:, None, None], (len(z), CIRCLE_POINTS, 1))], -1
    )
    i, j = np.meshgrid(np.arange(len(r) - 1), np.arange(CIRCLE_POINTS), indexing="ij")
    a, b = i * CIRCLE_POINTS + j, i * CIRCLE_POINTS + (j + 1) % CIRCLE_POINTS
    c, d = a + CIRCLE_POINTS, b + CIRCLE_POINTS
    faces = np.concatenate([np.stack([a, b, d], -1), np.stack([a, d, c], -1)]).reshape(-1, 3)
    return Triangles(corners.reshape(-1, 3), _drop_degenerate(corners.reshape(-1, 3), faces))


def _grid(heights: np.ndarray, size: tuple[float, float]) -> Triangles:
    """A height field over a rectangle centred at the origin."""
    rows, columns = heights.shape
    y, x = np.meshgrid(
        size[1] * np.linspace(-0.5, 0.5, rows),
        size[0] * np.linspace(-0.5, 0.5, columns),
        indexing="ij",
    )
    corners = np.stack([x, y, heights], -1).reshape(-1, 3)
    i, j = np.meshgrid(np.arange(rows - 1), np.arange(columns - 1), indexing="ij")
    a = i * columns + j
    b, c, d = a + 1, a + columns, a + columns + 1
    return Triangles(
        corners,
        np.concatenate([np.stack([a, b, d], -1), np.stack([a, d, c], -1)]).reshape(-1, 3),
    )


def _drop_degenerate(corners: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Faces with nonzero area."""
    a, b, c = (corners[faces[:, k]] for k in range(3))
    return faces[np.linalg.norm(np.cross(b - a, c - a), axis=-1) > 0]
