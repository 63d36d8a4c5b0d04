"""Constant tables of a contact model: the points, bodies and dofs of each contact.

They depend on the shapes, the tree and its loops, not on values. A contact model has them from the start:
they take as long as a step in eager mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from torchsko.contact.body_motions import tree_moves
from torchsko.contact.pair_groups import PairGroup
from torchsko.implicit.table_loop import Table
from torchsko.mechanism.mechanism import Mechanism

MIN_GROUNDED = 2
"""Smallest mean number of contacts with the inertial frame per touching body for which stiffnesses of bodies
are cheaper than rows."""


@dataclass(frozen=True, eq=False)
class DofTable:
    """Dofs of contacts between two bodies: those that move one of them alone.

    Attributes:
        dofs: the dofs of each contact; all contacts have as many, by repetition of the first one.
        is_own: False for a repeated dof, `[C, m]`, bool.
        places: places of the lower half of a matrix over the dofs of each contact, by rows, among the packed
            rows of the lower half of a matrix over all dofs.
        unpacked: place of each entry of a matrix over all dofs among the packed rows.
    """

    dofs: Table
    is_own: np.ndarray
    places: Table
    unpacked: np.ndarray

    @staticmethod
    def of(used: np.ndarray) -> DofTable:
        """From masks of the dofs, `[C, num_dof]`."""
        num = used.shape[-1]
        found = np.sort(np.where(used, np.arange(num), num))[:, : max(1, used.sum(-1).max())]
        found[:, 0] %= num  # dof 0 of a contact without dofs
        is_own = found < num
        dofs = np.where(is_own, found, found[:, :1])
        row, column = np.tril_indices(dofs.shape[-1])
        places = _packed(dofs[:, row], dofs[:, column])
        every = np.arange(num)
        return DofTable(
            Table(dofs, num),
            is_own,
            Table(places, num * (num + 1) // 2),
            _packed(every[:, None], every).ravel(),
        )


def _packed(i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """Places of entries of a symmetric matrix among the packed rows of its lower half."""
    row, column = np.maximum(i, j), np.minimum(i, j)
    return row * (row + 1) // 2 + column


@dataclass(frozen=True, eq=False)
class ContactGroup:
    """Contacts with forces of one dimension, those of the same bodies after each other.

    Attributes:
        at: indices of the contact points.
        pairs: their pairs of shapes.
        shapes: their first and their second shapes.
        condim: dimension of the force, and number of rows of a contact.
        moving: the dofs of the tree that move one of both bodies alone, `[C, num_tree_dof]`, bool.
        grounded: body of each contact with the inertial frame; None for rows between two bodies.
        dofs: dofs of the tree of rows between two bodies; None for grounded contacts.
        independent: dofs of the mechanism of these rows, which couplings and loops change.
        origins: a body that each dof moves.
        sign: 1 for motion of the second body, -1 for the first, `[C]` of grounded contacts, `[C, m]` of
            others with zeros for repeated dofs.
    """

    at: Table
    pairs: Table
    shapes: tuple[Table, Table]
    condim: int
    moving: np.ndarray
    grounded: Table | None
    dofs: DofTable | None
    independent: DofTable | None
    origins: Table | None
    sign: np.ndarray

    @property
    def num_rows(self) -> int:
        """Number of rows of all contacts."""
        return self.condim * self.moving.shape[0]


@dataclass(frozen=True)
class ContactTables:
    """Constant tables of all contacts of a mechanism. Those of equal keys are equal.

    Attributes:
        key: all that the tables depend on.
        pairs: pair of shapes of each contact point.
        groups: the contacts by the dimension of their forces, grounded ones last.
        moves: whether each dof of the tree moves each body, then the inertial frame,
            `[num_bodies + 1, num_tree_dof]`, bool.
        roots: first body of the tree of each body, and the inertial frame.
        rates: whether a rate of the tree depends on an independent one, `[num_tree_dof, num_dof]`, bool; None
            without couplings and loops.
    """

    key: tuple[object, ...]
    pairs: tuple[int, ...] = field(compare=False)
    groups: tuple[ContactGroup, ...] = field(compare=False)
    moves: np.ndarray = field(compare=False)
    roots: Table = field(compare=False)
    rates: np.ndarray | None = field(compare=False)

    @staticmethod
    def of(
        mech: Mechanism,
        points: Sequence[tuple[PairGroup, int]],
        pair_shapes: Sequence[tuple[int, int]],
        shape_bodies: Sequence[int],
        condim: Sequence[int],
    ) -> ContactTables:
        """The tables of a mechanism.

        Args:
            mech: the mechanism.
            points: groups of pairs of shapes, with the number of contact points of each pair.
            pair_shapes: shapes of each pair.
            shape_bodies: body of each shape, num_bodies for the inertial frame.
            condim: dimension of the force of each pair.
        """
        pairs = tuple(k for group, count in points for k in group.pairs for _ in range(count))
        roots = list(range(mech.num_bodies + 1))
        for k, parent in enumerate(mech.parents):
            roots[k] = k if parent < 0 else roots[parent]
        rates = _rate_structure(mech)
        moves = np.array(tree_moves(mech).tolist(), dtype=bool)
        ends = np.array(shape_bodies, dtype=int)[np.array(pair_shapes, dtype=int).reshape(-1, 2)]
        maker = _GroupMaker(
            np.array(pairs, dtype=int), pair_shapes, len(shape_bodies), ends,
            np.array(condim, dtype=int), moves, None if rates is None else rates.shape[-1],
        )  # fmt: skip
        return ContactTables(
            (pairs, *map(tuple, (pair_shapes, shape_bodies, condim)), mech.parents, mech.num_dof),
            pairs, tuple(maker.groups()), moves, Table(np.array(roots), len(roots)), rates,
        )  # fmt: skip

    def fits(self, mech: Mechanism) -> bool:
        """True if a mechanism has the tree and the independent dofs of the tables."""
        return self.key[-2:] == (mech.parents, mech.num_dof)

    def over_independent(self, moving: Tensor) -> Tensor:
        """A mask of dofs of the tree, `[*, num_tree_dof]`, as one of independent dofs, bool."""
        if self.rates is None:
            return moving
        rates = torch.tensor(self.rates, dtype=torch.float32, device=moving.device)
        return (moving.to(torch.float32) @ rates) > 0


@dataclass(frozen=True, eq=False)
class _GroupMaker:
    """Makes the groups of contacts; see `ContactTables.of`.

    Attributes:
        pairs: pair of each contact point, `[C]`.
        pair_shapes: shapes of each pair.
        num_shapes: number of shapes.
        ends: first and second body of each pair, `[P, 2]`.
        condim: of each pair, `[P]`.
        moves: see `ContactTables`.
        num_independent: number of independent dofs; None without couplings and loops.
    """

    pairs: np.ndarray
    pair_shapes: Sequence[tuple[int, int]]
    num_shapes: int
    ends: np.ndarray
    condim: np.ndarray
    moves: np.ndarray
    num_independent: int | None

    def groups(self) -> Iterator[ContactGroup]:
        """All groups."""
        ends, condim = self.ends[self.pairs], self.condim[self.pairs]
        inertial = len(self.moves) - 1
        is_grounded = (ends == inertial).any(-1)
        num_touching = len({*ends[is_grounded].ravel().tolist()} - {inertial})
        if self.num_independent is not None or is_grounded.sum() < MIN_GROUNDED * num_touching:
            is_grounded[:] = False
        order = np.lexsort((ends.max(-1), ends.min(-1))) if len(ends) else self.pairs
        for flag in (False, True):
            for size in sorted({*condim.tolist()}):
                at = order[((condim == size) & (is_grounded == flag))[order]]
                if len(at):
                    yield self._group(at, size, flag)

    def _group(self, at: np.ndarray, condim: int, is_grounded: bool) -> ContactGroup:
        pairs, num_bodies = self.pairs[at], len(self.moves)
        ends = self.ends[pairs]
        one, two = (self.moves[k] for k in ends.T)
        first, second = (
            Table(np.array([self.pair_shapes[k][end] for k in pairs]), self.num_shapes)
            for end in (0, 1)
        )
        moving, dofs, independent, origins = one ^ two, None, None, None
        if is_grounded:
            sign = np.where(ends[:, 1] == num_bodies - 1, -1, 1)
        else:
            used = moving if self.num_independent is None else np.ones_like(moving)
            dofs = independent = DofTable.of(used)
            if self.num_independent is not None:
                independent = DofTable.of(np.ones((len(at), self.num_independent), dtype=bool))
            at_dofs = np.arange(len(at))[:, None], dofs.dofs.index
            sign = np.where(two[at_dofs], 1, -1) * moving[at_dofs] * dofs.is_own
            origins = Table(self.moves.argmax(0)[dofs.dofs.index], num_bodies)
        return ContactGroup(
            Table(at, len(self.pairs)), Table(pairs, len(self.condim)), (first, second), condim,
            moving, Table(ends.min(-1), num_bodies) if is_grounded else None,
            dofs, independent, origins, sign,
        )  # fmt: skip


def _rate_structure(mech: Mechanism) -> np.ndarray | None:
    """See `ContactTables.rates`."""
    if mech.closing is None and mech.coupling is None:
        return None
    found = torch.eye(mech.num_dof, dtype=mech.dtype, device=mech.device)
    if mech.closing is not None:
        parts = [found]
        for node in mech.closing.nodes:
            inside = (node.columns < node.independent.shape[0]).to(found)
            parts.append(inside.expand(node.dependent.shape[0], -1))
        found = torch.cat(parts).index_select(0, mech.closing.row_place)
    if mech.coupling is not None:
        ones = torch.ones(mech.coupling_ratio.shape[-1], dtype=mech.dtype, device=mech.device)
        found = mech.coupling.tree_rates(found.mT, ones).mT
    return np.array((found != 0).tolist())
