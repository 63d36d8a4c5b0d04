"""A robot in a viser scene, with frames, names, center of mass and contacts. Needs the extra `view`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import matrix_to_quaternion
from torchsko.utils.optional_dependencies import require
from torchsko.verbs.momenta import center_of_mass
from torchsko.view.scene import Kind, Scene, scene_of, start_of

NEAR_PLANE, FAR_PLANE = 5e-3, 5e2
"""Distances of the camera's clipping planes, in sizes of the scene."""

CONTACT_HEIGHT = 2e-3
"""Largest height above the ground at which a point counts as in contact [m]."""

OVERLAY_OPACITY = 0.45
"""Opacity of bodies while frames or the center of mass are shown."""

MAX_CONTACT_POINTS = 64
"""Contact points that are shown for a shape."""

RED, YELLOW = (216, 60, 60), (240, 190, 40)


class ViserRobot:
    """A robot on a page.

    Attributes:
        mech: the robot.
        scene: the drawn shapes.
        q: current configuration, `[num_q]`.
    """

    def __init__(self, server: Any, root: str, mech: Mechanism, path: Tensor | None = None) -> None:
        """Draw a robot on the ground of a page, z = 0.

        Args:
            server: viser's server.
            root: name of the robot's node.
            mech: the robot.
            path: configurations of its motion, `[steps, num_q]`; that of `start_of` when left out.
        """
        self.mech, self._server, self._root = mech, server, root
        self._kind = "visual"
        self._bodies: dict[int, Any] = {}
        self._meshes: list[tuple[Any, float]] = []
        self._axes: Any = None
        self._com: Any = None
        self.scene: Scene = scene_of(mech)
        path = start_of(self.scene)[None] if path is None else path
        self.q, self._ground = path[0], self.scene.ground(path)
        self._offset = np.array([0.0, 0.0, -self._ground])
        corners = self.scene.corners(self.q)
        self.size = float(np.linalg.norm(np.ptp(corners, axis=0)))
        self._base = server.scene.add_frame(root, show_axes=False, position=self._offset)
        self._draw()
        self._axes = server.scene.add_batched_axes(
            f"{root}/frames",
            np.tile([1.0, 0.0, 0.0, 0.0], (mech.num_frames, 1)),
            np.zeros((mech.num_frames, 3)),
            axes_length=0.06 * self.size,
            axes_radius=0.003 * self.size,
            visible=False,
        )
        self._labels = [
            server.scene.add_label(
                f"{root}/names/{k}",
                name,
                visible=False,
                font_screen_scale=0.8,
                anchor="bottom-center",
            )
            for k, name in enumerate(mech.body_names)
        ]
        self._com = server.scene.add_icosphere(
            f"{root}/center_of_mass", 0.02 * self.size, YELLOW, visible=False
        )
        self._contacts = self._add_points(np.zeros((0, 3)))
        self._show_contacts = False
        self._collision_scene: Scene | None = None
        self.move(self.q)

    def corners(self, q: Tensor) -> np.ndarray:
        """Corners of the bounding boxes of all shapes, in the page's coordinates, `[n, 3]` [m]."""
        return self.scene.corners(q) + self._offset

    def stand_beside(self, other: ViserRobot) -> None:
        """Move the robot along y until there is space between its box and that of the other robot."""
        room = 0.25 * max(self.size, other.size)
        ends = other.corners(other.q)[:, 1].max(), self.corners(self.q)[:, 1].min()
        self._offset = self._offset + np.array([0.0, ends[0] + room - ends[1], 0.0])
        self._base.position = self._offset

    def draw(self, kind: Kind) -> None:
        """Draw "visual" or "collision" shapes, or "inertia"."""
        if kind == self._kind:
            return
        for handle in self._bodies.values():
            handle.remove()
        self._kind, self._bodies, self._meshes = kind, {}, []
        self.scene = scene_of(self.mech, kind)
        self._draw()
        self.move(self.q)

    def show(self, what: str, visible: bool) -> None:
        """Show "frames", "names", the "center of mass" or "contacts", or hide them."""
        if what == "contacts":
            self._show_contacts = visible
            self.move(self.q)
            return
        handles = {"frames": [self._axes], "names": self._labels, "center of mass": [self._com]}
        for handle in handles[what]:
            handle.visible = visible
        for mesh, opacity in self._meshes:
            mesh.opacity = self._opacity(opacity)

    def move(self, q: Tensor, contacts: np.ndarray | None = None) -> None:
        """Move the robot.

        Args:
            q: `[num_q]`.
            contacts: contact points, `[n, 3]` [m]; those of its shapes with the ground when left out.
        """
        R, r = self.scene.poses(q)
        turns = matrix_to_quaternion(torch.tensor(R)).numpy()
        with torch.no_grad():
            com = center_of_mass(self.mech, q).cpu().double().numpy()
        points = self._points(q, contacts) if self._show_contacts else np.zeros((0, 3))
        with self._server.atomic():
            self.q = q
            for frame, handle in self._bodies.items():
                handle.wxyz, handle.position = turns[frame], r[frame]
            self._axes.batched_wxyzs = turns[:-1].astype(np.float32)
            self._axes.batched_positions = r[:-1].astype(np.float32)
            for name, label in zip(self.mech.body_names, self._labels, strict=True):
                if name in self.mech.frame_names:
                    label.position = r[self.mech.frame_index(name)]
            if np.isfinite(com).all():
                self._com.position = com
            if len(points) or len(self._contacts.points):
                self._contacts.remove()
                self._contacts = self._add_points(points)

    def _draw(self) -> None:
        """Add the nodes of the scene, each below a node of its frame."""
        for k, node in enumerate(self.scene.nodes):
            place = f"{self._root}/{self._kind}/{node.frame}"
            if node.frame not in self._bodies:
                self._bodies[node.frame] = self._server.scene.add_frame(place, show_axes=False)
            red, green, blue, opacity = np.clip(node.color, 0.0, 1.0)
            mesh = self._server.scene.add_mesh_simple(
                f"{place}/{k}",
                np.asarray(node.triangles.vertices, dtype=np.float32),
                np.asarray(node.triangles.faces, dtype=np.uint32),
                color=tuple(round(255 * x) for x in (red, green, blue)),
                opacity=self._opacity(float(opacity)),
                flat_shading=len(node.triangles.faces) < 64,
                side="double",
            )
            self._meshes.append((mesh, float(opacity)))

    def _opacity(self, opacity: float) -> float | None:
        """Opacity of a mesh, reduced while frames or the center of mass are shown; None: opaque."""
        inside = any(handle is not None and handle.visible for handle in (self._axes, self._com))
        return min(opacity, OVERLAY_OPACITY) if inside else opacity if opacity < 1 else None

    def _add_points(self, points: np.ndarray) -> Any:
        return self._server.scene.add_point_cloud(
            f"{self._root}/contacts",
            points.astype(np.float32),
            RED,
            point_size=0.01 * self.size,
            point_shape="circle",
            precision="float32",
        )

    def _points(self, q: Tensor, contacts: np.ndarray | None) -> np.ndarray:
        if contacts is not None:
            return contacts[np.isfinite(contacts).all(axis=-1)]
        if self._collision_scene is None:
            self._collision_scene = scene_of(self.mech, "collision")
        return ground_contacts(self._collision_scene, self._ground, q)


@contextmanager
def silence_viser() -> Iterator[None]:
    """Suppress the messages that viser prints through rich."""
    console = require("rich", "view").get_console()
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before


def place_camera(server: Any, corners: np.ndarray, aside: float = 0.0) -> None:
    """Place the camera of a page so that it shows given points.

    Args:
        server: viser's server.
        corners: points to show, `[n, 3]` [m].
        aside: offset of the points to the left of the center, in their size, to leave space for a panel.
    """
    low, high = corners.min(axis=0), corners.max(axis=0)
    middle, size = (low + high) / 2, float(np.linalg.norm(high - low))
    target = middle + aside * size * np.array([-0.43, 0.9, 0.0])
    camera = server.initial_camera
    # The clipping planes scale with the robot, which may be as small as a fly or as large as a crane.
    camera.near, camera.far = NEAR_PLANE * size, FAR_PLANE * size
    camera.position = tuple(target + size * np.array([0.85, 0.4, 0.35]))
    camera.look_at = tuple(target)


def ground_contacts(scene: Scene, height: float, q: Tensor) -> np.ndarray:
    """Lowest points of each moving shape that is on the ground or below, `[n, 3]` [m].

    Args:
        scene: collision shapes.
        height: of the ground [m].
        q: `[num_q]`.
    """
    R, r = scene.poses(q)
    found = [np.zeros((0, 3))]
    for node in scene.nodes:
        if node.substitute or node.frame < 0 or scene.mech.frame_body[node.frame] < 0:
            continue
        points = node.triangles.vertices @ R[node.frame].T + r[node.frame]
        low = points[:, 2].min()
        if low <= height + CONTACT_HEIGHT:
            found.append(
                np.unique(points[points[:, 2] <= low + CONTACT_HEIGHT].round(6), axis=0)[
                    :MAX_CONTACT_POINTS
                ]
            )
    return np.concatenate(found)
