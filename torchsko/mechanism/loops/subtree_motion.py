r"""Motion of bodies and markers relative to one body, in its axes, without sweeps.

In axes and at a reference point that all bodies share, all edge weights of a rigid tree are the identity.
With S the columns of all joint maps in these axes, and B the sum over a body and all above it,

.. math::
    V = B\, S \dot q, \qquad \alpha = B\, a, \qquad a(k) = V(k) \times_m S(k) \dot q + \dot H^* \dot q ,

and the Jacobian of a body has the columns of S that B selects.

======== ===================================================== ================== ==============
symbol   meaning                                               code               block
======== ===================================================== ================== ==============
c        body in whose axes all is expressed, or the ground    ``ground``
S        joint maps in the shared axes at the origin of c      ``columns``        (6,) per dof
B        sum over the bodies at or above each body             ``_accumulated``   1
a        acceleration of a body at qdd = 0, less its parent's  ``local``          (6,)
======== ===================================================== ================== ==============

Reference: M. Isobe, Y. Yagi, *General-purpose expression*, section 2 (the ancestor mask); R. Featherstone,
*Rigid Body Dynamics Algorithms*, Springer 2008, section 2.11.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.joints.groups import JointGroup
from torchsko.mechanism.numbering import TreeNumbering
from torchsko.spatial.motion import cross_motion
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import concatenate, gather_entries, matvec


class MarkerMotion(NamedTuple):
    """Motion of m markers in the shared axes.

    Attributes:
        rotation: marker to shared coordinates, `[*batch, m, 3, 3]`.
        position: origins, `[*batch, m, 3]` [m].
        jacobian: velocity [w; v] of each origin per rate, `[*batch, m, 6, dofs]`.
        velocity: `[*batch, m, 6]`; None without rates.
        accel: [wdot; xdotdot] at qdd = 0 without gravity, `[*batch, m, 6]`; None without rates.
    """

    rotation: Tensor
    position: Tensor
    jacobian: Tensor
    velocity: Tensor | None
    accel: Tensor | None

    def select(self, index: Tensor) -> MarkerMotion:
        """The motion of some of the markers, int64."""
        vectors = (self.velocity, self.accel)
        return MarkerMotion(
            self.rotation.index_select(-3, index),
            self.position.index_select(-2, index),
            self.jacobian.index_select(-3, index),
            *(None if x is None else x.index_select(-2, index) for x in vectors),
        )


@dataclass(frozen=True, eq=False)
class Subtree:
    """Bodies that hang on one body, with the index tensors of `marker_motion`; made by `Subtree.of`.

    Attributes:
        bodies: the bodies, parents before children.
        dofs: for each dof of these bodies its index in a velocity of the tree, int64.
        dof_rows: for each dof its row among those of all bodies padded to `width`, int64.
        width: largest number of dofs of a joint.
        order: the bodies as a tensor, int64.
        groups: their joints by type.
        node_place: for each body its index among the concatenated groups, int64.
        levels: number of bodies of each depth.
        parents: for each level, the index of each body's parent in the level above, int64.
        padded_dofs: for each body and each of `width` rows the dof of the tree, one past the end for padding,
            int64 `[bodies * width]`.
        dofs_above: whether a dof belongs to a body at or above each body, bool `[bodies, dofs]`.
    """

    bodies: tuple[int, ...]
    dofs: Tensor
    dof_rows: Tensor
    width: int
    order: Tensor
    groups: tuple[JointGroup, ...]
    node_place: Tensor
    levels: tuple[int, ...]
    parents: tuple[Tensor, ...]
    padded_dofs: Tensor
    dofs_above: Tensor

    @staticmethod
    def of(mech: TreeNumbering, bodies: Collection[int]) -> Subtree:
        """The subtree of these bodies; parents that are missing are the ground.

        Args:
            mech: the mechanism, without couplings.
            bodies: indices of bodies; those without a parent among them hang on the ground.
        """
        tree, layout, chosen = mech.layout.tree, mech.layout, set(bodies)
        depth: dict[int, int] = {}
        for k in sorted(chosen, key=lambda k: len(list(tree.ancestors(k)))):
            depth[k] = depth.get(tree.parent[k], -1) + 1
        order = sorted(depth, key=lambda k: (depth[k], k))
        sizes = [
            sum(d == level for d in depth.values()) for level in range(max(depth.values()) + 1)
        ]
        parents, start = [], 0
        for level, size in enumerate(sizes):
            here = order[start : start + size]
            before = order[start - sizes[level - 1] : start] if level else []
            parents.append([before.index(tree.parent[k]) for k in here] if level else [])
            start += size
        kinds = mech.joints.kinds
        width = max(kinds[k].num_dof for k in order)
        dofs = [(i, r) for i, k in enumerate(order) for r in range(kinds[k].num_dof)]
        places = [layout.dofs.places[order[i]][r] for i, r in dofs]
        leaders = [layout.dofs.leaders[k] for k in order]
        if shared := [k for k in dict.fromkeys(leaders) if leaders.count(k) > 1]:
            raise MechanismError(
                f"a loop involves several points that joint {mech.tree_joint_names[shared[0]]!r} moves.",
                "Loops and held frames take one point of each flexible body.",
                "Close the loop at a marker on the path of the others, or divide the body.",
            )
        padded = [
            layout.dofs.places[k][r] if r < kinds[k].num_dof else layout.dofs.total
            for k in order
            for r in range(width)
        ]
        lines = [{k, *tree.ancestors(k)} for k in order]
        groups, placed = _groups(mech, order)
        return Subtree(
            tuple(order),
            _index(places),
            _index([i * width + r for i, r in dofs]),
            width,
            _index(order),
            groups,
            torch.argsort(_index(placed)),
            tuple(sizes),
            tuple(map(_index, parents)),
            _index(padded),
            torch.tensor([[order[i] in line for i, _ in dofs] for line in lines]),
        )

    @property
    def num_dof(self) -> int:
        """Number of dofs of all bodies."""
        return self.dofs.shape[0]


def _groups(mech: TreeNumbering, order: Sequence[int]) -> tuple[tuple[JointGroup, ...], list[int]]:
    """Joints of these bodies by type, and the position of each grouped joint in the order."""
    kinds, members = mech.joints.kinds, {}
    for k in order:
        members.setdefault(kinds[k], []).append(k)
    starts, total = [], 0
    for kind in kinds:
        starts.append(total)
        total += kind.num_parameters
    groups = [
        JointGroup(
            kind,
            _index(bodies),
            _index([i for k in bodies for i in mech.coordinates.places[k]]),
            _index([i for k in bodies for i in mech.layout.dofs.places[k]]),
            _index([starts[k] + i for k in bodies for i in range(kind.num_parameters)]),
        )
        for kind, bodies in members.items()
    ]
    return tuple(groups), [order.index(k) for bodies in members.values() for k in bodies]


def _index(x: Sequence[int]) -> Tensor:
    return torch.tensor(x, dtype=torch.int64)


def body_poses(subtree: Subtree, mech: TreeNumbering, q: Tensor) -> tuple[Tensor, Tensor]:
    """Rotations `[*batch, n, 3, 3]` and positions `[*batch, n, 3]` of the bodies in the ground's axes."""
    placed = mech.joint_rotation.index_select(-3, subtree.order)
    origin = mech.joint_position.index_select(-2, subtree.order)
    turn, shift = _joint_poses(subtree, mech, q)
    shifted = origin if shift is None else origin + matvec(placed, shift)
    turned = placed if turn is None else placed @ turn
    rotations, positions = [], []
    start = 0
    for size, parents in zip(subtree.levels, subtree.parents, strict=True):
        R, r = turned.narrow(-3, start, size), shifted.narrow(-2, start, size)
        if start:
            above_R = rotations[-1].index_select(-3, parents)
            r = positions[-1].index_select(-2, parents) + matvec(above_R, r)
            R = above_R @ R
        rotations.append(R)
        positions.append(r)
        start += size
    return concatenate(rotations, -3), concatenate(positions, -2)


def _joint_poses(
    subtree: Subtree, mech: TreeNumbering, q: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    turns, shifts = [], []
    for group in subtree.groups:
        turn, shift = group.kind.pose(group.constants(mech), group.coordinates(q))
        turns.append(turn)
        shifts.append(shift)
    counts = [group.bodies.shape[0] for group in subtree.groups]
    turn = shift = None
    if any(x is not None for x in turns):
        identity = torch.eye(3, dtype=q.dtype, device=q.device)
        turn = _nodes(
            subtree,
            [
                identity.expand(n, 3, 3) if x is None else x
                for x, n in zip(turns, counts, strict=True)
            ],
            -3,
        )
    if any(x is not None for x in shifts):
        shift = _nodes(
            subtree,
            [q.new_zeros(n, 3) if x is None else x for x, n in zip(shifts, counts, strict=True)],
            -2,
        )
    return turn, shift


def _nodes(subtree: Subtree, parts: Sequence[Tensor], dim: int) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return concatenate(parts, dim).index_select(dim, subtree.node_place)


def _columns(subtree: Subtree, mech: TreeNumbering, q: Tensor, R: Tensor, r: Tensor) -> Tensor:
    """S of each body, padded with zeros, `[*batch, n, width, 6]`."""
    parts = []
    for group in subtree.groups:
        H = group.kind.joint_map_at(group.constants(mech), group.coordinates(q))
        parts.append(torch.nn.functional.pad(H, (0, 0, 0, subtree.width - H.shape[-2])))
    H = _nodes(subtree, parts, -3)
    w, v = (x @ R.mT for x in H.split(3, -1))  # rows of H as columns of the shared axes
    v = v + cross(r[..., None, :], w)
    return torch.cat(torch.broadcast_tensors(w, v), -1)


def _accumulated(subtree: Subtree, x: Tensor) -> Tensor:
    """Sums over each body and the bodies above it, `[*batch, n, 6]`."""
    levels = list(x.split(subtree.levels, -2))
    for depth in range(1, len(levels)):
        above = levels[depth - 1].index_select(-2, subtree.parents[depth])
        levels[depth] = levels[depth] + above
    return torch.cat(levels, -2)


def _local_accels(
    subtree: Subtree,
    mech: TreeNumbering,
    q: Tensor,
    qd: Tensor,
    frame: tuple[Tensor, Tensor],
    V: Tensor,
    own: Tensor,
) -> Tensor:
    """A of every body, `[*batch, n, 6]`."""
    swung = cross_motion(V[..., None], own[..., None])[..., 0]
    if all(group.kind.constant_map for group in subtree.groups):
        return swung
    R, r = frame
    parts = [
        q.new_zeros(group.bodies.shape[0], 6)
        if group.kind.constant_map
        else group.kind.bias_accel(group.constants(mech), group.coordinates(q), group.rates(qd))
        for group in subtree.groups
    ]
    w, v = (matvec(R, x) for x in _nodes(subtree, parts, -2).split(3, -1))
    return swung + torch.cat(torch.broadcast_tensors(w, v + cross(r, w)), -1)


def marker_motion(
    subtree: Subtree,
    mech: TreeNumbering,
    q: Tensor,
    qd: Tensor | None,
    bodies: Tensor,
    rotation: Tensor,
    position: Tensor,
) -> MarkerMotion:
    """Motion of markers on the bodies of a subtree or on the ground.

    Args:
        subtree: the bodies.
        mech: the mechanism, without couplings.
        q: configuration of the tree, `[*batch, num_tree_q]`.
        qd: velocity of the tree, `[*batch, num_tree_dof]`; None if no velocities are needed.
        bodies: for each marker its body's index in the subtree, `len(subtree.bodies)` for the ground, int64.
        rotation: marker to body coordinates, `[*batch, m, 3, 3]`.
        position: origins in the bodies, `[*batch, m, 3]` [m].
    """
    R, r = body_poses(subtree, mech, q)
    S = _columns(subtree, mech, q, R, r)
    identity = torch.eye(3, dtype=q.dtype, device=q.device)[None]
    R_all = concatenate([R, identity], -3).index_select(-3, bodies)
    r_all = concatenate([r, q.new_zeros(1, 3)], -2).index_select(-2, bodies)
    shift = matvec(R_all, position)
    x = r_all + shift
    chosen = torch.nn.functional.pad(subtree.dofs_above, (0, 0, 0, 1)).index_select(0, bodies)
    columns = S.flatten(-3, -2).index_select(-2, subtree.dof_rows)
    w, v = columns[..., None, :, :].split(3, -1)
    moved = torch.cat(torch.broadcast_tensors(w, v + cross(w, x[..., None, :])), -1)
    J = torch.where(chosen[..., None], moved, 0.0).mT
    if qd is None:
        return MarkerMotion(R_all @ rotation, x, J, None, None)
    rates = gather_entries(torch.nn.functional.pad(qd, (0, 1)), subtree.padded_dofs)
    own = (rates.unflatten(-1, (-1, subtree.width))[..., None] * S).sum(-2)
    V = _accumulated(subtree, own)
    alpha = _accumulated(subtree, _local_accels(subtree, mech, q, qd, (R, r), V, own))
    both = torch.nn.functional.pad(torch.cat([V, alpha], -1), (0, 0, 0, 1))
    V, alpha = both.index_select(-2, bodies).split(6, -1)
    w, v = V.split(3, -1)
    v = v + cross(w, x)
    spin, linear = alpha.split(3, -1)
    linear = linear + cross(spin, x) + cross(w, v)
    return MarkerMotion(
        R_all @ rotation,
        x,
        J,
        torch.cat([w, v], -1),
        torch.cat([spin, linear], -1),
    )
