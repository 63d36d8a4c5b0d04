r"""Linear couplings of joints: the coordinates of a robot, and those of its tree.

A robot's own coordinates q are those of its independent joints. The joints of its tree follow from them,

.. math::
    q_{tree} = X q + c, \qquad \dot q_{tree} = X \dot q, \qquad \tau = X^* \tau_{tree},

with rows of X that are unit vectors at independent joints and the coefficients of a coupling at dependent
ones (mimic joints, gears, differentials, rotors). So a mechanism with couplings is its tree, and X and c.
X is sparse and is not formed: `Coupling` lists what differs from unit rows.

Reference: A. Jain, *Multibody graph transformations and analysis, Part II: Closed-chain constraint
embedding*, Nonlinear Dynamics 67(3), 2012 (with a constant X).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchsko.algebra.topology.embedding_plan import EmbeddingPlan, embedding_plan
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.packing import Packing
from torchsko.algebra.topology.subgraph import aggregation_subgraph
from torchsko.utils.shapes import concatenate, gather_entries

Row = Collection[int]
"""The numbers of the independent joints that a dependent one follows, in the order of its coefficients."""


@dataclass(frozen=True, eq=False)
class Coupling:
    """Which joints follow from which others; the numbers are the mechanism's parameters.

    Attributes:
        independent: numbers of the independent joints, in file order.
        dependent: numbers of the dependent ones, in file order; each has one dof.
        followed: for each of these the numbers of the joints that it follows, in the order of its
            coefficients.
        most: the largest number of joints that one follows.
        own_q: for each coordinate of the robot its place among those of the tree, int64.
        own_dofs: likewise for dofs.
        q_place: for each coordinate of the tree its place among the robot's and then the dependent ones.
        dof_place: likewise for dofs.
        q_sources: for each term of a coupling, `most` of them for each dependent joint, the coordinate of
            the robot that it takes, int64 `[num_dependent * most]`.
        dof_sources: likewise for dofs.
        dof_ends: for each term the dof of the tree that it gives.
        coefficients: for each term its place among the coefficients; one past the end for a free one.
        returns: for each dof of the robot the terms that take it, int64 `[num_dof * most_returns]`; one
            past the end for free places.
        plan: the embedding: which bodies make one node.
        blocks: of each node its X, as places among 0, 1 and the coefficients, int64 `[members' dofs, dofs]`.
    """

    independent: tuple[int, ...]
    dependent: tuple[int, ...]
    followed: tuple[tuple[int, ...], ...]
    most: int
    own_q: Tensor
    own_dofs: Tensor
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
        """The coupling of joints that follow others.

        Args:
            layout: of the tree, each of whose nodes is one body with its joint.
            coordinates: packing of the tree's configurations.
            rows: which joints each dependent one follows. Coefficients are numbered row by row.
        """
        dependent = tuple(sorted(rows))
        independent = tuple(k for k in range(layout.tree.num_nodes) if k not in rows)
        number = {pair: i for i, pair in enumerate((k, j) for k in dependent for j in rows[k])}
        most = max(1, *(len(rows[k]) for k in dependent))
        terms = [term for k in dependent for term in _terms(k, rows[k], most)]
        own_q, own_dofs = (_own(packing, independent) for packing in (coordinates, layout.dofs))
        groups = _groups(layout, rows)
        taken = [[i for k in S if k not in rows for i in layout.dofs.places[k]] for S in groups]
        return Coupling(
            independent=independent,
            dependent=dependent,
            followed=tuple(tuple(rows[k]) for k in dependent),
            most=most,
            own_q=_index(own_q),
            own_dofs=_index(own_dofs),
            q_place=_back(coordinates, own_q, dependent),
            dof_place=_back(layout.dofs, own_dofs, dependent),
            q_sources=_sources(coordinates, own_q, terms),
            dof_sources=_sources(layout.dofs, own_dofs, terms),
            dof_ends=_index([layout.dofs.places[k][0] for k, _ in terms]),
            coefficients=_index([len(number) if j is None else number[k, j] for k, j in terms]),
            returns=_returns(layout.dofs, own_dofs, terms),
            plan=embedding_plan(layout, groups, list(map(len, taken)), taken),
            blocks=tuple(
                _block(layout, S, row, rows, number) for S, row in zip(groups, taken, strict=True)
            ),
        )

    @property
    def num_q(self) -> int:
        """Length of the robot's configurations."""
        return self.own_q.shape[0]

    @property
    def num_dof(self) -> int:
        """Length of its velocities."""
        return self.own_dofs.shape[0]

    def to(self, device: torch.device | str) -> Coupling:
        """The same with its index tensors on a device."""
        names = [f.name for f in fields(self) if isinstance(getattr(self, f.name), Tensor)]
        moved = {name: getattr(self, name).to(device) for name in names}
        blocks = tuple(block.to(device) for block in self.blocks)
        return replace(self, plan=self.plan.to(device), blocks=blocks, **moved)

    def all_q(self, q: Tensor, coefficients: Tensor, offsets: Tensor) -> Tensor:
        """X q + c, `[*batch, num_tree_q]`."""
        return self._joined(q, self._sums(q, self.q_sources, coefficients) + offsets, self.q_place)

    def all_rates(self, qd: Tensor, coefficients: Tensor) -> Tensor:
        """X qd, `[*batch, num_tree_dof]`."""
        return self._joined(qd, self._sums(qd, self.dof_sources, coefficients), self.dof_place)

    def own_forces(self, tau: Tensor, coefficients: Tensor) -> Tensor:
        """X* tau of forces `[*batch, num_tree_dof]` on all joints of the tree, `[*batch, num_dof]`."""
        back = pad(gather_entries(tau, self.dof_ends) * self._values(coefficients), (0, 1))
        returned = gather_entries(back, self.returns).unflatten(-1, (self.num_dof, -1)).sum(-1)
        return gather_entries(tau, self.own_dofs) + returned

    def matrices(self, coefficients: Tensor) -> tuple[Tensor, ...]:
        """X of each node of the plan, `[*batch, members' dofs, dofs]`."""
        # Filled on the device: a list made here would have to be copied there in every call.
        size = (*coefficients.shape[:-1], 1)
        every = torch.cat(
            [coefficients.new_zeros(size), coefficients.new_ones(size), coefficients], -1
        )
        return tuple(
            gather_entries(every, block.flatten()).unflatten(-1, block.shape)
            for block in self.blocks
        )

    def _values(self, coefficients: Tensor) -> Tensor:
        return gather_entries(pad(coefficients, (0, 1)), self.coefficients)

    def _sums(self, x: Tensor, sources: Tensor, coefficients: Tensor) -> Tensor:
        """What dependent joints follow, `[*batch, num_dependent]`."""
        terms = self._values(coefficients) * gather_entries(x, sources)
        return terms if self.most == 1 else terms.unflatten(-1, (-1, self.most)).sum(-1)

    @staticmethod
    def _joined(own: Tensor, dependent: Tensor, place: Tensor) -> Tensor:
        return gather_entries(concatenate((own, dependent)), place)


def _index(x: Sequence[int]) -> Tensor:
    return torch.tensor(x, dtype=torch.int64)


Term = tuple[int, int | None]
"""A joint that follows, and one of those that it follows; None: a free place."""


def _terms(k: int, row: Row, most: int) -> list[Term]:
    """What joint k follows, and free places up to `most`."""
    return [(k, j) for j in (*row, *[None] * (most - len(row)))]


def _sources(packing: Packing, own: Sequence[int], terms: Sequence[Term]) -> Tensor:
    """For each term the scalar of the robot that it takes; whichever, where the place is free."""
    place = {i: p for p, i in enumerate(own)}
    return _index([0 if j is None else place[packing.places[j][0]] for _, j in terms])


def _returns(dofs: Packing, own: Sequence[int], terms: Sequence[Term]) -> Tensor:
    """For each dof of the robot the terms that take it, and one past the end up to as many for each."""
    taking: dict[int, list[int]] = {i: [] for i in own}
    for slot, (_, j) in enumerate(terms):
        if j is not None:
            taking[dofs.places[j][0]].append(slot)
    most = max(1, *map(len, taking.values()))
    return _index(
        [slot for row in taking.values() for slot in row + [len(terms)] * (most - len(row))]
    )


def _own(packing: Packing, independent: Sequence[int]) -> list[int]:
    return [i for k in independent for i in packing.places[k]]


def _back(packing: Packing, own: Sequence[int], dependent: Sequence[int]) -> Tensor:
    """For each scalar of the tree its place among own ones and then dependent ones."""
    return torch.argsort(_index([*own, *(packing.places[k][0] for k in dependent)]))


def _groups(layout: Layout, rows: Mapping[int, Row]) -> list[tuple[int, ...]]:
    """The bodies of each node: those of coupled joints, and what lies between; what overlaps is one."""
    sets = [{k, *row} for k, row in rows.items()]
    while True:
        apart: list[set[int]] = []
        for S in sets:
            wide = set(aggregation_subgraph(layout.tree, S))
            for other in [other for other in apart if wide & other]:
                apart.remove(other)
                wide |= other
            apart.append(wide)
        if sorted(map(sorted, apart)) == sorted(map(sorted, sets)):
            return [tuple(sorted(S)) for S in sorted(apart, key=min)]
        sets = apart


def _block(
    layout: Layout,
    members: Sequence[int],
    taken: Sequence[int],
    rows: Mapping[int, Row],
    number: Mapping[tuple[int, int], int],
) -> Tensor:
    """X of one node: the places of its entries among 0, 1 and the coefficients."""
    column = {i: c for c, i in enumerate(taken)}
    block = []
    for k in members:
        for i in layout.dofs.places[k]:
            row = [0] * len(taken)
            if k in rows:
                for j in rows[k]:
                    row[column[layout.dofs.places[j][0]]] = 2 + number[k, j]
            else:
                row[column[i]] = 1
            block.append(row)
    return _index(block).reshape(len(block), len(taken))
