"""Pictures of configurations and animated GIFs of motions, without a browser.

Triangles are rasterized in NumPy with a depth buffer. Light comes from above the camera; shadows fall
vertically onto the ground. Needs the extra `plot` (Pillow comes with matplotlib).
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import RobotFileWarning, caller_stack_level
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.optional_dependencies import require
from torchsko.verbs.frames import frame_pose
from torchsko.view.option_checks import (
    check_file,
    check_size_and_view,
    check_time_step,
    configurations,
)
from torchsko.view.raster import blend, draw, mask
from torchsko.view.scene import Kind, Scene, describe_missing, scene_of

if TYPE_CHECKING:
    from PIL.Image import Image

SUPERSAMPLING = 2
"""Rasterized pixels for each pixel of the picture, per side; their mean has smooth edges."""

CAMERA_DISTANCE = 4.0
"""Distance of the camera, in radii of the scene."""

FILL_RATIO = 0.86
"""Share of the picture's width or height that the robot fills."""

LIGHT_DIRECTION = np.array([0.35, 0.25, 0.9]) / np.linalg.norm([0.35, 0.25, 0.9])
"""Direction towards the light, in the camera's frame turned upright."""

SHADOW_BRIGHTNESS = 0.86
"""Brightness of the ground in the shadow, relative to that in the light."""

TILES_PER_SIDE = 12
"""Half the number of tiles per side of the ground."""


@dataclass(frozen=True, eq=False)
class Camera:
    """A perspective camera.

    Attributes:
        rotation: takes world coordinates to right, up, towards the camera.
        target: point at which the camera looks [m].
        radius: of the scene [m].
        size: width and height in pixels.
        ground: height of the ground [m].
        middle: pixel offset of the picture's center before the zoom.
        zoom: magnification about that point.
    """

    rotation: np.ndarray
    target: np.ndarray
    radius: float
    size: tuple[int, int]
    ground: float
    middle: tuple[float, float] = (0.0, 0.0)
    zoom: float = 1.0

    def project(self, points: np.ndarray) -> np.ndarray:
        """Column and row [pixels] and depth of points; the depth -1 / distance is linear over a triangle."""
        local = (points - self.target) @ self.rotation.T
        distance = np.maximum(CAMERA_DISTANCE * self.radius - local[..., 2], 1e-3 * self.radius)
        scale = min(self.size) / distance
        across, down = scale * local[..., 0], -scale * local[..., 1]
        return np.stack(
            [
                self.size[0] / 2 + self.zoom * (across - self.middle[0]),
                self.size[1] / 2 + self.zoom * (down - self.middle[1]),
                -1.0 / distance,
            ],
            -1,
        )

    def framing(self, points: np.ndarray) -> Camera:
        """A copy of this camera whose picture the points fill."""
        size = np.array(self.size)
        pixels = self.project(points)[:, :2] - size / 2
        low, high = pixels.min(axis=0), pixels.max(axis=0)
        x, y = (low + high) / 2
        zoom = FILL_RATIO * np.min(size / np.maximum(high - low, 1e-9))
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
    """Draw a picture of a robot.

    Args:
        mech: the robot.
        q: a configuration `[num_q]`, or several `[n, num_q]` in one picture.
        path: output file; its ending selects the format, such as ".png". None: no file.
        size: width and height in pixels.
        view: azimuth of the camera from the x axis and its elevation [deg].
        kind: "visual", "collision" or "inertia" (`torchsko.view.scene.scene_of`).

    Returns:
        A Pillow image, which notebooks display.

    Raises:
        MissingExtraError: if Pillow is not installed.
        RobotFileError: if the folder of the file does not exist, or the ending is unknown.
        ShapeError: if q does not fit or is not finite, or size or view is invalid.

    A `RobotFileWarning` names shapes that cannot be drawn, such as missing meshes.
    """
    image = require("PIL.Image", "plot")
    if path is not None:
        known = image.registered_extensions()
        check_file(path, known, "The ending selects the format of the picture.", ".png")
    check_size_and_view(size, view)
    scene = _visible_scene(mech, kind)
    qs = configurations(scene.mech, q)
    drawn = image.fromarray(_frame(scene, qs, _camera(scene, qs, size, view)))
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
    follow: str | None = None,
) -> None:
    """Save a motion as an animated GIF.

    Args:
        mech: the robot.
        qs: configurations, `[steps, num_q]`.
        path: output file, a .gif.
        dt: time from one configuration to the next [s]; a GIF has a resolution of 0.01 s.
        size: width and height in pixels.
        view: as in `picture`.
        kind: as in `picture`.
        follow: name of a frame with which the camera moves along the ground; None for a camera that stands
            still and shows the whole way.

    Raises:
        MissingExtraError: if Pillow is not installed.
        MechanismError: if there is no such frame.
        RobotFileError: if the folder of the file does not exist, or the ending is not .gif.
        ShapeError: if qs does not fit or is not finite, or size, view or dt is invalid.
    """
    image = require("PIL.Image", "plot")
    check_file(path, (".gif",), "A motion is written as a GIF.", ".gif")
    check_size_and_view(size, view)
    check_time_step(dt)
    scene = _visible_scene(mech, kind)
    qs = configurations(scene.mech, qs)
    shifts = np.zeros((len(qs), 3)) if follow is None else _way(scene.mech, qs, follow)
    camera = _camera(scene, qs, size, view, shifts)
    frames = [
        image.fromarray(_frame(scene, q[None], replace(camera, target=camera.target + shift)))
        for q, shift in zip(qs, shifts, strict=True)
    ]
    # A palette for each frame would make colors flicker.
    palette = frames[0].quantize(255)
    small = [frame.quantize(palette=palette, dither=0) for frame in frames]
    small[0].save(
        os.fspath(path), format="GIF", save_all=True, append_images=small[1:],
        duration=max(20, round(dt * 1000)), loop=0,
    )  # fmt: skip


def _visible_scene(mech: MechanismLike, kind: Kind) -> Scene:
    """The scene without fully transparent nodes; warns of missing shapes."""
    scene = scene_of(mech, kind)
    if missing := describe_missing([scene]):
        warnings.warn(
            f"{scene.mech.name!r}:\n{missing}", RobotFileWarning, stacklevel=caller_stack_level()
        )
    return replace(scene, nodes=tuple(node for node in scene.nodes if node.color[3] > 0))


def _way(mech: Mechanism, qs: Tensor, frame: str) -> np.ndarray:
    """Way of a frame along the ground from its first position, `[steps, 3]` [m]."""
    with torch.no_grad():
        position = frame_pose(mech, qs, frame).position.cpu().double().numpy()
    return (position - position[0]) * (1.0, 1.0, 0.0)


def _camera(
    scene: Scene,
    qs: Tensor,
    size: tuple[int, int],
    view: tuple[float, float],
    shifts: np.ndarray | None = None,
) -> Camera:
    """A camera whose picture contains all configurations, each less a shift `[steps, 3]`."""
    corners = scene.corners(qs, shifts)
    low, high = corners.min(axis=0), corners.max(axis=0)
    around, above = np.radians(view)
    back = np.array([np.cos(above) * np.cos(around), np.cos(above) * np.sin(around), np.sin(above)])
    right = np.array([-np.sin(around), np.cos(around), 0.0])
    rotation = np.stack([right, np.cross(back, right), back])
    floors = [node.triangles.vertices[:, 2].max() for node in scene.nodes if node.floor]
    ground = max(floors) if floors else min(0.0, low[2])
    radius = 0.5 * float(np.linalg.norm(high - low)) or 1.0
    pixels = (SUPERSAMPLING * size[0], SUPERSAMPLING * size[1])
    camera = Camera(rotation, (low + high) / 2, radius, pixels, float(ground))
    return camera.framing(corners)


def _frame(scene: Scene, qs: Tensor, camera: Camera) -> np.ndarray:
    """An 8-bit image `[height, width, 3]` of all configurations together."""
    solid, transparent = _triangles(scene, qs)
    flat = np.concatenate([solid[0], *(corners for corners, _, _ in transparent)])
    above = flat[..., 2].max(axis=-1) > camera.ground
    flat[..., 2] = camera.ground
    gray = _ground(camera)
    shade = np.zeros(gray.shape, dtype=bool)
    mask(shade, camera.project(flat[above]))
    gray[shade] *= SHADOW_BRIGHTNESS
    pixels, depths = np.repeat(gray[..., None], 3, axis=-1), np.full(gray.shape, np.inf)
    draw(pixels, camera.project(solid[0]), _lighted(*solid, camera), depths)
    placed = [(camera.project(c), _lighted(c, tint, camera), a) for c, tint, a in transparent]
    for corners, lit, opacity in sorted(placed, key=lambda x: -float(x[0][..., 2].mean())):
        blend(pixels, corners, lit, depths, opacity)
    total, offsets = np.zeros((1, 1, 1)), range(SUPERSAMPLING)
    for i, j in product(offsets, offsets):
        total = total + pixels[i::SUPERSAMPLING, j::SUPERSAMPLING]
    return np.round(255 / SUPERSAMPLING**2 * total).astype(np.uint8)


Tinted = tuple[np.ndarray, np.ndarray]
"""Corners of triangles in the world `[n, 3, 3]` [m] and their colors `[n, 3]`."""


def _triangles(
    scene: Scene, qs: Tensor
) -> tuple[Tinted, list[tuple[np.ndarray, np.ndarray, float]]]:
    """Triangles of all opaque shapes, and those of each transparent shape with its opacity."""
    R, r = scene.poses(qs)
    solid: list[Tinted] = [(np.zeros((0, 3, 3)), np.zeros((0, 3)))]
    transparent = []
    for node in scene.nodes:
        if node.floor:
            continue  # the ground is drawn instead
        tint = np.tile(node.color[:3], (len(node.triangles.faces), 1))
        for turn, shift in zip(R[:, node.frame], r[:, node.frame], strict=True):
            placed = (node.triangles.vertices @ turn.T + shift)[node.triangles.faces]
            if node.color[3] >= 1:
                solid.append((placed, tint))
            else:
                transparent.append((placed, tint, node.color[3]))
            if node.frame < 0:
                break
    corners, tints = (np.concatenate(column) for column in zip(*solid, strict=True))
    return (corners, tints), transparent


def _ground(camera: Camera) -> np.ndarray:
    """Gray levels of the ground `[height, width]`: tiles that fade outwards; white around and from below."""
    (width, height), (right, up, back) = camera.size, camera.rotation
    eye = camera.target + CAMERA_DISTANCE * camera.radius * back
    across = (np.arange(width) + 0.5 - width / 2) / camera.zoom + camera.middle[0]
    down = (np.arange(height) + 0.5 - height / 2) / camera.zoom + camera.middle[1]
    # The ray of a pixel is eye + distance * (across * right - down * up - back); right is level.
    ahead = -down[:, None] / min(camera.size) * up - back
    slope = ahead[:, 2]
    is_seen = slope * (camera.ground - eye[2]) > 0
    distance = (camera.ground - eye[2]) / np.where(is_seen, slope, 1.0)
    edge = 10 ** np.floor(np.log10(camera.radius)) / 2
    edge *= 1 if camera.radius / edge < 8 else 2
    first = np.round(camera.target[:2] / edge) - TILES_PER_SIDE
    aside = distance[:, None] * across / min(camera.size)
    i, j = (
        np.floor(((eye + distance[:, None] * ahead)[:, k, None] + aside * right[k]) / edge)
        - first[k]
        for k in range(2)
    )
    count = 2 * TILES_PER_SIDE
    is_tile = is_seen[:, None] & (i >= 0) & (i < count) & (j >= 0) & (j < count)
    is_tile &= camera.rotation[2, 2] > 0
    places = np.stack(np.meshgrid(np.arange(count), np.arange(count), indexing="ij"), -1)
    away = np.linalg.norm((places + 0.5) / TILES_PER_SIDE - 1, axis=-1)
    dark = 0.10 - 0.045 * ((places + first).sum(axis=-1) % 2)
    levels = 1 - dark * np.clip(1.15 - away, 0, 1)
    found = np.ones((height, width))
    found[is_tile] = levels[i[is_tile].astype(np.int64), j[is_tile].astype(np.int64)]
    return found


def _lighted(corners: np.ndarray, tint: np.ndarray, camera: Camera) -> np.ndarray:
    """Shaded colors of triangles; both sides are shaded alike."""
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normal /= np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-30)
    back = camera.rotation[2]
    normal *= np.sign(normal @ back)[:, None]
    level = np.array([back[0], back[1], 0.0]) / max(float(np.hypot(back[0], back[1])), 1e-9)
    light = (
        LIGHT_DIRECTION[0] * camera.rotation[0]
        + LIGHT_DIRECTION[1] * level
        + LIGHT_DIRECTION[2] * np.array([0.0, 0.0, 1.0])
    )
    bright = 0.58 + 0.30 * np.clip(normal @ light, 0, 1) + 0.16 * np.abs(normal @ back)
    return np.clip(tint * bright[:, None], 0, 1)
