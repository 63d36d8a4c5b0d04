r"""Linear couplings of joints.

The coordinates q of a robot are those of its independent joints. They determine the coordinates of all joints
of its tree,

.. math::
    q_{tree} = X q + c, \qquad \dot q_{tree} = X \dot q, \qquad \tau = X^* \tau_{tree},

with rows of X that are unit vectors at independent joints and the coefficients of a coupling at dependent
ones (mimic joints, gears, differentials, rotors). X is sparse and is not formed: `Coupling` lists the rows of
dependent joints.

Reference: A. Jain, *Multibody graph transformations and analysis, Part II: Closed-chain constraint
embedding*, Nonlinear Dynamics 67(3), 2012 (with a constant X).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchsko.algebra.topology.embedding_plan import EmbeddingPlan, embedding_plan
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.packing import Packing
from torchsko.algebra.topology.subgraph import aggregation_subgraph
from torchsko.utils.shapes import concatenate, gather_entries

Row = Collection[int]
"""Indices of the independent joints that a dependent one follows, in the order of its coefficients."""


@dataclass(frozen=True, eq=False)
class Coupling:
    """Structure of the couplings; the coefficients and offsets are parameters of the mechanism.

    A term is one coefficient of a coupling. Every dependent joint has `most` terms, padded with empty ones.

    Attributes:
        independent: indices of the independent joints, in file order.
        dependent: indices of the dependent joints, in file order; each has one dof.
        followed: for each dependent joint the joints that it follows, in the order of its coefficients.
        most: largest number of joints that one joint follows.
        independent_q_index: for each coordinate of the robot its index among those of the tree, int64.
        independent_dof_index: for each dof of the robot its index among those of the tree, int64.
        q_place: for each coordinate of the tree its index among the robot's followed by dependent ones.
        dof_place: for each dof of the tree its index among the robot's followed by dependent ones.
        q_sources: for each term the coordinate of the robot that it reads, int64 `[num_dependent * most]`.
        dof_sources: for each term the dof of the robot that it reads.
        dof_ends: for each term the dof of the tree that it contributes to.
        coefficients: for each term the index of its coefficient; one past the end if it is empty.
        returns: for each dof of the robot the terms that read it, int64 `[num_dof * most_returns]`; one past
            the end for padding.
        plan: embedding plan: the groups of bodies that become one node.
        blocks: X of each node, as indices into [0, 1, *coefficients], int64 `[members' dofs, dofs]`.
    """

    independent: tuple[int, ...]
    dependent: tuple[int, ...]
    followed: tuple[tuple[int, ...], ...]
    most: int
    independent_q_index: Tensor
    independent_dof_index: Tensor
    q_place: Tensor
    dof_place: Tensor
    q_sources: Tensor
    dof_sources: Tensor
    dof_ends: Tensor
    coefficients: Tensor
    returns: Tensor
    plan: EmbeddingPlan
    blocks: tuple[Tensor, ...]

    def __repr__(self) -> str:
        return f"Coupling({len(self.dependent)} dependent on {len(self.independent)} independent joints)"

    @staticmethod
    def of(layout: Layout, coordinates: Packing, rows: Mapping[int, Row]) -> Coupling:
        """Build the index tensors of a coupling.

        Args:
            layout: layout of the tree, whose nodes are bodies with their joints.
            coordinates: packing of the tree's configurations.
            rows: joints that each dependent joint follows; coefficients are numbered row by row.
        """
        dependent = tuple(sorted(rows))
        independent = tuple(k for k in dict.fromkeys(coordinates.leaders) if k not in rows)
        number = {pair: i for i, pair in enumerate((k, j) for k in dependent for j in rows[k])}
        most = max(1, *(len(rows[k]) for k in dependent))
        terms = [term for k in dependent for term in _terms(k, rows[k], most)]
        independent_q, independent_dof_index = (
            _independent_places(packing, independent) for packing in (coordinates, layout.dofs)
        )
        groups = _groups(layout, rows)
        columns = [[i for k in S if k not in rows for i in layout.dofs.places[k]] for S in groups]
        return Coupling(
            independent=independent,
            dependent=dependent,
            followed=tuple(tuple(rows[k]) for k in dependent),
            most=most,
            independent_q_index=_index(independent_q),
            independent_dof_index=_index(independent_dof_index),
            q_place=_inverse_places(coordinates, independent_q, dependent),
            dof_place=_inverse_places(layout.dofs, independent_dof_index, dependent),
            q_sources=_sources(coordinates, independent_q, terms),
            dof_sources=_sources(layout.dofs, independent_dof_index, terms),
            dof_ends=_index([layout.dofs.places[k][0] for k, _ in terms]),
            coefficients=_index([len(number) if j is None else number[k, j] for k, j in terms]),
            returns=_returns(layout.dofs, independent_dof_index, terms),
            plan=embedding_plan(layout, groups, list(map(len, columns)), columns),
            blocks=tuple(
                _block(layout, S, row, rows, number) for S, row in zip(groups, columns, strict=True)
            ),
        )

    @property
    def num_q(self) -> int:
        """Length of the robot's configurations."""
        return self.independent_q_index.shape[0]

    @property
    def num_dof(self) -> int:
        """Length of the robot's velocities."""
        return self.independent_dof_index.shape[0]

    def tree_q(self, q: Tensor, coefficients: Tensor, offsets: Tensor) -> Tensor:
        """X q + c, `[*batch, num_tree_q]`."""
        return self._interleave(
            q, self._sums(q, self.q_sources, coefficients) + offsets, self.q_place
        )

    def tree_rates(self, qd: Tensor, coefficients: Tensor) -> Tensor:
        """X qd, `[*batch, num_tree_dof]`."""
        return self._interleave(qd, self._sums(qd, self.dof_sources, coefficients), self.dof_place)

    def independent_forces(self, tau: Tensor, coefficients: Tensor) -> Tensor:
        """X* tau of forces `[*batch, num_tree_dof]` on all joints of the tree, `[*batch, num_dof]`."""
        back = pad(gather_entries(tau, self.dof_ends) * self._values(coefficients), (0, 1))
        returned = gather_entries(back, self.returns).unflatten(-1, (self.num_dof, -1)).sum(-1)
        return gather_entries(tau, self.independent_dof_index) + returned

    def matrices(self, coefficients: Tensor) -> tuple[Tensor, ...]:
        """X of each node of the embedding plan, `[*batch, members' dofs, dofs]`."""
        # Created on the device, to avoid a copy from the host in every call.
        size = (*coefficients.shape[:-1], 1)
        entries = torch.cat(
            [coefficients.new_zeros(size), coefficients.new_ones(size), coefficients], -1
        )
        return tuple(
            gather_entries(entries, block.flatten()).unflatten(-1, block.shape)
            for block in self.blocks
        )

    def _values(self, coefficients: Tensor) -> Tensor:
        return gather_entries(pad(coefficients, (0, 1)), self.coefficients)

    def _sums(self, x: Tensor, sources: Tensor, coefficients: Tensor) -> Tensor:
        """Sums of coefficient times coordinate of each dependent joint, `[*batch, num_dependent]`."""
        terms = self._values(coefficients) * gather_entries(x, sources)
        return terms if self.most == 1 else terms.unflatten(-1, (-1, self.most)).sum(-1)

    @staticmethod
    def _interleave(independent: Tensor, dependent: Tensor, place: Tensor) -> Tensor:
        return gather_entries(concatenate((independent, dependent)), place)


def _index(x: Sequence[int]) -> Tensor:
    return torch.tensor(x, dtype=torch.int64)


Term = tuple[int, int | None]
"""A dependent joint and one joint that it follows; None pads."""


def _terms(k: int, row: Row, most: int) -> list[Term]:
    """Terms of joint k, padded to `most`."""
    return [(k, j) for j in (*row, *[None] * (most - len(row)))]


def _sources(packing: Packing, independent: Sequence[int], terms: Sequence[Term]) -> Tensor:
    """For each term the scalar of the robot that it reads; 0 for padding."""
    place = {i: p for p, i in enumerate(independent)}
    return _index([0 if j is None else place[packing.places[j][0]] for _, j in terms])


def _returns(dofs: Packing, independent: Sequence[int], terms: Sequence[Term]) -> Tensor:
    """For each dof of the robot the terms that read it, padded with one past the end to equal counts."""
    readers: dict[int, list[int]] = {i: [] for i in independent}
    for slot, (_, j) in enumerate(terms):
        if j is not None:
            readers[dofs.places[j][0]].append(slot)
    most = max(1, *map(len, readers.values()))
    return _index(
        [slot for row in readers.values() for slot in row + [len(terms)] * (most - len(row))]
    )


def _independent_places(packing: Packing, independent: Sequence[int]) -> list[int]:
    return [i for k in independent for i in packing.places[k]]


def _inverse_places(
    packing: Packing, independent: Sequence[int], dependent: Sequence[int]
) -> Tensor:
    """For each scalar of the tree its index among independent ones followed by dependent ones."""
    return torch.argsort(_index([*independent, *(packing.places[k][0] for k in dependent)]))


def _groups(layout: Layout, rows: Mapping[int, Row]) -> list[tuple[int, ...]]:
    """Bodies of each node: coupled joints and the bodies between them; overlapping sets are merged."""
    sets = [{k, *row} for k, row in rows.items()]
    while True:
        disjoint: list[set[int]] = []
        for S in sets:
            wide = set(aggregation_subgraph(layout.tree, S))
            for other in [other for other in disjoint if wide & other]:
                disjoint.remove(other)
                wide |= other
            disjoint.append(wide)
        if sorted(map(sorted, disjoint)) == sorted(map(sorted, sets)):
            return [tuple(sorted(S)) for S in sorted(disjoint, key=min)]
        sets = disjoint


def _block(
    layout: Layout,
    members: Sequence[int],
    columns: Sequence[int],
    rows: Mapping[int, Row],
    number: Mapping[tuple[int, int], int],
) -> Tensor:
    """X of one node, as indices into [0, 1, *coefficients]."""
    column = {i: c for c, i in enumerate(columns)}
    block = []
    for k in members:
        for i in layout.dofs.places[k]:
            row = [0] * len(columns)
            if k in rows:
                for j in rows[k]:
                    row[column[layout.dofs.places[j][0]]] = 2 + number[k, j]
            else:
                row[column[i]] = 1
            block.append(row)
    return _index(block).reshape(len(block), len(columns))
