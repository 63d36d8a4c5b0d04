"""Rasterisation of triangles: coverage, depth test and blending of transparent shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_PIXELS = 4_000_000
"""Largest number of candidate pixels tested at once, to bound memory."""


def covered_pixels(
    corners: np.ndarray, size: tuple[int, int]
) -> Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Pixels whose centres lie in triangles: flat indices, depths and triangle indices, in chunks."""
    x, y = corners[..., 0], corners[..., 1]
    low = np.stack([np.ceil(x.min(-1) - 0.5), np.ceil(y.min(-1) - 0.5)], -1)
    high = np.stack([np.floor(x.max(-1) - 0.5), np.floor(y.max(-1) - 0.5)], -1)
    low = np.clip(low, 0, size).astype(np.int64)
    high = np.clip(high + 1, 0, size).astype(np.int64)
    width, height = np.maximum(high - low, 0).T
    counts = width * height
    double = (x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 0]) - (x[:, 2] - x[:, 0]) * (y[:, 1] - y[:, 0])
    alive = np.flatnonzero((counts > 0) & (np.abs(double) > 1e-9))
    found, total = [], np.cumsum(counts[alive])
    # Chunks of at most MAX_PIXELS pixels, or of one triangle.
    cuts = (
        np.unique(
            np.searchsorted(
                total, np.arange(MAX_PIXELS, total[-1] + MAX_PIXELS, MAX_PIXELS), "right"
            )
        )
        if len(alive)
        else []
    )
    start = 0
    for stop in [*cuts, len(alive)]:
        chunk = alive[start:stop]
        start = stop
        if not len(chunk):
            continue
        owner = np.repeat(chunk, counts[chunk])
        offset = np.arange(len(owner)) - np.repeat(
            np.cumsum(counts[chunk]) - counts[chunk], counts[chunk]
        )
        column, row = low[owner, 0] + offset % width[owner], low[owner, 1] + offset // width[owner]
        px, py = column + 0.5, row + 0.5
        weights = []
        for k in range(3):
            i, j = (k + 1) % 3, (k + 2) % 3
            weights.append(
                ((x[owner, i] - px) * (y[owner, j] - py) - (x[owner, j] - px) * (y[owner, i] - py))
                / double[owner]
            )
        inside = np.minimum(np.minimum(weights[0], weights[1]), weights[2]) >= -1e-9
        owner = owner[inside]
        depth = sum(w[inside] * corners[owner, k, 2] for k, w in enumerate(weights))
        found.append((row[inside] * size[0] + column[inside], np.asarray(depth), owner))
    return found


def draw(
    pixels: np.ndarray, corners: np.ndarray, colours: np.ndarray, depths: np.ndarray | None = None
) -> None:
    """Draw opaque triangles over an image, the nearest in front.

    Args:
        pixels: image `[height, width, 3]`, changed in place.
        corners: columns, rows and depths, `[n, 3, 3]`.
        colours: `[n, 3]`.
        depths: depth buffer `[height, width]`, changed in place; optional.
    """
    where, depth, owner = _nearest(pixels, corners)
    pixels.reshape(-1, 3)[where] = colours[owner]
    if depths is not None:
        depths.reshape(-1)[where] = depth


def blend(
    pixels: np.ndarray,
    corners: np.ndarray,
    colours: np.ndarray,
    depths: np.ndarray,
    opacity: float,
) -> None:
    """Blend the near side of a transparent shape over an image, except behind opaque shapes.

    Args:
        pixels: image `[height, width, 3]`, changed in place.
        corners: columns, rows and depths, `[n, 3, 3]`.
        colours: `[n, 3]`.
        depths: depth buffer of the opaque shapes, `[height, width]`.
        opacity: from 0 to 1.
    """
    where, depth, owner = _nearest(pixels, corners)
    visible = depth < depths.reshape(-1)[where]
    flat, where = pixels.reshape(-1, 3), where[visible]
    flat[where] += opacity * (colours[owner[visible]] - flat[where])


def mask(shade: np.ndarray, corners: np.ndarray) -> None:
    """Mark the pixels covered by triangles, in place."""
    for where, _, _ in covered_pixels(corners, (shade.shape[1], shade.shape[0])):
        shade.reshape(-1)[where] = True


def _nearest(pixels: np.ndarray, corners: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Covered pixels, each once, with depth and index of the nearest triangle."""
    found = covered_pixels(corners, (pixels.shape[1], pixels.shape[0]))
    if not found:
        return np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.int64)
    where, depth, owner = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((depth, where))
    first = order[np.r_[True, np.diff(where[order]) > 0]] if len(order) else order
    return where[first], depth[first], owner[first]
