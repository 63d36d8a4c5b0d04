"""What there is to see of a robot: triangles on frames, and where the frames are.

Shapes come from the robot file. A body of which none can be drawn, since it has none or its mesh is missing,
is drawn as an ellipsoid: the solid one of its mass with its principal moments of inertia,
a^2 = 5 (I_2 + I_3 - I_1) / (2 m), and rods to the joints that it carries. Beside bodies with shapes, one that
would be lighter than foam has numbers that are nobody's, and would hide them: it is drawn as heavy as water.
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
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.geometry import Capsule, Colour, Ellipsoid, Mesh, Plane, Shape, Triangles
from torchsko.mechanism.joints.configuration import within_limits
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.frames import frame_pose
from torchsko.view.tessellate import triangles_of

Kind = Literal["visual", "collision", "inertia"]
"""What is drawn of a robot."""

PLAIN: Colour = (0.72, 0.74, 0.78, 1.0)
"""Of a shape whose file names no colour."""

FLOOR: Colour = (0.88, 0.89, 0.91, 1.0)
"""Of a plane on the inertial frame."""

LUMP: Colour = (0.96, 0.62, 0.36, 0.8)
"""Of ellipsoids of inertia."""

BONE: Colour = (0.35, 0.38, 0.44, 1.0)
"""Of the rods between joints that are drawn with them."""


LOOKED_AT = 100
"""Configurations of a motion, at most, below which the ground is."""

FOAM, WATER = 30.0, 1000.0
"""Densities [kg/m^3]."""


@dataclass(frozen=True, eq=False)
class Node:
    """Triangles of one colour on a frame.

    Attributes:
        name: of the frame, and what it is there.
        frame: number of the mechanism's frame; -1: the inertial frame.
        triangles: in the frame's coordinates [m].
        colour: red, green, blue, opacity.
        floor: whether it is a plane on the inertial frame: no part of the robot's size.
        made: whether it stands for a body of which no shape can be drawn.
    """

    name: str
    frame: int
    triangles: Triangles
    colour: Colour
    floor: bool = False
    made: bool = False


@dataclass(frozen=True, eq=False)
class Scene:
    """A robot to be drawn.

    Attributes:
        mech: the mechanism.
        nodes: what is drawn.
        missing: what could not be, by name, with the reason.
        advice: what to type against that.
    """

    mech: Mechanism
    nodes: tuple[Node, ...]
    missing: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Scene({self.mech.name!r}: {len(self.nodes)} nodes, {len(self.missing)} missing)"

    @property
    def frames(self) -> tuple[int, ...]:
        """Numbers of the frames that carry something, the inertial frame left out."""
        return tuple(sorted({node.frame for node in self.nodes if node.frame >= 0}))

    def poses(self, q: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Where all frames of the mechanism are, by their numbers; the last is the inertial frame.

        Args:
            q: `[*batch, num_q]`, of one robot.

        Returns:
            Rotations `[*batch, num_frames + 1, 3, 3]` and positions `[*batch, num_frames + 1, 3]` [m].
        """
        with torch.no_grad():
            pose = frame_pose(self.mech, q, self.mech.frame_names)
        R, r = (x.cpu().double().numpy() for x in (pose.rotation, pose.position))
        still = np.broadcast_to(np.eye(3), (*R.shape[:-3], 1, 3, 3))
        return (
            np.concatenate([R, still], -3),
            np.concatenate([r, np.zeros((*r.shape[:-2], 1, 3))], -2),
        )

    def lowest(self, q: Tensor) -> float:
        """Height of the lowest point of what moves, 0 where nothing is drawn [m].

        Args:
            q: `[num_q]`.
        """
        R, r = self.poses(q)
        heights = [
            (node.triangles.vertices @ R[node.frame, 2] + r[node.frame, 2]).min()
            for node in self.nodes
            if node.frame >= 0 and self.mech.frame_body[node.frame] >= 0
        ]
        return float(min(heights, default=0.0))

    def ground(self, ways: Tensor) -> float:
        """Height of the ground: of a floor, or the inertial frame's, or below the robot [m].

        Below all that it does, if it hangs on the inertial frame. One that floats may sink into the ground
        on which it starts.

        Args:
            ways: where it starts, and where it goes, `[steps, num_q]`.
        """
        floors = [node.triangles.vertices[:, 2].max() for node in self.nodes if node.floor]
        if floors:
            return float(max(floors))
        roots = (k for k, parent in enumerate(self.mech.parents) if parent < 0)
        if any(self.mech.joints.kinds[k].name == "free" for k in roots):
            return min(0.0, self.lowest(ways[0]))
        some = ways[:: -(-len(ways) // LOOKED_AT)]
        return min(0.0, *(self.lowest(q) for q in some))

    def corners(self, q: Tensor) -> np.ndarray:
        """Corners of boxes about all that is drawn but floors, `[n, 3]` [m].

        Args:
            q: `[*batch, num_q]`; all of the batch together.
        """
        R, r = (x.reshape(-1, *x.shape[q.ndim - 1 :]) for x in self.poses(q))
        found = [
            _box(node.triangles.vertices) @ R[:, node.frame].mT + r[:, None, node.frame]
            for node in self.nodes
            if not node.floor
        ]
        if not found:
            return _box(np.array([[-0.5] * 3, [0.5] * 3]))
        return np.concatenate(found).reshape(-1, 3)


def scene_of(mech: MechanismLike, kind: Kind = "visual") -> Scene:
    """What there is to see of a robot.

    Args:
        mech: a mechanism without batch dimensions, or what has one.
        kind: "visual" shapes, "collision" shapes, or "inertia": an ellipsoid for each body. A body without
            shapes of the kind asked for is drawn by its other shapes, or else by its ellipsoid.

    Raises:
        MechanismError: on another kind, or a batch of mechanisms.
    """
    mech = as_mechanism(mech)
    _check(mech, kind)
    nodes: list[Node] = []
    missing: list[str] = []
    advice: list[str] = []
    drawn: set[int | str] = set()
    known: dict[Mesh, tuple[Part, ...]] = {}  # legs are alike
    for shapes in _chosen(mech, kind):
        found: set[int | str] = set()
        for shape in shapes:
            frame = -1 if shape.frame is None else mech.frame_index(shape.frame)
            body = -1 if frame < 0 else mech.frame_body[frame]
            # What does not move is many links, none of which stands in for another.
            owner = body if body >= 0 else shape.frame or ""
            if owner in drawn:
                continue
            try:
                nodes += _nodes(shape, frame, known)
                found.add(owner)
            except (RobotFileError, MissingExtraError) as error:
                first, *_, last = str(error).splitlines()
                missing.append(f"{shape.frame}: {first}")
                advice.append(last)
        drawn |= found
    bare = [k for k in range(mech.num_bodies) if k not in drawn]
    beside = kind != "inertia" and len(bare) < mech.num_bodies
    nodes += [node for k in bare for node in _lump(mech, k, beside)] + _bones(mech, bare)
    return Scene(mech, tuple(nodes), tuple(missing), tuple(dict.fromkeys(advice)))


def start_of(scene: Scene) -> Tensor:
    """Where its file puts it, or the nearest that limits allow.

    One robot that floats stands on the ground, where the file does not say where it is.
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


def _chosen(mech: Mechanism, kind: str) -> list[tuple[Shape, ...]]:
    """Shapes to draw, and then those that stand in where a body has none of these."""
    shapes = mech.geometry
    unseen = tuple(shape for shape in shapes.collision if not shape.visual)
    return {"visual": [shapes.visual, unseen], "collision": [shapes.collision], "inertia": []}[kind]


def _check(mech: Mechanism, kind: str) -> None:
    if kind not in ("visual", "collision", "inertia"):
        raise MechanismError(
            f"kind={kind!r} is nothing to draw.",
            "A robot has shapes to see, shapes to touch, and inertia.",
            'Pass "visual", "collision" or "inertia".',
        )
    if mech.batch_shape:
        raise MechanismError(
            f"{mech.name!r} is {list(mech.batch_shape)} mechanisms.",
            "One robot is drawn at a time.",
            "Pass one of them: mech.replace(...) with tensors without batch dimensions.",
        )


def _nodes(shape: Shape, frame: int, known: dict[Mesh, tuple[Part, ...]]) -> list[Node]:
    """A shape as nodes, a mesh of several colours as several."""
    form = shape.form
    floor = isinstance(form, Plane) and frame < 0
    if isinstance(form, Mesh):
        parts = known[form] = known.get(form) or read_mesh(form)
    else:
        parts = (Part(triangles_of(form)),)
    name = shape.frame or "inertial frame"
    turn, shift = np.array(shape.rotation), np.array(shape.position)
    plain = FLOOR if floor else PLAIN
    return [
        Node(
            f"{name}: {shape.name or type(form).__name__.lower()}",
            frame,
            Triangles(part.triangles.vertices @ turn.T + shift, part.triangles.faces),
            # A mesh of several colours knows better than the one colour of its link.
            (part.colour if len(parts) > 1 else shape.colour or part.colour) or plain,
            floor,
        )
        for part in parts
    ]


def _lump(mech: Mechanism, k: int, beside: bool) -> list[Node]:
    """The ellipsoid of a body, beside shapes of others or not; none of one without mass."""
    name = mech.body_names[k]
    mass = float(mech.mass[k].detach())
    if mass <= 0 or name not in mech.frame_names:
        return []
    moments, axes = np.linalg.eigh(mech.inertia[k].detach().cpu().double().numpy())
    squares = np.maximum(2.5 / mass * (moments.sum() - 2 * moments), 0.0)
    # What has no thickness is still seen.
    radii = np.maximum(np.sqrt(squares), 0.05 * np.sqrt(squares.max()) + 1e-4)
    density = mass / (4 / 3 * np.pi * radii.prod())
    if beside and density < FOAM:
        radii = radii * np.cbrt(density / WATER)
    ball = triangles_of(Ellipsoid(tuple(radii.tolist())))
    turn = axes * np.sign(np.linalg.det(axes))
    com = mech.com[k].detach().cpu().double().numpy()
    placed = Triangles(ball.vertices @ turn.T + com, ball.faces)
    return [Node(f"{name}: inertia", mech.frame_index(name), placed, LUMP, made=True)]


def _bones(mech: Mechanism, bodies: Sequence[int]) -> list[Node]:
    """Rods from the origin of each bare body to the joints that it carries.

    From the inertial frame, too, where all bodies are bare.
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
        Node("bone", frame, _rod(end, length, thick), BONE, made=True)
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


def _box(points: np.ndarray) -> np.ndarray:
    """The corners of the box about points, `[8, 3]`."""
    ends = np.stack([points.min(axis=0), points.max(axis=0)])
    return np.array([[ends[i, 0], ends[j, 1], ends[k, 2]] for i, j, k in np.ndindex(2, 2, 2)])
