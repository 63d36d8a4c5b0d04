"""Residual, Jacobian and bias of several constraints on the bodies of a subtree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import FrameRows, JointRows, Marker
from torchsko.mechanism.loops.subtree_motion import MarkerMotion, Subtree, marker_motion
from torchsko.mechanism.numbering import TreeNumbering
from torchsko.utils.shapes import broadcast_shapes, concatenate, gather_entries


class Link(NamedTuple):
    """One constraint, by indices.

    Attributes:
        kind: rows of the constraint.
        ends: bodies that carry both markers, -1 for the inertial frame; or both joints.
    """

    kind: FrameRows | JointRows
    ends: tuple[int, int]


class Placements(NamedTuple):
    """Numbers of several constraints.

    Attributes:
        rotation: marker to body coordinates, `[*batch, 2 c, 3, 3]` for c constraints between frames; those of
            a constraint follow one another.
        position: origins of the markers in their bodies, `[*batch, 2 c, 3]` [m].
        parameters: numbers of all constraints, one constraint after the other, `[*batch, p]`.
    """

    rotation: Tensor
    position: Tensor
    parameters: Tensor


class Rows(NamedTuple):
    """Constraint rows at a state; see `torchsko.constraints`.

    Attributes:
        residual: phi, `[*batch, r]`.
        jacobian: G for the dofs of the subtree, `[*batch, r, dofs]`.
        bias: gamma, `[*batch, r]`; None without rates.
    """

    residual: Tensor
    jacobian: Tensor
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class KindGroup:
    """All constraints of one kind.

    Attributes:
        kind: rows of the constraints.
        one: index of each first marker, int64; or the tree coordinate of each first joint.
        two: index of each second marker, int64; or the tree coordinate of each second joint.
        parameters: indices of their numbers, int64 `[g * p]`.
        dofs: for joint rows, the dofs of first and second joints in the subtree, int64 `[2, g]`.
        rates: for joint rows, the dofs of first and second joints in the tree, int64 `[2, g]`.
    """

    kind: FrameRows | JointRows
    one: Tensor
    two: Tensor
    parameters: Tensor
    dofs: Tensor
    rates: Tensor


@dataclass(frozen=True, eq=False)
class ConstraintSet:
    """Structure of several constraints; made by `ConstraintSet.of`.

    Attributes:
        links: the constraints.
        subtree: bodies whose motion the rows depend on.
        marker_bodies: for each marker its body in the subtree, the ground last, int64.
        groups: the constraints by kind.
        row_place: for each row its index among the rows of the groups, int64.
        owners: for each row the index of its constraint, int64.
    """

    links: tuple[Link, ...]
    subtree: Subtree
    marker_bodies: Tensor
    groups: tuple[KindGroup, ...]
    row_place: Tensor
    owners: Tensor

    @staticmethod
    def of(mech: TreeNumbering, links: Sequence[Link], members: Sequence[int]) -> ConstraintSet:
        """Index tensors of these constraints.

        Args:
            mech: the mechanism, without couplings.
            links: the constraints.
            members: bodies of the subtree; markers on other bodies are on the ground.
        """
        subtree = Subtree.of(mech, members)
        place = {k: i for i, k in enumerate(subtree.bodies)}
        framed = [i for i, link in enumerate(links) if isinstance(link.kind, FrameRows)]
        ends = [place.get(k, len(place)) for i in framed for k in links[i].ends]
        starts = [0, *accumulate(len(link.kind.parameters) for link in links)]
        kinds: dict[FrameRows | JointRows, list[int]] = {}
        for i, link in enumerate(links):
            kinds.setdefault(link.kind, []).append(i)
        local = {k: i for i, k in enumerate(subtree.dofs.tolist())}
        groups, order = [], []
        for kind, chosen in kinds.items():
            numbers = [starts[i] + k for i in chosen for k in range(len(kind.parameters))]
            order += [(i, row) for i in chosen for row in range(kind.num_rows)]
            if isinstance(kind, FrameRows):
                markers = [2 * framed.index(i) for i in chosen]
                one, two = markers, [k + 1 for k in markers]
                dofs = rates = torch.zeros(2, 0, dtype=torch.int64)
            else:
                pairs = list(zip(*(links[i].ends for i in chosen), strict=True))
                one, two = ([mech.coordinates.places[k][0] for k in joints] for joints in pairs)
                rates = torch.tensor([[mech.layout.dofs.places[k][0] for k in x] for x in pairs])
                dofs = torch.tensor([[local[k] for k in x] for x in rates.tolist()])
            groups.append(KindGroup(kind, _index(one), _index(two), _index(numbers), dofs, rates))
        place_of = {row: i for i, row in enumerate(order)}
        rows = [(i, row) for i, link in enumerate(links) for row in range(link.kind.num_rows)]
        return ConstraintSet(
            tuple(links),
            subtree,
            _index(ends),
            tuple(groups),
            _index([place_of[row] for row in rows]),
            _index([i for i, _ in rows]),
        )

    @property
    def num_rows(self) -> int:
        """Number of rows of all constraints."""
        return self.owners.shape[0]

    def rows(self, mech: TreeNumbering, q: Tensor, qd: Tensor | None, numbers: Placements) -> Rows:
        """The rows at a state of the tree.

        Args:
            mech: the mechanism, without couplings.
            q: configuration of the tree, `[*batch, num_tree_q]`.
            qd: velocity of the tree, `[*batch, num_tree_dof]`; None if no bias is needed.
            numbers: placements and parameters of the constraints.
        """
        motion = None
        if numbers.rotation.shape[-3]:
            motion = marker_motion(
                self.subtree, mech, q, qd, self.marker_bodies, numbers.rotation, numbers.position
            )
        found = [
            _frame_rows(group, group.kind, motion, numbers)
            if isinstance(group.kind, FrameRows)
            else _joint_rows(group, group.kind, q, qd, numbers, self.subtree.num_dof)
            for group in self.groups
        ]
        batch = broadcast_shapes(q.shape[:-1], *(x.residual.shape[:-1] for x in found))
        residual = concatenate([x.residual for x in found], -1, batch)
        jacobian = concatenate([x.jacobian for x in found], -2, batch)
        biases = [x.bias for x in found if x.bias is not None]
        return Rows(
            gather_entries(residual, self.row_place),
            jacobian.index_select(-2, self.row_place),
            gather_entries(concatenate(biases, -1, batch), self.row_place) if biases else None,
        )


def _frame_rows(
    group: KindGroup, kind: FrameRows, motion: MarkerMotion | None, numbers: Placements
) -> Rows:
    assert motion is not None
    one, two = (
        Marker(motion.rotation.index_select(-3, k), motion.position.index_select(-2, k))
        for k in (group.one, group.two)
    )
    J1, J2 = (motion.jacobian.index_select(-3, k) for k in (group.one, group.two))
    numbers_of = gather_entries(numbers.parameters, group.parameters)
    numbers_of = numbers_of.unflatten(-1, (group.one.shape[0], -1))
    L1, L2 = kind.maps(one, two)
    G = (L1 @ J1 + L2 @ J2).flatten(-3, -2)
    residual = kind.residual(one, two, numbers_of)
    residual = residual.expand(*residual.shape[:-1], kind.num_rows).flatten(-2)
    if motion.velocity is None or motion.accel is None:
        return Rows(residual, G, None)
    V1, V2 = (motion.velocity.index_select(-2, k) for k in (group.one, group.two))
    a1, a2 = (motion.accel.index_select(-2, k)[..., None] for k in (group.one, group.two))
    bias = (L1 @ a1 + L2 @ a2)[..., 0] + kind.bias(one, two, V1, V2)
    return Rows(residual, G, bias.flatten(-2))


def _joint_rows(
    group: KindGroup,
    kind: JointRows,
    q: Tensor,
    qd: Tensor | None,
    numbers: Placements,
    num_dof: int,
) -> Rows:
    numbers_of = gather_entries(numbers.parameters, group.parameters)
    numbers_of = numbers_of.unflatten(-1, (group.one.shape[0], -1))
    q1, q2 = (gather_entries(q, k) for k in (group.one, group.two))
    unit = torch.eye(num_dof, dtype=q.dtype, device=q.device)
    slopes = kind.slopes(q1, q2, numbers_of)
    G = sum(
        slope[..., None] * unit.index_select(0, dofs)
        for slope, dofs in zip(slopes, group.dofs, strict=True)
    )
    assert isinstance(G, Tensor)
    residual = kind.residual(q1, q2, numbers_of)
    if qd is None:
        return Rows(residual, G, None)
    rates = [gather_entries(qd, dofs) for dofs in group.rates]
    return Rows(residual, G, kind.bias(q1, q2, rates[0], rates[1], numbers_of))


def _index(x: Sequence[int]) -> Tensor:
    return torch.tensor(x, dtype=torch.int64)
