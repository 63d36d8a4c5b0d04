"""Residual, Jacobian and bias of several constraints on the bodies of a subtree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import FrameRows, JointRows, Marker
from torchsko.mechanism.loops.placements import Placements
from torchsko.mechanism.loops.subtree_motion import MarkerMotion, Subtree, marker_motion
from torchsko.mechanism.numbering import TreeNumbering
from torchsko.utils.shapes import broadcast_shapes, concatenate, gather_entries, matvec


class IndexedConstraint(NamedTuple):
    """One constraint, by indices.

    Attributes:
        kind: rows of the constraint.
        ends: bodies that carry both markers, -1 for the inertial frame; or both joints.
    """

    kind: FrameRows | JointRows
    ends: tuple[int, int]


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
class RowSet:
    """Structure of several constraints; made by `RowSet.of`.

    Attributes:
        links: the constraints.
        subtree: bodies whose motion the rows depend on.
        marker_bodies: for each marker its body in the subtree, the ground last, int64.
        groups: the constraints by kind.
        row_place: for each row its index among the rows of the groups, int64.
        owners: for each row the index of its constraint, int64.
    """

    links: tuple[IndexedConstraint, ...]
    subtree: Subtree
    marker_bodies: Tensor
    groups: tuple[KindGroup, ...]
    row_place: Tensor
    owners: Tensor

    @staticmethod
    def of(
        mech: TreeNumbering, links: Sequence[IndexedConstraint], members: Sequence[int]
    ) -> RowSet:
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
        return RowSet(
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
        unit = torch.eye(self.subtree.num_dof, dtype=q.dtype, device=q.device)
        found = [self._of_group(group, motion, unit, q, qd, numbers) for group in self.groups]
        batch = broadcast_shapes(q.shape[:-1], *(x.residual.shape[:-1] for x in found))
        residual = concatenate([x.residual for x in found], -1, batch)
        jacobian = concatenate([x.jacobian for x in found], -2, batch)
        biases = [x.bias for x in found if x.bias is not None]
        return Rows(
            gather_entries(residual, self.row_place),
            jacobian.index_select(-2, self.row_place),
            gather_entries(concatenate(biases, -1, batch), self.row_place) if biases else None,
        )

    def _of_group(
        self,
        group: KindGroup,
        motion: MarkerMotion | None,
        unit: Tensor,
        q: Tensor,
        qd: Tensor | None,
        numbers: Placements,
    ) -> Rows:
        """Rows of the constraints of one kind, one constraint after the other."""
        kind = group.kind
        parameters = gather_entries(numbers.parameters, group.parameters)
        parameters = parameters.unflatten(-1, (group.one.shape[0], -1))
        if isinstance(kind, FrameRows):
            assert motion is not None
            one, two = (motion.select(k) for k in (group.one, group.two))
            residual, G, bias = frame_rows(kind, one, two, parameters)
            flat = None if bias is None else bias.flatten(-2)
            return Rows(residual.flatten(-2), G.flatten(-3, -2), flat)
        ends = zip((group.one, group.two), group.dofs, group.rates, strict=True)
        one, two = (
            LengthMotion(
                gather_entries(q, place),
                unit.index_select(0, dofs),
                None if qd is None else gather_entries(qd, rates),
            )
            for place, dofs, rates in ends
        )
        return joint_rows(kind, one, two, parameters)


def frame_rows(kind: FrameRows, one: MarkerMotion, two: MarkerMotion, numbers: Tensor) -> Rows:
    """Rows of g constraints between markers, with dimensions `[*batch, g, rows]`.

    Args:
        kind: rows of all constraints.
        one: motion of the g first markers.
        two: motion of the g second markers.
        numbers: parameters of the kind, `[*batch, g, p]`.
    """
    poses = Marker(one.rotation, one.position), Marker(two.rotation, two.position)
    L1, L2 = kind.maps(*poses, numbers)
    residual = kind.residual(*poses, numbers)
    residual = residual.expand(*residual.shape[:-1], kind.num_rows)
    G = L1 @ one.jacobian + L2 @ two.jacobian
    if one.velocity is None or two.velocity is None:
        return Rows(residual, G, None)
    assert one.accel is not None and two.accel is not None
    bias = kind.bias(*poses, one.velocity, two.velocity, numbers)
    return Rows(residual, G, matvec(L1, one.accel) + matvec(L2, two.accel) + bias)


class LengthMotion(NamedTuple):
    """Motion of g coordinates of joints, or lengths of tendons.

    Attributes:
        value: `[*batch, g]` [rad or m].
        jacobian: rates per rate of all dofs, `[*, g, dofs]`.
        rate: `[*batch, g]`; None without rates.
    """

    value: Tensor
    jacobian: Tensor
    rate: Tensor | None


def joint_rows(kind: JointRows, one: LengthMotion, two: LengthMotion, numbers: Tensor) -> Rows:
    """Rows of g constraints between lengths, `[*batch, g]`; arguments as those of `frame_rows`."""
    slope1, slope2 = kind.slopes(one.value, two.value, numbers)
    G = slope1[..., None] * one.jacobian + slope2[..., None] * two.jacobian
    residual = kind.residual(one.value, two.value, numbers)
    if one.rate is None or two.rate is None:
        return Rows(residual, G, None)
    return Rows(residual, G, kind.bias(one.value, two.value, one.rate, two.rate, numbers))


def _index(x: Sequence[int]) -> Tensor:
    return torch.tensor(x, dtype=torch.int64)
