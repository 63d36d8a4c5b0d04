"""Joints as data: how many coordinates each kind has, how it moves its child, and its manifold.

========== ===== ===== ======================================= ================================
kind       num_q d     q                                       qd (child frame)
========== ===== ===== ======================================= ================================
revolute   1     1     angle [rad]                             rate about the axis [rad/s]
prismatic  1     1     displacement [m]                        rate along the axis [m/s]
spherical  4     3     unit quaternion `w x y z`               omega [rad/s]
free       7     6     `x y z` [m], unit quaternion `w x y z`  [omega; v] [rad/s, m/s]
========== ===== ===== ======================================= ================================

All joints of one kind are handled together, whatever their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchsko.mechanism.state import check_state
from torchsko.spatial.rotation import (
    quaternion_conjugate,
    quaternion_exp,
    quaternion_log,
    quaternion_multiply,
    quaternion_to_matrix,
    skew,
    translation_jacobian,
    translation_jacobian_inverse,
)

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism

NUM_Q = {"revolute": 1, "prismatic": 1, "spherical": 4, "free": 7}
NUM_DOF = {"revolute": 1, "prismatic": 1, "spherical": 3, "free": 6}
USUAL_SPEED = {
    "revolute": (math.pi,),
    "prismatic": (1.0,),
    "spherical": (math.pi,) * 3,
    "free": (math.pi,) * 3 + (1.0,) * 3,
}
"""Largest speed of a random state where a joint has no limit [rad/s or m/s]."""


@dataclass(frozen=True, eq=False)
class JointGroup:
    """All joints of one kind, breadth first.

    Attributes:
        kind: of all of them.
        bodies: the bodies they move, numbered in file order, int64 `[g]`.
        q_index: place of their coordinates in q, int64 `[g * num_q]`.
        dof_index: place of their dofs in qd, int64 `[g * d]`.
    """

    kind: str
    bodies: Tensor
    q_index: Tensor
    dof_index: Tensor

    def coordinates(self, q: Tensor) -> Tensor:
        """The group's coordinates, `[*batch, num_q of the mechanism]` to `[*batch, g, num_q]`."""
        return q.index_select(-1, self.q_index).unflatten(-1, (-1, NUM_Q[self.kind]))

    def rates(self, qd: Tensor) -> Tensor:
        """The group's rates, `[*batch, num_dof]` to `[*batch, g, d]`."""
        return qd.index_select(-1, self.dof_index).unflatten(-1, (-1, NUM_DOF[self.kind]))

    def to(self, device: torch.device | str) -> JointGroup:
        """The same group with its index tensors on a device."""
        moved = {
            name: getattr(self, name).to(device) for name in ("bodies", "q_index", "dof_index")
        }
        return replace(self, **moved)


@dataclass(frozen=True, eq=False)
class JointSet:
    """All joints of a mechanism by kind, and the way back from parts by kind to one tensor.

    Attributes:
        groups: one per kind that occurs.
        node_place: for each node, breadth first, its place among the groups' joints, int64.
        q_place: for each coordinate of q its place among the groups' coordinates, int64.
        dof_place: likewise for qd.
        runs: for each level of the tree, which joints of which groups are in it, as runs
            (group, first joint, count).
        shuffles: for each level, the order that turns its joined runs into breadth-first order; None
            where one run is the whole level.
    """

    groups: tuple[JointGroup, ...]
    node_place: Tensor
    q_place: Tensor
    dof_place: Tensor
    runs: tuple[tuple[tuple[int, int, int], ...], ...]
    shuffles: tuple[Tensor | None, ...]

    @staticmethod
    def of(kinds: tuple[str, ...], levels: tuple[tuple[int, ...], ...]) -> JointSet:
        """Joints of these kinds in file order, on a tree with these levels of bodies."""
        order = tuple(k for level in levels for k in level)
        q_start = [sum(NUM_Q[kind] for kind in kinds[:k]) for k in range(len(kinds))]
        dof_start = [sum(NUM_DOF[kind] for kind in kinds[:k]) for k in range(len(kinds))]
        groups = []
        for kind in dict.fromkeys(kinds[k] for k in order):
            bodies = [k for k in order if kinds[k] == kind]
            q_index = [q_start[k] + i for k in bodies for i in range(NUM_Q[kind])]
            dof_index = [dof_start[k] + i for k in bodies for i in range(NUM_DOF[kind])]
            groups.append(JointGroup(kind, *map(torch.tensor, (bodies, q_index, dof_index))))
        rank = torch.argsort(torch.tensor(order))
        nodes = torch.cat([rank.index_select(0, group.bodies) for group in groups])
        runs, shuffles = _level_runs(kinds, levels, [group.kind for group in groups])
        return JointSet(
            tuple(groups),
            torch.argsort(nodes),
            torch.argsort(torch.cat([group.q_index for group in groups])),
            torch.argsort(torch.cat([group.dof_index for group in groups])),
            runs,
            shuffles,
        )

    def to(self, device: torch.device | str) -> JointSet:
        """The same joints with their index tensors on a device."""
        return JointSet(
            tuple(group.to(device) for group in self.groups),
            self.node_place.to(device),
            self.q_place.to(device),
            self.dof_place.to(device),
            self.runs,
            tuple(None if s is None else s.to(device) for s in self.shuffles),
        )

    def nodes(self, parts: list[Tensor], dim: int) -> Tensor:
        """Per-joint parts of all groups, joined along `dim` (negative) breadth first."""
        if len(parts) == 1:
            return parts[0]
        batch = torch.broadcast_shapes(*(part.shape[:dim] for part in parts))
        joined = torch.cat([part.expand(*batch, *part.shape[dim:]) for part in parts], dim)
        return joined.index_select(dim, self.node_place)

    def level(self, depth: int, part: Callable[[int, int, int], Tensor], dim: int) -> Tensor:
        """One level's joints, breadth first along `dim`, from `part(group, first, count)`."""
        parts = [part(*run) for run in self.runs[depth]]
        if len(parts) == 1:
            return parts[0]
        batch = torch.broadcast_shapes(*(part.shape[:dim] for part in parts))
        joined = torch.cat([part.expand(*batch, *part.shape[dim:]) for part in parts], dim)
        shuffle = self.shuffles[depth]
        return joined if shuffle is None else joined.index_select(dim, shuffle)

    def vector(self, parts: list[Tensor], place: Tensor) -> Tensor:
        """Parts `[*batch, g, w]` of all groups as one vector; `place` is `q_place` or `dof_place`."""
        batch = torch.broadcast_shapes(*(part.shape[:-2] for part in parts))
        flat = torch.cat([part.expand(*batch, -1, -1).flatten(-2) for part in parts], -1)
        return flat.index_select(-1, place)


def _level_runs(
    kinds: tuple[str, ...], levels: tuple[tuple[int, ...], ...], group_kinds: list[str]
) -> tuple[tuple[tuple[tuple[int, int, int], ...], ...], tuple[Tensor | None, ...]]:
    runs, shuffles, seen = [], [], [0] * len(group_kinds)
    for level in levels:
        here, positions = [], []
        for g, kind in enumerate(group_kinds):
            members = [i for i, k in enumerate(level) if kinds[k] == kind]
            if members:
                here.append((g, seen[g], len(members)))
                seen[g] += len(members)
                positions += members
        runs.append(tuple(here))
        shuffles.append(None if len(here) == 1 else torch.argsort(torch.tensor(positions)))
    return tuple(runs), tuple(shuffles)


def joint_motion(kind: str, axis: Tensor, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Pose of the child frame in the joint frame.

    Args:
        kind: of the joints.
        axis: `[*, g, 3]`.
        q: `[*batch, g, num_q]`.

    Returns:
        Rotation (child to joint coordinates, `[*batch, g, 3, 3]`) and position `[*batch, g, 3]` [m];
        None for the identity and for zero.
    """
    if kind == "revolute":
        # Rodrigues' formula with the constant parts apart: entries of a coordinate axis stay 0 and 1.
        along = axis[..., :, None] * axis[..., None, :]
        identity = torch.eye(3, dtype=axis.dtype, device=axis.device)
        angle = q[..., None]
        return along + angle.cos() * (identity - along) + angle.sin() * skew(axis), None
    if kind == "prismatic":
        return None, axis * q
    if kind == "spherical":
        return quaternion_to_matrix(q), None
    return quaternion_to_matrix(q[..., 3:]), q[..., :3]


def joint_map(kind: str, axis: Tensor) -> Tensor:
    """Joint map H in the child frame, constant, with orthonormal rows: `[*, g, 3]` to `[*, g, d, 6]`."""
    zero = torch.zeros_like(axis)
    if kind == "revolute":
        return torch.cat([axis, zero], -1)[..., None, :]
    if kind == "prismatic":
        return torch.cat([zero, axis], -1)[..., None, :]
    rows = torch.eye(6, dtype=axis.dtype, device=axis.device)[: NUM_DOF[kind]]
    return rows.expand(*axis.shape[:-1], *rows.shape)


def integrate(mech: Mechanism, q: Tensor, step: Tensor) -> Tensor:
    """Move a configuration along a tangent step: q + step where q is a vector.

    Spherical joints turn by the exponential of the step, free joints move by the exponential of SE(3).
    Quaternions come out normalised.

    Args:
        mech: the mechanism.
        q: `[*batch, num_q]`.
        step: displacement, for example qd * dt, `[*batch, num_dof]` [rad or m], in the child frame.

    Returns:
        `[*batch, num_q]`.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> q = arm.neutral()
        >>> torch.equal(ts.integrate(arm, q, torch.zeros(7, dtype=q.dtype)), q)
        True
    """
    check_state(mech, q=q, step=step)
    moves: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "spherical": _turn,
        "free": _move,
    }
    parts = [
        moves.get(group.kind, torch.add)(group.coordinates(q), group.rates(step))
        for group in mech.joints.groups
    ]
    return mech.joints.vector(parts, mech.joints.q_place)


def difference(mech: Mechanism, start: Tensor, end: Tensor) -> Tensor:
    """The tangent step that leads from one configuration to another, inverse of `integrate`.

    Args:
        mech: the mechanism.
        start: `[*batch, num_q]`.
        end: `[*batch, num_q]`.

    Returns:
        `[*batch, num_dof]` [rad or m]: ``integrate(mech, start, difference(mech, start, end))`` is
        `end` (a quaternion up to its sign). Smooth except at half turns.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    check_state(mech, start=start, end=end)
    differences: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "spherical": _turn_between,
        "free": _move_between,
    }
    parts = [
        differences[group.kind](group.coordinates(start), group.coordinates(end))
        if group.kind in differences
        else group.coordinates(end) - group.coordinates(start)
        for group in mech.joints.groups
    ]
    return mech.joints.vector(parts, mech.joints.dof_place)


def random_configuration(
    mech: Mechanism, batch: tuple[int, ...], generator: torch.Generator | None
) -> Tensor:
    """Configurations for `Mechanism.random_state`, `[*batch, num_q]`."""
    like = {"dtype": mech.dtype, "device": mech.device}
    parts = []
    for group in mech.joints.groups:
        size = (*batch, group.bodies.shape[0])
        if group.kind in ("revolute", "prismatic"):
            reach = math.pi if group.kind == "revolute" else 1.0
            lower = mech.lower.index_select(-1, group.q_index)
            upper = mech.upper.index_select(-1, group.q_index)
            # A limit on one side only leaves a range of the usual width on the other.
            low = torch.where(
                lower.isfinite(), lower, torch.where(upper.isfinite(), upper - 2 * reach, -reach)
            )
            high = torch.where(
                upper.isfinite(), upper, torch.where(lower.isfinite(), lower + 2 * reach, reach)
            )
            parts.append(
                (low + (high - low) * torch.rand(size, generator=generator, **like))[..., None]
            )
            continue
        quat = torch.nn.functional.normalize(
            torch.randn(*size, 4, generator=generator, **like), dim=-1
        )
        position = 2 * torch.rand(*size, 3, generator=generator, **like) - 1
        parts.append(torch.cat([position, quat], -1) if group.kind == "free" else quat)
    return mech.joints.vector(parts, mech.joints.q_place)


def _turn(quat: Tensor, rotvec: Tensor) -> Tensor:
    turned = quaternion_multiply(quat, quaternion_exp(rotvec))
    return turned / (turned * turned).sum(-1, keepdim=True).sqrt()


def _turn_between(start: Tensor, end: Tensor) -> Tensor:
    return quaternion_log(quaternion_multiply(quaternion_conjugate(start), end))


def _move(q: Tensor, step: Tensor) -> Tensor:
    rotvec, shift = step[..., :3], step[..., 3:]
    along = translation_jacobian(rotvec) @ shift[..., None]
    position = q[..., :3] + (quaternion_to_matrix(q[..., 3:]) @ along)[..., 0]
    return torch.cat([position, _turn(q[..., 3:], rotvec)], -1)


def _move_between(start: Tensor, end: Tensor) -> Tensor:
    rotvec = _turn_between(start[..., 3:], end[..., 3:])
    apart = quaternion_to_matrix(start[..., 3:]).mT @ (end[..., :3] - start[..., :3])[..., None]
    return torch.cat([rotvec, (translation_jacobian_inverse(rotvec) @ apart)[..., 0]], -1)
