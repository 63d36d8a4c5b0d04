r"""Rasterization of triangles: coverage, depth test and blending of transparent shapes.

The barycentric weight of a corner k, with the edge from corner i to corner j opposite to it, is linear along
a row of pixels at the height y,

.. math::
    w_k = a_k x + b_k, \qquad a_k = (y_i - y_j) / D, \qquad b_k = (x_i (y_j - y) - x_j (y_i - y)) / D,

with twice the signed area D. A row is covered where no weight is negative: one span of columns for each
triangle and row, so that no other pixels are visited. The depth along a span is linear as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

MAX_PIXELS = 4_000_000
"""Largest number of covered pixels at once, to bound memory."""

MIN_AREA = 1e-9
"""Twice the area of a triangle in square pixels below which it covers no pixel."""

EDGE_TOLERANCE = 1e-9
"""Largest negative barycentric weight of a covered pixel: triangles with a common edge have no gap."""


class Spans(NamedTuple):
    """Covered pixels of triangles, row by row.

    Attributes:
        owner: triangle of each span.
        start: flat index of its first pixel.
        length: number of its pixels.
        depth: depth of its first pixel.
        slope: change of the depth per pixel.
    """

    owner: np.ndarray
    start: np.ndarray
    length: np.ndarray
    depth: np.ndarray
    slope: np.ndarray


def covered_spans(corners: np.ndarray, size: tuple[int, int]) -> Spans:
    """Spans of the pixels whose centers lie in triangles.

    Args:
        corners: columns, rows and depths, `[n, 3, 3]`.
        size: width and height of the image.
    """
    x, y = corners[..., 0], corners[..., 1]
    double = (x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 0]) - (x[:, 2] - x[:, 0]) * (y[:, 1] - y[:, 0])
    low = np.clip(np.ceil(y.min(-1) - 0.5), 0, size[1]).astype(np.int64)
    high = np.clip(np.floor(y.max(-1) - 0.5) + 1, 0, size[1]).astype(np.int64)
    is_seen = (x.max(-1) > 0) & (x.min(-1) < size[0]) & (np.abs(double) > MIN_AREA)
    owner, offset = _expanded(np.where(is_seen, np.maximum(high - low, 0), 0))
    x, y, z = np.moveaxis(corners[owner], -1, 0)
    double, row = double[owner], low[owner] + offset
    first, last = np.full(len(owner), 0.5), np.full(len(owner), size[0] - 0.5)
    depth, slope = np.zeros(len(owner)), np.zeros(len(owner))
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        a = (y[:, i] - y[:, j]) / double
        b = (x[:, i] * (y[:, j] - (row + 0.5)) - x[:, j] * (y[:, i] - (row + 0.5))) / double
        end = -(b + EDGE_TOLERANCE) / np.where(a == 0, np.inf, a)
        is_outside = (a == 0) & (b < -EDGE_TOLERANCE)
        first = np.maximum(first, np.where(a > 0, end, -np.inf))
        last = np.minimum(last, np.where(a < 0, end, np.where(is_outside, -np.inf, np.inf)))
        slope, depth = slope + a * z[:, k], depth + b * z[:, k]
    start, stop = np.ceil(first - 0.5), np.floor(last - 0.5)
    keep = np.flatnonzero(stop >= start)
    begin = start[keep].astype(np.int64)
    return Spans(
        owner[keep],
        row[keep] * size[0] + begin,
        stop[keep].astype(np.int64) - begin + 1,
        (depth + slope * (start + 0.5))[keep],
        slope[keep],
    )


def covered_pixels(
    corners: np.ndarray, size: tuple[int, int]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Pixels whose centers lie in triangles: flat indices, depths and triangle indices, in chunks.

    Args:
        corners: columns, rows and depths, `[n, 3, 3]`.
        size: width and height of the image.
    """
    spans = covered_spans(corners, size)
    chunk = np.cumsum(spans.length) // MAX_PIXELS
    for part in np.split(np.arange(len(chunk)), np.flatnonzero(np.diff(chunk)) + 1):
        owner, start, length, depth, slope = (field[part] for field in spans)
        span, along = _expanded(length)
        yield start[span] + along, depth[span] + slope[span] * along, owner[span]


def _expanded(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of each entry `count` times, and the positions 0, 1, ... count - 1 within it."""
    index = np.repeat(np.arange(len(count)), count)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)


def draw(
    pixels: np.ndarray, corners: np.ndarray, colors: np.ndarray, depths: np.ndarray | None = None
) -> None:
    """Draw opaque triangles over an image, the nearest in front.

    Args:
        pixels: image `[height, width, 3]`, changed in place.
        corners: columns, rows and depths, `[n, 3, 3]`.
        colors: `[n, 3]`.
        depths: depth buffer `[height, width]`, changed in place; optional.
    """
    where, depth, owner = _nearest(pixels, corners)
    pixels.reshape(-1, 3)[where] = colors[owner]
    if depths is not None:
        depths.reshape(-1)[where] = depth


def blend(
    pixels: np.ndarray,
    corners: np.ndarray,
    colors: np.ndarray,
    depths: np.ndarray,
    opacity: float,
) -> None:
    """Blend the near side of a transparent shape over an image, except behind opaque shapes.

    Args:
        pixels: image `[height, width, 3]`, changed in place.
        corners: columns, rows and depths, `[n, 3, 3]`.
        colors: `[n, 3]`.
        depths: depth buffer of the opaque shapes, `[height, width]`.
        opacity: from 0 to 1.
    """
    where, depth, owner = _nearest(pixels, corners)
    visible = depth < depths.reshape(-1)[where]
    flat, where = pixels.reshape(-1, 3), where[visible]
    flat[where] += opacity * (colors[owner[visible]] - flat[where])


def mask(shade: np.ndarray, corners: np.ndarray) -> None:
    """Mark the pixels covered by triangles, in place."""
    for where, _, _ in covered_pixels(corners, (shade.shape[1], shade.shape[0])):
        shade.reshape(-1)[where] = True


def _nearest(pixels: np.ndarray, corners: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Covered pixels, each once, with depth and index of the nearest triangle."""
    height, width = pixels.shape[:2]
    buffer, owners = np.full(height * width, np.inf), np.full(height * width, -1)
    for where, depth, owner in covered_pixels(corners, (width, height)):
        np.minimum.at(buffer, where, depth)
        # Of triangles at one depth the first in order is drawn.
        is_nearest = np.flatnonzero(depth == buffer[where])[::-1]
        owners[where[is_nearest]] = owner[is_nearest]
    found = np.flatnonzero(owners >= 0)
    return found, buffer[found], owners[found]
