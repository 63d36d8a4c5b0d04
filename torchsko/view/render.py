"""Pictures of a robot without a browser: a PNG of a configuration, a GIF of a motion.

Triangles are drawn into an image with a depth for each pixel, in NumPy; light comes from above the viewer,
and throws a shadow straight down onto the ground. Needs the extra `plot` (Pillow comes with matplotlib).
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from torchsko.errors import RobotFileWarning, caller_stack_level
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.utils.optional_dependencies import require
from torchsko.view.argument_checks import check_file, check_sight, check_spacing, configurations
from torchsko.view.raster import blend, draw, mask
from torchsko.view.scene import Kind, Scene, scene_of
from torchsko.view.undrawn import told

if TYPE_CHECKING:
    from PIL.Image import Image

FINER = 2
"""Pixels drawn for each of the picture, per side: their mean has smooth edges."""

DISTANCE = 4.0
"""Of the eye, in radii of what is drawn."""

FILLED = 0.86
"""Part of the picture's width or height that the robot fills."""

LIGHT = np.array([0.35, 0.25, 0.9]) / np.linalg.norm([0.35, 0.25, 0.9])
"""Towards the light, in the eye's frame turned upright."""

SHADOW = 0.86
"""What is left of the ground's brightness there."""

TILES = 12
"""Of the ground, per side."""


@dataclass(frozen=True, eq=False)
class Eye:
    """Who looks.

    Attributes:
        rotation: takes world coordinates to right, up, towards the eye.
        target: what is looked at [m].
        radius: of what shall be in the picture [m].
        size: width and height in pixels.
        ground: height of the ground [m].
        middle: what comes to the middle of the picture, in pixels about it before the zoom.
        zoom: then.
    """

    rotation: np.ndarray
    target: np.ndarray
    radius: float
    size: tuple[int, int]
    ground: float
    middle: tuple[float, float] = (0.0, 0.0)
    zoom: float = 1.0

    def project(self, points: np.ndarray) -> np.ndarray:
        """Columns and rows in pixels, and depth that is linear over a triangle: 1 / distance, negative."""
        seen = (points - self.target) @ self.rotation.T
        distance = np.maximum(DISTANCE * self.radius - seen[..., 2], 1e-3 * self.radius)
        scale = min(self.size) / distance
        across, down = scale * seen[..., 0], -scale * seen[..., 1]
        return np.stack(
            [
                self.size[0] / 2 + self.zoom * (across - self.middle[0]),
                self.size[1] / 2 + self.zoom * (down - self.middle[1]),
                -1.0 / distance,
            ],
            -1,
        )

    def around(self, points: np.ndarray) -> Eye:
        """The same eye, with points filling the picture."""
        size = np.array(self.size)
        seen = self.project(points)[:, :2] - size / 2
        low, high = seen.min(axis=0), seen.max(axis=0)
        x, y = (low + high) / 2
        zoom = FILLED * np.min(size / np.maximum(high - low, 1e-9))
        return replace(self, middle=(float(x), float(y)), zoom=float(zoom))


def picture(
    mech: MechanismLike,
    q: Tensor,
    path: str | os.PathLike[str] | None = None,
    *,
    size: tuple[int, int] = (640, 480),
    view: tuple[float, float] = (40.0, 20.0),
    kind: Kind = "visual",
) -> Image:
    """A picture of a robot.

    Args:
        mech: the robot.
        q: a configuration `[num_q]`, or several `[n, num_q]`, drawn in one picture.
        path: where to save it; the ending says how (".png").
        size: width and height in pixels.
        view: from where: degrees about the vertical from x, and above the horizon.
        kind: "visual", "collision" or "inertia" (`torchsko.view.scene.scene_of`).

    Returns:
        A Pillow image, which a notebook shows.

    Raises:
        MissingExtraError: when Pillow is not installed.
        RobotFileError: when the folder of the file is not there, or its ending is of no picture.
        ShapeError: when q does not fit or is not finite, or size or view is none.

    A `RobotFileWarning` names shapes that cannot be drawn, such as meshes that are not there.
    """
    image = require("PIL.Image", "plot")
    if path is not None:
        known = image.registered_extensions()
        check_file(path, known, "The ending says how a picture is written.", ".png")
    check_sight(size, view)
    scene = _visible(mech, kind)
    qs = configurations(scene.mech, q)
    drawn = image.fromarray(_frame(scene, qs, _eye(scene, qs, size, view)))
    if path is not None:
        drawn.save(os.fspath(path))
    return drawn


def animate(
    mech: MechanismLike,
    qs: Tensor,
    path: str | os.PathLike[str],
    *,
    dt: float = 1 / 25,
    size: tuple[int, int] = (400, 300),
    view: tuple[float, float] = (40.0, 20.0),
    kind: Kind = "visual",
) -> None:
    """Save a motion as an animated GIF.

    Args:
        mech: the robot.
        qs: configurations, `[steps, num_q]`.
        path: of the file, a .gif.
        dt: time from each to the next [s]; a GIF counts in hundredths.
        size: width and height in pixels.
        view: as in `picture`.
        kind: as in `picture`.

    Raises:
        MissingExtraError: when Pillow is not installed.
        RobotFileError: when the folder of the file is not there, or the file no .gif.
        ShapeError: when qs does not fit or is not finite, or size, view or dt is none.
    """
    image = require("PIL.Image", "plot")
    check_file(path, (".gif",), "A motion is written as a GIF.", ".gif")
    check_sight(size, view)
    check_spacing(dt)
    scene = _visible(mech, kind)
    qs = configurations(scene.mech, qs)
    eye = _eye(scene, qs, size, view)
    frames = [image.fromarray(_frame(scene, q[None], eye)) for q in qs]
    # One palette for all: colours that flicker look like motion.
    palette = frames[0].quantize(255)
    small = [frame.quantize(palette=palette, dither=0) for frame in frames]
    small[0].save(
        os.fspath(path), format="GIF", save_all=True, append_images=small[1:],
        duration=max(20, round(dt * 1000)), loop=0,
    )  # fmt: skip


def _visible(mech: MechanismLike, kind: Kind) -> Scene:
    """What there is to see, without what the file gives no opacity; a warning says what is missing."""
    scene = scene_of(mech, kind)
    if lines := told([scene]):
        warnings.warn(
            f"{scene.mech.name!r}:\n{lines}", RobotFileWarning, stacklevel=caller_stack_level()
        )
    return replace(scene, nodes=tuple(node for node in scene.nodes if node.colour[3] > 0))


def _eye(scene: Scene, qs: Tensor, size: tuple[int, int], view: tuple[float, float]) -> Eye:
    """An eye that sees all configurations."""
    corners = scene.corners(qs)
    low, high = corners.min(axis=0), corners.max(axis=0)
    around, above = np.radians(view)
    back = np.array([np.cos(above) * np.cos(around), np.cos(above) * np.sin(around), np.sin(above)])
    right = np.array([-np.sin(around), np.cos(around), 0.0])
    rotation = np.stack([right, np.cross(back, right), back])
    floors = [node.triangles.vertices[:, 2].max() for node in scene.nodes if node.floor]
    ground = max(floors) if floors else min(0.0, low[2])
    radius = 0.5 * float(np.linalg.norm(high - low)) or 1.0
    finer = (FINER * size[0], FINER * size[1])
    eye = Eye(rotation, (low + high) / 2, radius, finer, float(ground))
    return eye.around(corners)


def _frame(scene: Scene, qs: Tensor, eye: Eye) -> np.ndarray:
    """An image `[height, width, 3]` of 8 bits, of all configurations at once."""
    solid, clear = _triangles(scene, qs)
    every = np.concatenate([solid[0], *(corners for corners, _, _ in clear)])
    tiles, tile_tint = _tiles(eye)
    pixels, depths = np.ones((eye.size[1], eye.size[0], 3)), np.full(eye.size[::-1], np.inf)
    draw(pixels, eye.project(tiles), tile_tint)
    flat = every.copy()
    flat[..., 2] = eye.ground
    above = every[..., 2].max(axis=-1) > eye.ground
    shade = np.zeros(pixels.shape[:2], dtype=bool)
    mask(shade, eye.project(flat[above]))
    pixels = np.where(shade[..., None], SHADOW * pixels, pixels)
    draw(pixels, eye.project(solid[0]), _lit(*solid, eye), depths)
    placed = [(eye.project(c), _lit(c, tint, eye), opacity) for c, tint, opacity in clear]
    for corners, lit, opacity in sorted(placed, key=lambda x: -float(x[0][..., 2].mean())):
        blend(pixels, corners, lit, depths, opacity)
    coarse = pixels.reshape(eye.size[1] // FINER, FINER, eye.size[0] // FINER, FINER, 3)
    return np.round(255 * coarse.mean(axis=(1, 3))).astype(np.uint8)


Tinted = tuple[np.ndarray, np.ndarray]
"""Corners of triangles in the world `[n, 3, 3]` [m], and their colours `[n, 3]`."""


def _triangles(
    scene: Scene, qs: Tensor
) -> tuple[Tinted, list[tuple[np.ndarray, np.ndarray, float]]]:
    """What is opaque, all together; and each shape that is seen through, with its opacity."""
    R, r = scene.poses(qs)
    solid: list[Tinted] = [(np.zeros((0, 3, 3)), np.zeros((0, 3)))]
    clear = []
    for node in scene.nodes:
        if node.floor:
            continue  # the ground stands for it
        tint = np.tile(node.colour[:3], (len(node.triangles.faces), 1))
        for turn, shift in zip(R[:, node.frame], r[:, node.frame], strict=True):
            placed = (node.triangles.vertices @ turn.T + shift)[node.triangles.faces]
            if node.colour[3] >= 1:
                solid.append((placed, tint))
            else:
                clear.append((placed, tint, node.colour[3]))
            if node.frame < 0:
                break
    corners, tints = (np.concatenate(column) for column in zip(*solid, strict=True))
    return (corners, tints), clear


def _tiles(eye: Eye) -> tuple[np.ndarray, np.ndarray]:
    """The ground as tiles of two greys that fade outwards: triangles and colours."""
    if eye.rotation[2, 2] <= 0:
        return np.zeros((0, 3, 3)), np.zeros((0, 3))  # seen from below
    edge = 10 ** np.floor(np.log10(eye.radius)) / 2
    edge *= 1 if eye.radius / edge < 8 else 2
    first = np.round(eye.target[:2] / edge) - TILES
    i, j = np.meshgrid(np.arange(2 * TILES), np.arange(2 * TILES), indexing="ij")
    places = np.stack([i, j], -1).reshape(-1, 2)
    x, y = ((first + places) * edge).T
    z = np.full_like(x, eye.ground)
    a, b, c, d = (
        np.stack([x + dx * edge, y + dy * edge, z], -1)
        for dx, dy in ((0, 0), (1, 0), (1, 1), (0, 1))
    )
    away = np.linalg.norm((places + 0.5) / TILES - 1, axis=-1)
    dark = 0.10 - 0.045 * ((places + first).sum(axis=-1) % 2)
    grey = 1 - dark * np.clip(1.15 - away, 0, 1)
    triangles = np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])
    return triangles, np.repeat(np.tile(grey, 2)[:, None], 3, axis=1)


def _lit(corners: np.ndarray, tint: np.ndarray, eye: Eye) -> np.ndarray:
    """Colours as the light leaves them; both sides of a triangle are alike."""
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normal /= np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-30)
    back = eye.rotation[2]
    normal *= np.sign(normal @ back)[:, None]
    level = np.array([back[0], back[1], 0.0]) / max(float(np.hypot(back[0], back[1])), 1e-9)
    light = LIGHT[0] * eye.rotation[0] + LIGHT[1] * level + LIGHT[2] * np.array([0.0, 0.0, 1.0])
    bright = 0.58 + 0.30 * np.clip(normal @ light, 0, 1) + 0.16 * np.abs(normal @ back)
    return np.clip(tint * bright[:, None], 0, 1)
