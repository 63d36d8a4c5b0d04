"""Surfaces of revolution and grids as triangles."""

from __future__ import annotations

import numpy as np

CIRCLE_POINTS = 32
"""Points on a tessellated circle."""


def arc(radius: float, length: float) -> tuple[np.ndarray, np.ndarray]:
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


def revolve(r: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and triangles of the surface of revolution of a meridian about z."""
    angle = 2 * np.pi * np.arange(CIRCLE_POINTS) / CIRCLE_POINTS
    ring = np.stack([np.cos(angle), np.sin(angle)], -1)
    corners = np.concatenate(
        [r[:, None, None] * ring, np.broadcast_to(z[:, None, None], (len(z), CIRCLE_POINTS, 1))], -1
    )
    i, j = np.meshgrid(np.arange(len(r) - 1), np.arange(CIRCLE_POINTS), indexing="ij")
    a, b = i * CIRCLE_POINTS + j, i * CIRCLE_POINTS + (j + 1) % CIRCLE_POINTS
    c, d = a + CIRCLE_POINTS, b + CIRCLE_POINTS
    faces = np.concatenate([np.stack([a, b, d], -1), np.stack([a, d, c], -1)]).reshape(-1, 3)
    return (corners.reshape(-1, 3), _drop_degenerate(corners.reshape(-1, 3), faces))


def grid(heights: np.ndarray, size: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and triangles of a height field over a rectangle centered at the origin."""
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
    return (
        corners,
        np.concatenate([np.stack([a, b, d], -1), np.stack([a, d, c], -1)]).reshape(-1, 3),
    )


def _drop_degenerate(corners: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Faces with nonzero area."""
    a, b, c = (corners[faces[:, k]] for k in range(3))
    return faces[np.linalg.norm(np.cross(b - a, c - a), axis=-1) > 0]
