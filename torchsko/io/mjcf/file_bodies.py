r"""Bodies of a new MJCF file: one for each link, with the joints of all mechanism bodies that it stands for.

MuJoCo refuses moving bodies without mass. The massless bodies between stacked joints, which the reader made,
are therefore joined with the body that follows them. The pose of an MJCF body in its parent is

.. math::
    T(q) = C_0 M_1(q_1) C_1 \cdots M_n(q_n) C_n = T(q^0) \prod_i S_i^{-1} M_i(q_i - q^0_i) S_i, \qquad
    S_i = C_i M_{i+1}(q^0_{i+1}) \cdots C_n,

with the motions M of the joints, the placements C between them, and the initial configuration q^0, which
MuJoCo calls ``ref``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.io.common.link_inertias import link_inertias
from torchsko.io.common.numbers import as_matrix, as_vector
from torchsko.io.mjcf.file_body import FileBody, FileJoint, owner
from torchsko.io.mjcf.poses import HERE, Pose, compose, frame_pose, inverse, rotation_of
from torchsko.io.mjcf.principal_inertia import is_physical
from torchsko.mechanism.coordinates import tree_q
from torchsko.mechanism.description import LinkDescription
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.numbering import motions

WORLD = "world"
"""MuJoCo's name of the inertial frame."""

MAX_TILT = 1e-9
"""Largest entry of a rotation minus the identity that is rounding."""


@dataclass(frozen=True)
class FileBodies:
    """The bodies of a new file.

    Attributes:
        mech: the mechanism.
        start: initial configuration of the tree, `[num_tree_q]`.
        bodies: all bodies by name, parents first; "world" is the inertial frame.
        homes: for each frame its body, and its pose there.
    """

    mech: Mechanism
    start: np.ndarray
    bodies: Mapping[str, FileBody]
    homes: Mapping[str, tuple[str, Pose]]

    def home(self, frame: str | None) -> tuple[str, Pose]:
        """Body that carries a frame, and the frame's pose there; None is the inertial frame."""
        return (WORLD, HERE) if frame is None else self.homes[frame]

    def place(self, frame: str | None, rotation: object, position: object) -> tuple[str, Pose]:
        """Body that carries something placed on a frame, and its pose there."""
        body, pose = self.home(frame)
        return body, compose(pose, (np.array(rotation), np.array(position)))

    def joints(self) -> list[FileJoint]:
        """All joints in the order of the file."""
        children: dict[str, list[FileBody]] = {}
        for body in list(self.bodies.values())[1:]:
            children.setdefault(body.parent, []).append(body)
        found, pending = [], children.get(WORLD, [])[::-1]
        while pending:
            body = pending.pop()
            found += body.joints
            pending += children.get(body.name, [])[::-1]
        return found

    def starts(self) -> dict[str, float]:
        """Initial coordinate of each hinge and slide, by the name of the joint."""
        return {joint.name: joint.start for joint in self.joints()}


def file_bodies(mech: Mechanism) -> FileBodies:
    """The bodies of a new file of a mechanism.

    MuJoCo refuses links with unphysical inertia. A body that has such a link is one link with the body's
    inertia, and the inertia of such a link that is fixed to the inertial frame is left out.
    """
    start, links = _start(mech), link_inertias(mech)
    absorbed = _absorbed(mech, {link.name for link in mech.file_metadata.links})
    mains = {k: _main(mech, k, links) for k in range(mech.num_bodies) if k not in absorbed}
    links |= _merged_links(mech, links, mains)
    carriers = {k: _carrier(k, absorbed) for k in range(mech.num_bodies)}
    bodies = {WORLD: FileBody(WORLD, "", HERE, None)}
    homes: dict[str, tuple[str, Pose]] = {}
    for k in _depth_first(mech):
        if k in mains:
            chain = [j for j in range(mech.num_bodies) if carriers[j] == k]
            body = _moving_body(mech, chain, mains, start, links)
            bodies[body.name] = body
            homes[body.name] = body.name, HERE
    left = []
    for i, (name, k) in enumerate(zip(mech.frame_names, mech.frame_body, strict=True)):
        if name in homes or k in absorbed:
            continue
        main, at = mains[k] if k >= 0 else (WORLD, HERE)
        pose = compose(inverse(at), frame_pose(mech, i))
        if name in links and name != WORLD and name not in mech.body_names:
            bodies[name] = FileBody(name, main, pose, links[name])
            homes[name] = name, HERE
        else:
            left.append((i, (main, pose)))
    homes |= {mech.frame_names[i]: owner(mech, i, place, bodies) for i, place in left}
    return FileBodies(mech, start, bodies, homes)


def _start(mech: Mechanism) -> np.ndarray:
    """Initial coordinates of all joints; zero, or the identity, if the robot has none."""
    initial = mech.file_metadata.initial
    if initial is not None:
        found = _array(tree_q(mech, initial))
        for x in mech.file_metadata.coupled:
            found[mech.tree_q_slice(x.joint)] += x.violation
        return found
    return np.array([x for kind in mech.joints.kinds for x in kind.neutral()], dtype=float)


def _absorbed(mech: Mechanism, links: Collection[str]) -> dict[int, int]:
    """Massless bodies between stacked joints of one link, and the body that follows each."""
    found = {}
    carried = [k for k in mech.frame_body if k >= 0]
    for k, name in enumerate(mech.body_names):
        children = [j for j, parent in enumerate(mech.parents) if parent == k]
        if (
            name not in links
            and len(children) == 1
            and not (bool(mech.mass[k].any()) or bool(mech.inertia[k].any()))
            and carried.count(k) == 1
            and _stem(name) in (mech.body_names[children[0]], _stem(mech.body_names[children[0]]))
            and "free" not in (mech.joints.kinds[k].name, mech.joints.kinds[children[0]].name)
        ):
            found[k] = children[0]
    return found


def _stem(name: str) -> str:
    """Name of the body in whose stack of joints a massless body "NAME_0" lies."""
    stem, _, number = name.rpartition("_")
    return stem if number.isdigit() else ""


def _carrier(k: int, absorbed: Mapping[int, int]) -> int:
    while k in absorbed:
        k = absorbed[k]
    return k


def _main(mech: Mechanism, k: int, links: Mapping[str, LinkDescription]) -> tuple[str, Pose]:
    """Name of the file's body for a moving body, and the pose of its frame there.

    A ball joint away from the origin of its body moves a massless body to which that body is welded.
    """
    name = mech.body_names[k]
    stem = _stem(name)
    if name not in links and stem in links and stem in mech.frame_names:
        i = mech.frame_index(stem)
        if mech.frame_body[i] == k:
            return stem, frame_pose(mech, i)
    return name, HERE


def _merged_links(
    mech: Mechanism, links: Mapping[str, LinkDescription], mains: Mapping[int, tuple[str, Pose]]
) -> dict[str, LinkDescription]:
    """Links without inertia, and with that of the whole body, of bodies that have an unphysical link."""
    found: dict[str, LinkDescription] = {}
    on_body: dict[int, list[str]] = {}
    for name, k in zip(mech.frame_names, mech.frame_body, strict=True):
        if name in links:
            on_body.setdefault(k, []).append(name)
    for k, names in on_body.items():
        unphysical = [name for name in names if not is_physical(links[name], mech.dtype)]
        if k < 0:
            found |= {name: LinkDescription(name) for name in unphysical}
        elif unphysical and len(names) > 1:
            name, at = mains[k]
            found |= {x: LinkDescription(x) for x in names}
            found[name] = _body_link(mech, k, name, at)
    return found


def _body_link(mech: Mechanism, k: int, name: str, at: Pose) -> LinkDescription:
    """A body as one link, in a frame with a pose in the body."""
    R, p = at
    com, inertia = R.T @ (_array(mech.com[k]) - p), R.T @ _array(mech.inertia[k]) @ R
    share = float(mech.gravcomp[k, 0])
    return LinkDescription(
        name, float(mech.mass[k]), as_vector(com), as_matrix(inertia), gravcomp=share
    )


def _moving_body(
    mech: Mechanism,
    chain: Sequence[int],
    mains: Mapping[int, tuple[str, Pose]],
    start: np.ndarray,
    links: Mapping[str, LinkDescription],
) -> FileBody:
    """The body with the joints of a chain of mechanism bodies."""
    k, parent = chain[-1], mech.parents[chain[0]]
    name, at = mains[k]
    parent_name, parent_at = mains[parent] if parent >= 0 else (WORLD, HERE)
    _check_name(name)
    if mech.joints.kinds[k].name == "free":
        _check_free(mech, k)
        q = start[mech.tree_q_slice(mech.tree_joint_names[k])]
        joint = FileJoint(mech.tree_joint_names[k], k, 0, "free", np.zeros(3), np.zeros(3), 0.0)
        place = rotation_of(q[3:]), q[:3]
        return FileBody(name, WORLD, place, links.get(name), (joint,), quaternion=q[3:])
    factors: list[tuple[FileJoint | None, Pose]] = []
    for j in chain:
        placement = tuple(_array(getattr(mech, f)[j]) for f in ("joint_rotation", "joint_position"))
        factors.append((None, (placement[0], placement[1])))
        for joint in joint_stack(mech, j, start):
            factors.append((joint, _motion(joint, joint.start)))
    factors.append((None, at))
    after, joints = HERE, []
    for joint, pose in reversed(factors):
        if joint is not None:
            joints.append(_seen_from(mech, joint, after))
        after = compose(pose, after)
    return FileBody(
        name, parent_name, compose(inverse(parent_at), after), links.get(name), tuple(joints[::-1])
    )


def _seen_from(mech: Mechanism, joint: FileJoint, after: Pose) -> FileJoint:
    """A joint in the frame that has the pose `after` in the joint's frame."""
    R, r = after
    if joint.type == "ball" and np.abs(R - np.eye(3)).max() > MAX_TILT:
        raise MechanismError(
            f"ball joint {joint.name!r} is followed by a rotation without a body.",
            "In MJCF the axes of a ball joint are those of its body.",
            "Give the massless link behind it a mass.",
        )
    return FileJoint(
        joint.name, joint.body, joint.motion, joint.type, R.T @ joint.axis,
        R.T @ (joint.anchor - r), joint.start,
    )  # fmt: skip


def _check_name(name: str) -> None:
    if name == WORLD:
        raise MechanismError(
            "a moving body is named 'world'.",
            "In MJCF this is the name of the inertial frame.",
            "Save to URDF (.urdf), or rename the link in the robot's own file.",
        )


def _check_free(mech: Mechanism, k: int) -> None:
    R, p = _array(mech.joint_rotation[k]), _array(mech.joint_position[k])
    if mech.parents[k] >= 0 or (R != np.eye(3)).any() or p.any():
        raise MechanismError(
            f"joint {mech.tree_joint_names[k]!r} is free, and not placed at the world's frame.",
            "In MJCF a floating body is a child of the world, and has the world's coordinates.",
            "Place the joint at the origin of the inertial frame, without a rotation.",
        )


def _motion(joint: FileJoint, q: float) -> Pose:
    """Pose of a hinge or slide at a coordinate; a ball joint starts at the identity."""
    if joint.type == "slide":
        return np.eye(3), joint.axis * q
    if joint.type == "ball" or q == 0.0:
        return HERE
    half = q / 2
    R = rotation_of(np.array([np.cos(half), *(np.sin(half) * joint.axis)]))
    return R, joint.anchor - R @ joint.anchor


def joint_stack(mech: Mechanism, k: int, start: np.ndarray) -> list[FileJoint]:
    """MuJoCo's joints that are equivalent to a joint, in the joint's frame.

    Raises:
        MechanismError: for a kind of joint without such a stack.
    """
    name, kind = mech.tree_joint_names[k], mech.joints.kinds[k]
    rows = _axes(mech, k)
    if rows is None:
        raise MechanismError(
            f"joint {name!r} is {kind.name}.",
            "MJCF supports hinges, slides, balls and free joints, and stacks of them.",
            "Replace it by several joints, with couplings between dependent motions.",
        )
    labels = motions(name, kind) if len(rows) > 1 else (name,)
    q = start[mech.tree_q_slice(name)]
    return [
        FileJoint(
            labels[i], k, i, type_, np.array(axis), np.array(point),
            float(q[i]) if type_ in ("hinge", "slide") else 0.0,
        )
        for i, (type_, axis, point) in enumerate(rows)
    ]  # fmt: skip


def _axes(mech: Mechanism, k: int) -> list[tuple[str, np.ndarray, np.ndarray]] | None:
    """Type, axis and anchor of each motion of a joint; None if MuJoCo has no such motions."""
    name, kind = mech.tree_joint_names[k], mech.joints.kinds[k].name
    axis, origin = _array(mech.axis[k]), np.zeros(3)

    def vectors(parameter: str) -> np.ndarray:
        values = mech.joint_parameters[mech.parameter_slice(name, parameter)]
        return _array(values).reshape(-1, 3)

    if kind in ("revolute", "prismatic", "spherical", "free"):
        types = {"revolute": "hinge", "prismatic": "slide", "spherical": "ball", "free": "free"}
        return [(types[kind], axis, origin)]
    if kind == "cylindrical":
        return [("hinge", axis, origin), ("slide", axis, origin)]
    if kind == "translation":
        return [("slide", row, origin) for row in np.eye(3)]
    if kind == "universal":
        return [("hinge", axis, origin), ("hinge", vectors("second_axis")[0], origin)]
    if kind == "planar":
        x = vectors("direction")[0]
        return [
            ("slide", x, origin),
            ("slide", np.cross(axis, x), origin),
            ("hinge", axis, origin),
        ]
    if kind == "compound":
        turns = [rate.startswith("turn") for rate in mech.joints.kinds[k].coordinates]
        rows = zip(turns, vectors("axes"), vectors("points"), strict=True)
        return [("hinge" if turn else "slide", e, point) for turn, e, point in rows]
    return None


def _depth_first(mech: Mechanism) -> list[int]:
    """Bodies in depth-first order; appended bodies have another order in the mechanism."""
    children: dict[int, list[int]] = {}
    for k, parent in enumerate(mech.parents):
        children.setdefault(parent, []).append(k)
    order, pending = [], children.get(-1, [])[::-1]
    while pending:
        order.append(k := pending.pop())
        pending += children.get(k, [])[::-1]
    return order


def _array(x: Tensor) -> np.ndarray:
    return x.detach().cpu().double().numpy()
