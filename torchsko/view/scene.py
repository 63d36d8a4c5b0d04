"""Scenes: colored triangles on the frames of a robot.

Shapes come from the robot file. A body without shapes, or whose meshes are missing, is drawn as an ellipsoid
with rods to its joints. The solid ellipsoid of the body's mass and principal moments of inertia has the
semi-axes a^2 = 5 (I_2 + I_3 - I_1) / (2 m). An inertia with a density below that of foam is a placeholder
whose ellipsoid would hide other bodies: it is drawn with the density of water.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError, MissingExtraError, RobotFileError
from torchsko.io.common.meshes import Part, read_mesh
from torchsko.mechanism.configuration import within_limits
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.geometry import Color, Shape
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.capsule import Capsule
from torchsko.shapes.ellipsoid import Ellipsoid
from torchsko.shapes.mesh import Mesh, Triangles, triangles_of
from torchsko.shapes.plane import Plane
from torchsko.verbs.frames import frame_pose

Kind = Literal["visual", "collision", "inertia"]
"""Kind of shapes to draw."""

DEFAULT_COLOUR: Color = (0.72, 0.74, 0.78, 1.0)
"""Color of a shape without a color in its file."""

FLOOR_COLOUR: Color = (0.88, 0.89, 0.91, 1.0)
"""Color of a plane on the inertial frame."""

INERTIA_COLOUR: Color = (0.96, 0.62, 0.36, 0.8)
"""Color of inertia ellipsoids."""

ROD_COLOUR: Color = (0.35, 0.38, 0.44, 1.0)
"""Color of the rods between joints."""

MAX_GROUND_SAMPLES = 100
"""Largest number of configurations of a motion that determine the height of the ground."""

MIN_DENSITY = 30.0
"""Density below which an inertia counts as a placeholder: that of foam [kg/m^3]."""

FALLBACK_DENSITY = 1000.0
"""Density with which a placeholder is drawn [kg/m^3]."""

MAX_LISTED_SHAPES = 12
"""Missing shapes that a message names."""


@dataclass(frozen=True, eq=False)
class Node:
    """Triangles of one color on a frame.

    Attributes:
        name: names of the frame and of the shape.
        frame: index of the mechanism's frame; -1: the inertial frame.
        triangles: in the frame's coordinates [m].
        color: red, green, blue, opacity.
        floor: True for a plane on the inertial frame, which does not count for the robot's size.
        substitute: True for an ellipsoid or rod drawn in place of missing shapes.
    """

    name: str
    frame: int
    triangles: Triangles
    color: Color
    floor: bool = False
    substitute: bool = False


@dataclass(frozen=True, eq=False)
class Scene:
    """Shapes of a robot to draw.

    Attributes:
        mech: the mechanism.
        nodes: colored triangles.
        missing: shapes that cannot be drawn, with the reason.
        advice: what the user can type to cure that.
    """

    mech: Mechanism
    nodes: tuple[Node, ...]
    missing: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Scene({self.mech.name!r}: {len(self.nodes)} nodes, {len(self.missing)} missing)"

    @property
    def frames(self) -> tuple[int, ...]:
        """Indices of the frames with nodes, except the inertial frame."""
        return tuple(sorted({node.frame for node in self.nodes if node.frame >= 0}))

    def poses(self, q: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Poses of all frames of the mechanism, by index, and last that of the inertial frame.

        Args:
            q: `[*batch, num_q]`.

        Returns:
            Rotations `[*batch, num_frames + 1, 3, 3]` and positions `[*batch, num_frames + 1, 3]` [m].
        """
        with torch.no_grad():
            pose = frame_pose(self.mech, q, self.mech.frame_names)
        R, r = (x.cpu().double().numpy() for x in (pose.rotation, pose.position))
        identity = np.broadcast_to(np.eye(3), (*R.shape[:-3], 1, 3, 3))
        return (
            np.concatenate([R, identity], -3),
            np.concatenate([r, np.zeros((*r.shape[:-2], 1, 3))], -2),
        )

    def lowest(self, q: Tensor) -> float:
        """Height of the lowest point of the moving bodies; 0 if none is drawn [m].

        Args:
            q: `[num_q]`.
        """
        R, r = self.poses(q)
        heights = [
            (node.triangles.vertices @ R[node.frame, 2] + r[node.frame, 2]).min()
            for node in self.nodes
            if self._moves(node)
        ]
        return float(min(heights, default=0.0))

    def ground(self, motion: Tensor) -> float:
        """Height of the ground [m].

        It is the height of the floor, if there is one, and else at most 0: for a robot with a fixed base the
        lowest point of the motion, for a floating robot the lowest point of its first configuration.

        Args:
            motion: configurations `[steps, num_q]`.
        """
        floors = [node.triangles.vertices[:, 2].max() for node in self.nodes if node.floor]
        if floors:
            return float(max(floors))
        roots = (k for k, parent in enumerate(self.mech.parents) if parent < 0)
        if any(self.mech.joints.kinds[k].name == "free" for k in roots):
            return min(0.0, self.lowest(motion[0]))
        samples = motion[:: -(-len(motion) // MAX_GROUND_SAMPLES)]
        return min(0.0, *(self.lowest(q) for q in samples))

    def corners(self, q: Tensor, shifts: np.ndarray | None = None) -> np.ndarray:
        """Corners of the bounding boxes of all nodes except floors, `[n, 3]` [m].

        Args:
            q: `[*batch, num_q]`; the boxes of the whole batch are returned.
            shifts: displacements that are subtracted from the boxes of each configuration, `[steps, 3]` [m];
                those of nodes that do not move are left out where some are not zero.
        """
        R, r = (x.reshape(-1, *x.shape[q.ndim - 1 :]) for x in self.poses(q))
        nodes = [node for node in self.nodes if not node.floor]
        if shifts is not None and shifts.any():
            nodes = [node for node in nodes if self._moves(node)] or nodes
            r = r - shifts[:, None]
        found = [
            _box_corners(node.triangles.vertices) @ R[:, node.frame].mT + r[:, None, node.frame]
            for node in nodes
        ]
        if not found:
            return _box_corners(np.array([[-0.5] * 3, [0.5] * 3]))
        return np.concatenate(found).reshape(-1, 3)

    def _moves(self, node: Node) -> bool:
        return node.frame >= 0 and self.mech.frame_body[node.frame] >= 0


def scene_of(mech: MechanismLike, kind: Kind = "visual") -> Scene:
    """Build the scene of a robot.

    Args:
        mech: a mechanism without batch dimensions, or an object that has one.
        kind: "visual" shapes, "collision" shapes, or "inertia": an ellipsoid for each body. A body without
            visual shapes is drawn with its collision shapes, and a body without shapes as its ellipsoid.

    Raises:
        MechanismError: for another kind, or a batch of mechanisms.
    """
    mech = as_mechanism(mech)
    _check_kind(mech, kind)
    nodes: list[Node] = []
    missing: list[str] = []
    advice: list[str] = []
    drawn: set[int | str] = set()
    known: dict[Mesh, tuple[Part, ...]] = {}  # equal legs share their meshes
    for shapes in _shapes_of_kind(mech, kind):
        found: set[int | str] = set()
        for shape in shapes:
            frame = -1 if shape.frame is None else mech.frame_index(shape.frame)
            body = -1 if frame < 0 else mech.frame_body[frame]
            # All links that do not move are one body, but each is drawn.
            owner = body if body >= 0 else shape.frame or ""
            if owner in drawn:
                continue
            try:
                nodes += _shape_nodes(shape, frame, known)
                found.add(owner)
            except (RobotFileError, MissingExtraError) as error:
                missing.append(f"{shape.frame}: {error.what}")
                advice.append(error.advice)
        drawn |= found
    bare = [k for k in range(mech.num_bodies) if k not in drawn]
    limit_size = kind != "inertia" and len(bare) < mech.num_bodies
    nodes += [node for k in bare for node in _ellipsoid(mech, k, limit_size)] + _rods(mech, bare)
    return Scene(mech, tuple(nodes), tuple(missing), tuple(dict.fromkeys(advice)))


def describe_missing(scenes: Sequence[Scene]) -> str:
    """Lines about shapes that cannot be drawn, with advice; empty if there are none."""
    missing = [line for scene in scenes for line in scene.missing]
    advice = dict.fromkeys(line for scene in scenes for line in scene.advice)
    lines = [f"not drawn: {line}" for line in missing[:MAX_LISTED_SHAPES]]
    more = len(missing) - MAX_LISTED_SHAPES
    lines += [f"and {more} more"] if more > 0 else []
    return "\n".join([*lines, *list(advice)[:MAX_LISTED_SHAPES]])


def start_of(scene: Scene) -> Tensor:
    """The initial configuration of the file, moved into the joint limits.

    A floating robot without an initial position in the file is placed on the ground.
    """
    mech = scene.mech
    start, neutral = mech.initial(), mech.neutral()
    q = within_limits(mech, start)
    roots = [k for k, parent in enumerate(mech.parents) if parent < 0]
    if [mech.joints.kinds[k].name for k in roots] != ["free"]:
        return q
    base = mech.q_slice(mech.tree_joint_names[roots[0]])
    if not torch.equal(start[base], neutral[base]):
        return q
    floors = [node.triangles.vertices[:, 2].max() for node in scene.nodes if node.floor]
    lift = torch.zeros_like(q)
    lift[base.start + 2] = float(max(floors, default=0.0)) - scene.lowest(q)
    return q + lift


def _shapes_of_kind(mech: Mechanism, kind: str) -> list[tuple[Shape, ...]]:
    """Shapes of a kind, and then those that replace them on bodies without."""
    shapes = mech.geometry
    other = tuple(shape for shape in shapes.collision if not shape.visual)
    return {"visual": [shapes.visual, other], "collision": [shapes.collision], "inertia": []}[kind]


def _check_kind(mech: Mechanism, kind: str) -> None:
    if kind not in ("visual", "collision", "inertia"):
        raise MechanismError(
            f"kind={kind!r} is unknown.",
            "It selects the shapes to draw.",
            'Pass "visual", "collision" or "inertia".',
        )
    if mech.batch_shape:
        raise MechanismError(
            f"{mech.name!r} is a batch of shape {list(mech.batch_shape)}.",
            "Only one robot is drawn at a time.",
            "Pass a mechanism without batch dimensions: mech.replace(...) with the tensors of one sample.",
        )


def _shape_nodes(shape: Shape, frame: int, known: dict[Mesh, tuple[Part, ...]]) -> list[Node]:
    """Nodes of a shape: one, or one for each color of a mesh."""
    form = shape.form
    floor = isinstance(form, Plane) and frame < 0
    if isinstance(form, Mesh):
        parts = known[form] = known.get(form) or read_mesh(form)
    else:
        parts = (Part(triangles_of(form)),)
    name = shape.frame or "inertial frame"
    turn, shift = np.array(shape.rotation), np.array(shape.position)
    plain = FLOOR_COLOUR if floor else DEFAULT_COLOUR
    return [
        Node(
            f"{name}: {shape.name or type(form).__name__.lower()}",
            frame,
            Triangles(part.triangles.vertices @ turn.T + shift, part.triangles.faces),
            # The colors of a mesh with several take precedence over the single color of its link.
            (part.color if len(parts) > 1 else shape.color or part.color) or plain,
            floor,
        )
        for part in parts
    ]


def _ellipsoid(mech: Mechanism, k: int, limit_size: bool) -> list[Node]:
    """The inertia ellipsoid of a body with mass; `limit_size` shrinks placeholders."""
    name = mech.body_names[k]
    mass = float(mech.mass[k].detach())
    if mass <= 0 or name not in mech.frame_names:
        return []
    moments, axes = np.linalg.eigh(mech.inertia[k].detach().cpu().double().numpy())
    squares = np.maximum(2.5 / mass * (moments.sum() - 2 * moments), 0.0)
    # A least thickness keeps flat and thin bodies visible.
    radii = np.maximum(np.sqrt(squares), 0.05 * np.sqrt(squares.max()) + 1e-4)
    density = mass / (4 / 3 * np.pi * radii.prod())
    if limit_size and density < MIN_DENSITY:
        radii = radii * np.cbrt(density / FALLBACK_DENSITY)
    ball = triangles_of(Ellipsoid(tuple(radii.tolist())))
    turn = axes * np.sign(np.linalg.det(axes))
    com = mech.com[k].detach().cpu().double().numpy()
    placed = Triangles(ball.vertices @ turn.T + com, ball.faces)
    frame = mech.frame_index(name)
    return [Node(f"{name}: inertia", frame, placed, INERTIA_COLOUR, substitute=True)]


def _rods(mech: Mechanism, bodies: Sequence[int]) -> list[Node]:
    """Rods from the origin of each given body to its child joints.

    If all bodies are given, also from the inertial frame.
    """
    ends: list[tuple[int, np.ndarray]] = []
    for k, parent in enumerate(mech.parents):
        on = mech.body_names[parent] if parent >= 0 else ""
        if (parent in bodies and on in mech.frame_names) or len(bodies) == mech.num_bodies:
            end = mech.joint_position[k].detach().cpu().double().numpy()
            ends.append((mech.frame_index(on) if on in mech.frame_names else -1, end))
    lengths = [float(np.linalg.norm(end)) for _, end in ends]
    thick = 0.03 * max(lengths, default=0.0)
    return [
        Node("rod", frame, _rod(end, length, thick), ROD_COLOUR, substitute=True)
        for (frame, end), length in zip(ends, lengths, strict=True)
        if length > thick > 0
    ]


def _rod(end: np.ndarray, length: float, radius: float) -> Triangles:
    """A capsule from the origin to a point."""
    along = end / length
    aside = np.cross(along, np.eye(3)[np.abs(along).argmin()])
    aside /= np.linalg.norm(aside)
    turn = np.stack([aside, np.cross(along, aside), along], -1)
    rod = triangles_of(Capsule(radius, length))
    return Triangles(rod.vertices @ turn.T + end / 2, rod.faces)


def _box_corners(points: np.ndarray) -> np.ndarray:
    """Corners of the bounding box of points, `[8, 3]`."""
    ends = np.stack([points.min(axis=0), points.max(axis=0)])
    return np.array([[ends[i, 0], ends[j, 1], ends[k, 2]] for i, j, k in np.ndindex(2, 2, 2)])
